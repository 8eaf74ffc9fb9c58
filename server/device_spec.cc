#include "server/device_spec.h"

namespace millrace {
namespace {

CommonSpec MakeCommonSpec(const Settings& settings) {
  return {.threads = settings.threads,
          .kv_cache_memory = settings.kv_cache_memory,
          .state_cache_memory = settings.prefix_caching ? settings.state_cache_memory : 0,
          .block_size = settings.block_size,
          .max_num_seqs = settings.max_num_seqs,
          .max_num_batched_tokens = settings.max_num_batched_tokens,
          .max_model_len = settings.max_model_len};
}

CpuSpec MakeCpuSpec(const Settings& settings) {
  CpuSpec spec{MakeCommonSpec(settings)};
  spec.kv_cache_float32 = settings.kv_cache_dtype == KvCacheType::kFloat32;
  spec.weight_bits = settings.quantization == Quantization::kInt8   ? 8
                     : settings.quantization == Quantization::kInt4 ? 4
                                                                    : 0;
  spec.tensor_parallel_size = settings.tensor_parallel_size;
  spec.expert_parallel = settings.enable_expert_parallel;
  spec.step_timeout = settings.step_timeout;
  return spec;
}

CudaSpec MakeCudaSpec(const Settings& settings) {
  CudaSpec spec{MakeCommonSpec(settings)};
  spec.gpu_memory_utilization = settings.gpu_memory_utilization;
  spec.kv_cache_fp8 = settings.kv_cache_dtype == KvCacheType::kFp8;
  spec.quantize_fp8 = settings.quantization == Quantization::kFp8;
  spec.quantize_int4 = settings.quantization == Quantization::kInt4;
  spec.quantize_head = settings.quantize_lm_head;
  spec.dummy_weights = settings.load_format == LoadFormat::kDummy;
  spec.skewed_routers = settings.bench_routing == Routing::kReal;
  spec.enforce_eager = settings.enforce_eager;
  spec.graph_tokens = settings.graph_tokens;
  spec.portable_kernels = settings.kernels == KernelSet::kPortable;
  spec.cublaslt_linears = settings.gemm == Gemm::kCublasLt;
  spec.step_timeout = settings.step_timeout;
  spec.exact = settings.exact;
  spec.tensor_parallel_size = settings.tensor_parallel_size;
  spec.expert_parallel = settings.enable_expert_parallel;
  spec.virtual_ranks = settings.virtual_ranks;
  spec.lone_rank = settings.bench_lone_rank;
  spec.nccl_all_reduce = settings.all_reduce == AllReduce::kNccl;
  spec.devices.assign(settings.devices.begin(), settings.devices.end());
  return spec;
}

}  // namespace

DeviceSpec MakeDeviceSpec(const Settings& settings) {
  switch (settings.device) {
    case Device::kCpu:
      return MakeCpuSpec(settings);
    case Device::kCuda:
      return MakeCudaSpec(settings);
    case Device::kTorch:
      return TorchSpec{MakeCommonSpec(settings), settings.dtype == FloatType::kBfloat16};
    case Device::kFake:
      return FakeSpec{MakeCommonSpec(settings), settings.fake_step_us,   settings.fake_token_us,
                      settings.fake_answer,     settings.fake_prompt_us, settings.fake_token_tile};
  }
  return CpuSpec{};
}

}  // namespace millrace
