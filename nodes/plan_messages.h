// Converts plans to the messages in which node 0 hands them to other nodes, and back.
#ifndef MILLRACE_NODES_PLAN_MESSAGES_H_
#define MILLRACE_NODES_PLAN_MESSAGES_H_

#include "millrace/nodes/v1/nodes.pb.h"
#include "plan/step_plan.h"

namespace millrace::nodes {

void ToMessage(const StepPlan& plan, v1::StepPlan& message);

// The plan is as it was sent; an executor checks it, as it does every plan.
StepPlan FromMessage(const v1::StepPlan& message);

}  // namespace millrace::nodes

#endif  // MILLRACE_NODES_PLAN_MESSAGES_H_
