// Loads a model onto a device.
#ifndef MILLRACE_EXECUTORS_FACTORY_H_
#define MILLRACE_EXECUTORS_FACTORY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "executors/executor.h"
#include "executors/tensor_model.h"

namespace millrace {

struct ModelSpec {
  std::string path;  // of what OpenModel opens (formats/open_model.h); the fake device has no model
};

enum class DeviceKind { kCpu, kCuda, kTorch, kFake };

// The values are settings, checked there; what a device cannot do is refused with both numbers.
struct DeviceSpec {
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 0;  // that compute; 0: one a core that this process may use
  int64_t kv_cache_memory = int64_t{1} << 30;  // bytes; 0, of cuda: by gpu_memory_utilization
  int block_size = 16;  // tokens; the cpu's is a multiple of 16, cuda's 16, 32, 64 or 128
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  int max_model_len = 0;  // 0: what the model was trained for

  // Of cpu: float weights to 8 bits, or linears of layers to 4 and the rest to 8, while they are
  // loaded; 0: as they are.
  int weight_bits = 0;
  bool kv_cache_float32 = false;  // keys and values in FP32 instead of FP16

  // Of cuda:
  double gpu_memory_utilization = 0.9;  // of all its memory, what may be in use, others included
  bool kv_cache_fp8 = false;            // keys and values in E4M3 instead of BF16 and FP16
  bool quantize_fp8 = false;            // layers' linears to E4M3 while they are loaded
  bool quantize_head = false;           // the vocabulary head to E4M3 while it is loaded
  bool dummy_weights = false;           // draw weights instead of reading them
  bool enforce_eager = false;           // capture no graphs
  bool portable_kernels = false;        // none that is for one architecture alone
  bool cublaslt_linears = false;        // no linear of ours
  Duration step_timeout = std::chrono::seconds(60);  // a step that takes longer hangs
  bool exact = true;  // false: linears may sum in an order that depends on the batch

  bool bfloat16 = false;  // of torch: weights, activations, keys and values; else float32

  int64_t fake_step_us =
      0;  // of the fake device: the time of a step, and of each of its input tokens
  int64_t fake_token_us = 0;
};

// Ready for its first step: weights placed, memory taken, warmed up. Errors name the file or the
// setting.
absl::StatusOr<std::unique_ptr<Executor>> LoadExecutor(const ModelSpec& model,
                                                       const DeviceSpec& device);

// Whether `path` is named as an AOTInductor package is: *.pt2. With --device torch LoadExecutor
// takes one that is a language model, and LoadTensorModel the others.
bool IsPackage(const std::string& path);

// The same for a package without state.
absl::StatusOr<std::unique_ptr<TensorModel>> LoadTensorModel(const ModelSpec& model,
                                                             const DeviceSpec& device);

// Which kernels a GPU runs, a row an op, as Markdown. Needs no GPU. Unimplemented: this server was
// built without CUDA.
absl::StatusOr<std::string> CudaKernelTable();

// What a device did while it was watched. Times are the device's own, in nanoseconds.
struct DeviceOperation {
  std::string name;  // a kernel's, with its template arguments; "memcpy host to device", "memset"
  int64_t begin_ns;
  int64_t end_ns;
};

class DeviceTrace {
 public:
  virtual ~DeviceTrace() = default;  // stops watching

  // Stops, when what is to be seen has finished; the operations in the order of their begin. Called
  // once. ResourceExhausted: some were lost.
  virtual absl::StatusOr<std::vector<DeviceOperation>> Stop() = 0;
};

// Unimplemented: this device keeps no record. Unavailable: the vendor's library is not there. Opens
// it and no more: what runs next runs as fast as ever.
absl::Status CanTrace(DeviceKind device);

// Watches all kernels and copies of the process, those inside of graphs too; one at a time. It
// costs the device some speed. Errors: CanTrace's, and Unavailable where the library refuses.
absl::StatusOr<std::unique_ptr<DeviceTrace>> StartTrace(DeviceKind device);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_FACTORY_H_
