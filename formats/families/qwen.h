// The code that the Qwen families share.
#ifndef MILLRACE_FORMATS_FAMILIES_QWEN_H_
#define MILLRACE_FORMATS_FAMILIES_QWEN_H_

#include "formats/families/hf_reader.h"

namespace millrace {

// Layers from max_window_layers on have windows, where use_sliding_window says so.
absl::Status SetQwenWindows(const HfReader& config, ModelConfig* model);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_QWEN_H_
