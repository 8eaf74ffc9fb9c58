// Loads a model onto a device.
#ifndef MILLRACE_EXECUTORS_FACTORY_H_
#define MILLRACE_EXECUTORS_FACTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "executors/models/memory_plan.h"
#include "executors/nodes.h"
#include "executors/tensor_model.h"
#include "formats/open_model.h"

namespace millrace {

// Loads the model: places its weights, takes memory and warms up, so that the first step may come.
// Errors name the file or the setting. `nodes`: all that the ranks are spread over, if not this
// process alone (cpu and cuda); they outlive the executor.
absl::StatusOr<std::unique_ptr<Executor>> LoadExecutor(const ModelSpec& model,
                                                       const DeviceSpec& device,
                                                       Nodes* nodes = nullptr);

// Returns the memory that the model will take, of all of this node's ranks on the CPU, of one GPU
// else; `nodes` nodes have the ranks. Reads no weights, needs no GPU and takes no memory to speak
// of. The plan is divided (MemoryPlan::num_blocks) where kv_cache_memory says how much there is.
// Errors are those that loading would give. Unimplemented: torch and fake, which have no plan.
absl::StatusOr<MemoryPlan> PlanMemory(const OpenedModel& model, const DeviceSpec& device,
                                      int nodes = 1);

// Loads a package without state: a model of tensors.
absl::StatusOr<std::unique_ptr<TensorModel>> LoadTensorModel(const ModelSpec& model,
                                                             const DeviceSpec& device);

// Returns which kernels a GPU runs, a row an op, as Markdown. Needs no GPU. Unimplemented: this
// server was built without CUDA.
absl::StatusOr<std::string> CudaKernelTable();

// One operation that a device ran while it was watched. Times are the device's own, in nanoseconds.
struct DeviceOperation {
  std::string name;  // a kernel's, with its template arguments; "memcpy host to device", "memset"
  int64_t begin_ns;
  int64_t end_ns;
  // The number of its stream among those that ran kernels, by device and age: a rank of a model has
  // one.
  int32_t rank = 0;
};

class DeviceTrace {
 public:
  virtual ~DeviceTrace() = default;  // stops watching

  // Stops recording and returns the operations in the order of their begin. Called once, when the
  // work to be recorded has finished. ResourceExhausted: some operations were lost.
  virtual absl::StatusOr<std::vector<DeviceOperation>> Stop() = 0;
};

// Returns whether a device can be traced. Unimplemented: this device keeps no record. Unavailable:
// the vendor's library is missing. Opens the library, which slows nothing down.
absl::Status CanTrace(const DeviceSpec& device);

// Watches all kernels and copies of the process, those inside of graphs too; one at a time. It
// costs the device some speed. Errors: CanTrace's, and Unavailable where the library refuses.
absl::StatusOr<std::unique_ptr<DeviceTrace>> StartTrace(const DeviceSpec& device);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_FACTORY_H_
