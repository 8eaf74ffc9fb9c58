// The code that Granite's families share.
#ifndef MILLRACE_FORMATS_FAMILIES_GRANITE_H_
#define MILLRACE_FORMATS_FAMILIES_GRANITE_H_

#include "formats/families/gguf_reader.h"
#include "formats/families/hf_reader.h"

namespace millrace {

// Read Llama's layers and Granite's factors. `experts`: the family reads its mixtures itself.
absl::StatusOr<ModelConfig> ReadHfGranite(const HfReader& config);
absl::StatusOr<ModelConfig> ReadGgufGranite(const GgufReader& file, bool experts);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_GRANITE_H_
