// The description of a package: the JSON that scripts/export_package.py writes into its metadata.
#ifndef MILLRACE_EXECUTORS_TORCH_PACKAGE_SPEC_H_
#define MILLRACE_EXECUTORS_TORCH_PACKAGE_SPEC_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executors/tensor_model.h"
#include "formats/model/model_config.h"

namespace millrace::aten {

struct PackageSpec {
  std::string torch;  // the release that made it, "2.11.0"
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;

  // Instead of inputs and outputs: it is a language model with a KV cache. Of a config only what
  // its cache and its limits are made of: layers, kv_heads, head_size, vocab_size, context_length
  // and end_tokens.
  std::optional<ModelConfig> causal_lm;
};

// Reads a package's description. Errors are InvalidArgument or NotFound and name the field.
absl::StatusOr<PackageSpec> ReadPackageSpec(std::string_view json);

// Checks that this processor has the instruction sets that PyTorch names in a package's
// AOTI_CPU_ISA, as "AVX512 AVX512_VNNI". Unimplemented, naming the first that it lacks or that is
// unknown.
absl::Status CheckInstructionSets(std::string_view names);

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_PACKAGE_SPEC_H_
