// How a config.json says that positions are turned.
#ifndef MILLRACE_FORMATS_HF_ROPE_H_
#define MILLRACE_FORMATS_HF_ROPE_H_

#include "absl/status/statusor.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"

namespace millrace {

// Into `model`, whose heads and context_length are read: rope_dimensions, rope, window_rope, and
// the context_length of a model that YaRN or dynamic NTK scaling stretches. `theta` and
// `window_theta` stand where the config has none; the latter is 0 where layers with a window turn
// as the others.
//
// All of it stands in rope_parameters, or in older configs in rope_theta beside rope_scaling. Of
// the types default, linear, dynamic, llama3, yarn and longrope; others are refused by name.
absl::Status ReadHfRope(const JsonFields& config, double theta, double window_theta,
                        ModelConfig* model);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HF_ROPE_H_
