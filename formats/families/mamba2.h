// The code that families with Mamba-2 mixers share.
#ifndef MILLRACE_FORMATS_FAMILIES_MAMBA2_H_
#define MILLRACE_FORMATS_FAMILIES_MAMBA2_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/families/gguf_reader.h"
#include "formats/json/json_fields.h"
#include "formats/model/layer_config.h"

namespace millrace {

// Sets between which numbers steps are, as time_step_limit says, a list of both; infinity is a
// number, or {"__float__": "Infinity"}, as transformers writes it.
absl::Status ReadStepLimits(const JsonFields& fields, Mamba2* mixer);

// Reads the mixers of a GGUF file. One of them, of layer `example`, says which biases they have.
absl::StatusOr<Mamba2> ReadGgufMamba2(const GgufReader& file, int example);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_MAMBA2_H_
