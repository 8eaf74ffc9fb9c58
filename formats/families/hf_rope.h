// Reads the rotary embedding from a config.json.
#ifndef MILLRACE_FORMATS_FAMILIES_HF_ROPE_H_
#define MILLRACE_FORMATS_FAMILIES_HF_ROPE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "formats/json/json_fields.h"
#include "formats/model/rope_config.h"

namespace millrace {

// A family's values where a config has none, and its way to read the others.
struct HfRopeDefaults {
  double theta = 10000;
  double window_theta = 0;  // of layers with a window; 0: they rotate as the others
  std::optional<double> partial = std::nullopt;  // partial_rotary_factor; nothing: 1, always
  bool interleaved = false;
  bool longrope_aliases = false;  // "su" and "yarn" are LongRoPE (Phi-3's first configs)
};

struct HfRopes {
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // if there is a window_theta
};

// Reads them for heads of `head_size`. YaRN and dynamic NTK scaling stretch `context_length`.
//
// All of it stands in rope_parameters, or in older configs in rope_theta beside rope_scaling. The
// types are default, linear, dynamic, llama3, yarn and longrope; others are refused by name.
absl::StatusOr<HfRopes> ReadHfRopes(const JsonFields& config, const HfRopeDefaults& defaults,
                                    int head_size, int* context_length);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_HF_ROPE_H_
