// AOTInductor packages: a PyTorch module, compiled ahead of time (torch.export and
// torch._inductor.aoti_compile_and_package). No header of LibTorch's is seen here.
#ifndef MILLRACE_EXECUTORS_TORCH_PACKAGE_MODEL_H_
#define MILLRACE_EXECUTORS_TORCH_PACKAGE_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/tensor_model.h"

namespace millrace::aten {

// Opens a package that scripts/export_package.py made of a module without state. Errors name the
// file: InvalidArgument for what is damaged or no such package, Unimplemented for what was made
// for another LibTorch or processor.
absl::StatusOr<std::unique_ptr<TensorModel>> LoadPackage(const ModelSpec& model,
                                                         const TorchSpec& device);

}  // namespace millrace::aten

// libmillrace_torch.so exports it: LoadPackage.
extern "C" void MillraceLoadTorchPackage(
    const millrace::ModelSpec& model, const millrace::TorchSpec& device,
    absl::StatusOr<std::unique_ptr<millrace::TensorModel>>* loaded);

#endif  // MILLRACE_EXECUTORS_TORCH_PACKAGE_MODEL_H_
