// Says which state a sequence of a model owns on a rank, and divides a memory among it.
//
// Every size of keys and values is one of these two functions': those of executors' arenas, of the
// scheduler's pools, and of what is told before a model is loaded.
#ifndef MILLRACE_EXECUTORS_MODELS_MODEL_STATE_H_
#define MILLRACE_EXECUTORS_MODELS_MODEL_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executors/ops.h"
#include "formats/model/model_config.h"
#include "plan/step_plan.h"

namespace millrace {

// How a device lays out keys and values, and states.
struct PageSpec {
  int32_t block_size = 0;
  int32_t element_bytes = 0;  // of a key's or a value's
  int32_t head_multiple = 1;  // to which heads are filled up
  // Blocks are released behind windows shorter than this, the most positions of a sequence. Longer
  // windows are none. 0: nothing is released, so that all layers share one group.
  int32_t release_below = 0;
  // The tokens after which a gated delta rule's state is written. Until then the slot keeps what
  // each of them adds to it (GatedDeltaState).
  int32_t delta_tokens = 1;

  int FilledHead(int head_size) const {
    return (head_size + head_multiple - 1) / head_multiple * head_multiple;
  }
  // Returns the bytes of a kv head's keys and values in a block.
  int64_t HeadBytes(int head_size) const {
    return int64_t{2} * FilledHead(head_size) * block_size * element_bytes;
  }
};

// How the CPU's and the GPU's pages lie, for sequences of up to `max_model_len` positions.
inline PageSpec CpuPages(int32_t block_size, bool float32, int32_t max_model_len) {
  return {.block_size = block_size,
          .element_bytes = float32 ? 4 : 2,
          .head_multiple = 16,
          .release_below = max_model_len};
}
constexpr PageSpec CudaPages(int32_t block_size, bool fp8, int32_t max_model_len) {
  return {.block_size = block_size,
          .element_bytes = fp8 ? 1 : 2,
          .release_below = max_model_len,
          .delta_tokens = 8};  // kernels/recurrent/delta_types.h
}

// How the state of a layer with a gated delta rule, or with Mamba-2, lies in a slot, in floats: the
// convolution's inputs of the last tokens, [width - 1][channels] with the oldest first; the states
// of the (value) heads, of `head` floats each; and what GatedDeltaState keeps.
struct HeadStates {
  int64_t inputs = 0;  // floats before the first head's state
  int64_t head = 0;
  int64_t heads = 0;
  int64_t kept = 0;  // floats behind the last one's, filled up to 16 bytes

  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(float)) * (inputs + heads * head + kept);
  }
};
// On a device that writes states once in `tokens` tokens (PageSpec::delta_tokens) it keeps, of each
// token but the last of them, the keys, [key_heads][key_size], the values' changes,
// [value_heads][value_size], and the decays, [value_heads].
struct GatedDeltaState : HeadStates {
  explicit GatedDeltaState(const GatedDelta& of_rank, int32_t tokens = 1)
      : HeadStates{.inputs = int64_t{kConvolutionWidth - 1} * of_rank.channels(),
                   .head = int64_t{of_rank.key_size} * of_rank.value_size,
                   .heads = of_rank.value_heads} {
    const int64_t of_token = int64_t{of_rank.key_heads} * of_rank.key_size +
                             int64_t{of_rank.value_heads} * (of_rank.value_size + 1);
    kept = ((tokens - 1) * of_token + 3) / 4 * 4;
  }
};
struct Mamba2State : HeadStates {
  explicit Mamba2State(const Mamba2& of_rank)
      : HeadStates{.inputs = int64_t{of_rank.width - 1} * of_rank.channels(),
                   .head = int64_t{of_rank.state_size} * of_rank.head_size,
                   .heads = of_rank.heads} {}
};

// Returns the bytes of the state of a short convolution's layer: the convolution's inputs of the
// last tokens, float32 [width - 1][channels] with the oldest first.
inline int64_t ShortConvolutionBytes(int32_t width, int64_t channels) {
  return static_cast<int64_t>(sizeof(float)) * (width - 1) * channels;
}

// The group of a layer without a mixer, which has no state.
inline constexpr int32_t kNoGroup = -1;

struct ModelState {
  StateLayout layout;
  std::vector<LayerPlacement> placements;  // by layer
};

// Returns the state of the layers whose state has `heads` heads (Model::layer_state_heads), by
// layer, on a rank. Layers with pages of the same window share a group, those without one the
// first; the others follow by length. Recurrent layers share the last group, of slots. Of models
// that make embeddings, whose sequences stay for a few steps only, no window is one.
ModelState StateOf(const ModelConfig& config, absl::Span<const int32_t> heads,
                   const PageSpec& pages);

// The same for a rank that has loaded nothing yet: of each layer, the heads that DivideHeads gives
// it where no block of scales spans several.
ModelState StateOf(const ModelConfig& config, RankSpec rank, const PageSpec& pages);

// The bounds of the steps and sequences that a memory is divided for.
struct StateUse {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  int64_t checkpoint_bytes = 0;  // for checkpoints of states at slots, beside all else
};

// Returns how many blocks of each group fit `bytes`; of a group of slots, how many checkpoints fit
// `use.checkpoint_bytes`. 0 of every group if the memory lacks a block of each.
//
// A group with a window needs less than whole contexts do: a window for each running sequence, and
// what the chunks of two steps leave before it is released. How many sequences run depends on their
// length, so two lengths are looked at: max_model_len, and a typical long sequence. As many
// sequences of either as fit (max_num_seqs at the most) want blocks of each group, of which every
// group gets the larger number, all in the same proportion where that is too much. What is left
// over goes to whole contexts. One sequence of max_model_len fits whenever it can.
std::vector<int32_t> DivideState(const StateLayout& layout, int64_t bytes, const StateUse& use);

// Returns the layout of `ranks` ranks together, which have as many heads each.
StateLayout Together(const StateLayout& of_rank, int ranks);

// Returns the bytes of one block of each paged group.
int64_t BytesOfABlockEach(const StateLayout& layout);

// Returns the error of a memory of `bytes` that holds less than a block of each group beside the
// states of `max_num_seqs` sequences at slots.
absl::Status TooLittleStateMemory(const StateLayout& layout, int64_t bytes, int32_t max_num_seqs);

// Returns the bytes of so many blocks of each paged group.
int64_t BytesOfBlocks(const StateLayout& layout, absl::Span<const int32_t> num_blocks);

// Returns the bytes of max_num_seqs sequences of max_model_len, with a block more of each: more has
// no use.
int64_t MostStateBytes(const StateLayout& layout, const StateUse& use);

// Says how many blocks each group has: "1000 KV blocks of 16 tokens, and 50 for windows of 128".
std::string DivisionText(const StateLayout& layout, absl::Span<const int32_t> num_blocks);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_MODEL_STATE_H_
