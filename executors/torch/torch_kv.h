// The state of sequences in LibTorch's tensors.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_KV_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_KV_H_

#include <ATen/ATen.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "formats/model/model_config.h"

namespace millrace::aten {

// The keys and the values of all sequences, of each layer [blocks of its group * block_size, its
// kv_heads, its head_size]. Blocks that were never used take no memory, and hold anything. Of
// recurrent layers there are none, but in float32 for each slot, and behind these for each
// checkpoint, the last inputs of the convolution, [slots, width - 1, channels], and of gated delta
// rules the states of the value heads, [slots, value_heads, key_size, value_size], of Mamba-2 those
// of the heads, [slots, heads, state_size, head_size]. The lists are by layer.
struct TorchKv {
  int64_t block_size = 0;
  std::vector<at::Tensor> keys;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> states;
  std::vector<int> groups;  // by layer: the group that it is of, whose block tables lead to it;
                            // kNoGroup (executors/models/model_state.h) of one without state
  int num_groups = 1;

  // Adds the state of one more layer, of so many places in blocks, or of so many slots.
  void AddLayer(const LayerConfig& layer, int64_t places, int64_t slots, at::ScalarType dtype);

  // Copies whole blocks, or whole states, in all layers of their groups.
  void Move(absl::Span<const StateMove> moves) const;
};

// Allocates as many blocks as fit device.kv_cache_memory, and `more_places` behind those of each
// paged group, and describes them in `limits`. InvalidArgument: not one fits.
absl::StatusOr<TorchKv> MakeKv(const ModelConfig& config, const TorchSpec& device,
                               at::ScalarType dtype, int64_t more_places, StepLimits* limits);

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_KV_H_
