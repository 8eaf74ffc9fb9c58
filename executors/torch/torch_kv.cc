#include "executors/torch/torch_kv.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "base/status.h"
#include "base/strings.h"

namespace millrace::aten {

void TorchKv::Copy(const BlockCopy& copy) const {
  const c10::InferenceMode inference;
  for (const std::vector<at::Tensor>* pages : {&keys, &values}) {
    for (const at::Tensor& layer : *pages) {
      layer.narrow(0, copy.dst * block_size, block_size)
          .copy_(layer.narrow(0, copy.src * block_size, block_size));
    }
  }
}

absl::StatusOr<TorchKv> MakeKv(const ModelConfig& config, const TorchSpec& device,
                               at::ScalarType dtype, int64_t more_places, StepLimits* limits,
                               KvGroup* group) {
  MILLRACE_ASSIGN_OR_RETURN(const HeadShape heads, SharedHeadShape(config));
  const int64_t width = int64_t{heads.kv_heads} * heads.head_size;
  *group = {.num_layers = config.num_layers(),
            .bytes_per_block = int64_t{2} * config.num_layers() * device.block_size * width *
                               static_cast<int64_t>(c10::elementSize(dtype))};
  const int64_t blocks = device.kv_cache_memory / group->bytes_per_block;
  if (blocks < 1) {
    return absl::InvalidArgumentError(StrCat("kv_cache_memory is ", device.kv_cache_memory,
                                             " bytes, allowed: at least one block's ",
                                             group->bytes_per_block));
  }
  limits->num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, int64_t{1} << 30));
  TorchKv kv{.block_size = device.block_size};
  const int64_t places = limits->num_blocks * kv.block_size + more_places;
  for (int i = 0; i < config.num_layers(); ++i) {
    const auto pages = [&] { return at::empty({places, heads.kv_heads, heads.head_size}, dtype); };
    kv.keys.push_back(pages());
    kv.values.push_back(pages());
  }
  return kv;
}

}  // namespace millrace::aten
