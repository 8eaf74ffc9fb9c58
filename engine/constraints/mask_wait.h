// How long the next step waits for the masks of its rows.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_MASK_WAIT_H_
#define MILLRACE_ENGINE_CONSTRAINTS_MASK_WAIT_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace millrace {

// A step reads all weights whatever the number of its rows, and a mask takes a small part of its
// time. A step that is planned before the masks are known lacks those rows, which then stand in
// every other step alone; so it is planned once they are there. Late ones hold up the other rows
// for an eighth of a step's time at most.
class MaskWait {
 public:
  // Steps are committed in the order in which they were submitted. `masked`: a row of it has a
  // mask.
  void OnSubmit(bool masked);
  void OnCommit(Duration took);
  // A mask was ordered, after the commit of its row's step, or made.
  void OnOrder(SteadyTime now);
  void OnMade() { --missing_; }

  // Returns whether a mask came so long after its order that a step which needs it would wait for
  // it, where masks may come while the step runs.
  bool HoldsUp(Duration took) const;

  // Returns until when no step is to be planned; nullopt: a step may be planned now. What ends the
  // wait before is a commit or a mask.
  std::optional<SteadyTime> Until(SteadyTime now) const;

 private:
  std::deque<bool> masked_;  // of the steps in flight
  Duration step_time_{};     // of the last step
  int64_t missing_ = 0;      // masks ordered and not made
  SteadyTime ordered_;       // the last time
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_MASK_WAIT_H_
