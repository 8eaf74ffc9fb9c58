// A language model out of an AOTInductor package, which brings its own maths and keeps keys and
// values in tensors of ours. No header of LibTorch's is seen here.
#ifndef MILLRACE_EXECUTORS_TORCH_PACKAGE_LM_H_
#define MILLRACE_EXECUTORS_TORCH_PACKAGE_LM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/host/host_executor.h"

namespace millrace::aten {

// Loads a package that scripts/export_package.py made of a module with a KV cache (export_causal_lm
// says what it is called with). A step runs it once for the decode rows of about a length together,
// which have one token each (length_groups.h), and once for each other row. Errors as LoadPackage's
// (package_model.h).
absl::StatusOr<std::unique_ptr<HostModel>> LoadPackageLm(const ModelSpec& model,
                                                         const TorchSpec& device);

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_PACKAGE_LM_H_
