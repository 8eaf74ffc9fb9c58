// Opening a package with LibTorch's loader.
#ifndef MILLRACE_EXECUTORS_TORCH_PACKAGE_FILE_H_
#define MILLRACE_EXECUTORS_TORCH_PACKAGE_FILE_H_

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "executors/torch/package_spec.h"

namespace millrace::aten {

using PackageCode = torch::inductor::AOTIModelPackageLoader;

// Checks, before the package's code is in the process, that scripts/export_package.py made it for
// this LibTorch and this processor. Errors do not name the file. Throws what LibTorch does.
absl::StatusOr<PackageSpec> CheckPackage(const std::string& path);

// Loads a package, whose code runs in this process, with all its rights. LibTorch unpacks it into a
// folder in /tmp, which is gone when this returns. Throws what LibTorch does.
std::unique_ptr<PackageCode> LoadPackageCode(const std::string& path);

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_PACKAGE_FILE_H_
