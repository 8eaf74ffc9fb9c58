// For tests: runs a model on the CPU executor's ops and on LibTorch's at the same time, and
// compares what each op gives.
#ifndef MILLRACE_EXECUTORS_TORCH_OP_BY_OP_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_TORCH_OP_BY_OP_TEST_UTIL_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "executors/device_spec.h"
#include "executors/executor.h"
#include "executors/torch/torch_ops.h"

namespace millrace::aten {

// The largest difference that an op's output had, over the largest value of that output (of Pool,
// over the largest of all embeddings); of Sample the largest difference of a log-probability. By
// the names of the ops, with the form that the CPU left the output in: "Linear", "Norm q8".
using OpErrors = std::map<std::string, double>;

// An executor with the CPU's results. Both sides have the same weights; after each op, LibTorch's
// output is replaced by the CPU's, so that every op is compared on its own, with the same input.
// Keys and values are each side's own (float16 there, float32 here). Errors in `errors`, which
// outlives the executor and is read between steps. `make_torch` may make other ops than TorchOps,
// to see that the comparison notices. Ends the program where the model does not load.
using MakeTorchOps =
    std::function<std::unique_ptr<TorchOps>(const TorchWeights&, TorchKv&, ThreadPool&)>;
std::unique_ptr<Executor> LoadOpByOp(
    const std::string& path, const CommonSpec& device, OpErrors* errors,
    const MakeTorchOps& make_torch = [](const TorchWeights& weights, TorchKv& kv,
                                        ThreadPool& pool) {
      return std::make_unique<TorchOps>(weights, kv, pool);
    });

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_OP_BY_OP_TEST_UTIL_H_
