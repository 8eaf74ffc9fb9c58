// The model that an executor loads, and the settings of its device: one type a device, over what
// all devices have in common. The values are settings, checked there; what a device cannot do is
// refused when it loads the model, with both numbers.
#ifndef MILLRACE_EXECUTORS_DEVICE_SPEC_H_
#define MILLRACE_EXECUTORS_DEVICE_SPEC_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/load_progress.h"
#include "formats/model/model_config.h"

namespace millrace {

struct ModelSpec {
  std::string path;  // OpenModel opens it (formats/open_model.h); the fake device has no model
  LoadProgress* progress = nullptr;  // is told how much of the weights is placed; may be null
  ModelRunner runner = ModelRunner::kAuto;
};

// Returns whether `path` is named as an AOTInductor package is: *.pt2. With --device torch
// LoadExecutor loads one that is a language model, and LoadTensorModel the others.
inline bool IsPackage(const std::string& path) { return path.ends_with(".pt2"); }

struct CommonSpec {
  int threads = 0;  // that compute on the host (cpu and torch); 0: one a core of this process
  int64_t kv_cache_memory = int64_t{1} << 30;  // bytes; 0, of cuda: by gpu_memory_utilization
  int64_t state_cache_memory = 0;  // bytes for checkpoints of recurrent layers' states; 0: none
  int block_size = 16;  // tokens; the cpu's is a multiple of 16, cuda's 16, 32, 64 or 128
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  int max_model_len = 0;  // 0: the length that the model was trained for
};

struct CpuSpec : CommonSpec {
  bool kv_cache_float32 = false;  // keys and values in FP32 instead of FP16
  // 8: rounds float weights to 8 bits while they are loaded. 4: rounds the linears of layers to 4
  // bits and the rest to 8. 0: keeps the weights as they are.
  int weight_bits = 0;
  int tensor_parallel_size = 1;  // ranks, which divide the weights, the threads and the KV cache
  bool expert_parallel = false;  // ranks divide mixtures by expert
  Duration step_timeout = std::chrono::seconds(60);  // ranks that get no further for it have hung
};

struct CudaSpec : CommonSpec {
  double gpu_memory_utilization = 0.9;  // share of the GPU's memory in use, by other processes too
  bool kv_cache_fp8 = false;            // keys and values in E4M3 instead of BF16 and FP16
  bool quantize_fp8 = false;            // rounds the layers' linears to E4M3 while loading
  bool quantize_int4 = false;           // rounds the layers' linears to four bits while loading
  bool quantize_head = false;           // rounds the vocabulary head to E4M3 while loading
  bool dummy_weights = false;           // draws weights instead of reading them
  bool skewed_routers = false;          // with dummy_weights: some experts get more tokens
  bool enforce_eager = false;           // captures no graphs
  int graph_tokens = 1024;              // up to which steps with prompts run as graphs
  bool portable_kernels = false;        // runs no kernel that is for one architecture alone
  bool cublaslt_linears = false;        // runs every linear by cuBLASLt
  Duration step_timeout = std::chrono::seconds(60);  // a step that takes longer has hung
  bool exact = true;             // false: linears may sum in an order that depends on the batch
  int tensor_parallel_size = 1;  // ranks, one a GPU, which divide the weights
  bool expert_parallel = false;  // ranks divide mixtures by expert
  bool virtual_ranks = false;    // all ranks on one GPU, for tests
  bool lone_rank = false;        // the first rank alone, which plays the others, for benchmarks
  bool nccl_all_reduce = false;  // sums in NCCL's order, which follows the size of the step
  std::vector<int> devices;      // the GPU of each rank, as CUDA numbers them; empty: 0, 1, 2 ...
};

struct TorchSpec : CommonSpec {
  bool bfloat16 = false;  // weights, activations, keys and values; else float32
};

struct FakeSpec : CommonSpec {
  int64_t step_us = 0;    // microseconds that each step takes
  int64_t token_us = 0;   // and that each of its input tokens adds
  std::string answer;     // the bytes of every answer; empty: predictable ones without an end
  int64_t prompt_us = 0;  // and that a step with a prompt takes more
  int token_tile = 1;     // such a step's tokens take as long as whole tiles of so many
};

using DeviceSpec = std::variant<CpuSpec, CudaSpec, TorchSpec, FakeSpec>;

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_DEVICE_SPEC_H_
