// The code that the Qwen families share.
#ifndef MILLRACE_FORMATS_FAMILIES_QWEN_H_
#define MILLRACE_FORMATS_FAMILIES_QWEN_H_

#include "formats/families/hf_reader.h"

namespace millrace {

// Gives layers from max_window_layers on their windows, if use_sliding_window is set.
absl::Status SetQwenWindows(const HfReader& config, ModelConfig* model);

// Refuses windows, which no published mixture has.
absl::Status RefuseQwenWindows(const HfReader& config, ModelConfig* model);

// Reads the mixtures of Qwen2-MoE and its successors, but for shared experts, and puts `experts`,
// which has what else they are and the default of norm_topk_prob, in the place of the dense
// networks in the layers that decoder_sparse_step and mlp_only_layers leave them.
absl::Status SetQwenExperts(const HfReader& config, ExpertsFeedForward experts, ModelConfig* model);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_QWEN_H_
