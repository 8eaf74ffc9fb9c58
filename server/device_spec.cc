#include "server/device_spec.h"

namespace millrace {

DeviceSpec MakeDeviceSpec(const Settings& settings) {
  DeviceSpec device;
  switch (settings.device) {
    case Device::kCpu:
      device.kind = DeviceKind::kCpu;
      break;
    case Device::kCuda:
      device.kind = DeviceKind::kCuda;
      break;
    case Device::kTorch:
      device.kind = DeviceKind::kTorch;
      break;
    case Device::kFake:
      device.kind = DeviceKind::kFake;
      break;
  }
  device.threads = settings.threads;
  device.kv_cache_memory = settings.kv_cache_memory;
  device.block_size = settings.block_size;
  device.max_num_seqs = settings.max_num_seqs;
  device.max_num_batched_tokens = settings.max_num_batched_tokens;
  device.max_model_len = settings.max_model_len;
  device.gpu_memory_utilization = settings.gpu_memory_utilization;
  device.kv_cache_float32 = settings.kv_cache_dtype == KvCacheType::kFloat32;
  device.kv_cache_fp8 = settings.kv_cache_dtype == KvCacheType::kFp8;
  device.weight_bits = settings.quantization == Quantization::kInt8   ? 8
                       : settings.quantization == Quantization::kInt4 ? 4
                                                                      : 0;
  device.quantize_fp8 = settings.quantization == Quantization::kFp8;
  device.quantize_head = settings.quantize_lm_head;
  device.dummy_weights = settings.load_format == LoadFormat::kDummy;
  device.portable_kernels = settings.kernels == KernelSet::kPortable;
  device.cublaslt_linears = settings.gemm == Gemm::kCublasLt;
  device.enforce_eager = settings.enforce_eager;
  device.step_timeout = settings.step_timeout;
  device.exact = settings.exact;
  device.bfloat16 = settings.dtype == FloatType::kBfloat16;
  device.fake_step_us = settings.fake_step_us;
  device.fake_token_us = settings.fake_token_us;
  return device;
}

}  // namespace millrace
