#include "kernels/gemm/cublaslt_api.h"

#include <dlfcn.h>

namespace millrace::kernels {
namespace {

std::string Name() { return "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR); }

// Never closed again: the library keeps state in the driver for as long as the process lives.
void* OpenLibrary(std::string* error) {
  if (void* library = dlopen(Name().c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  *error = dlerror();
  return dlopen(("/usr/local/cuda/lib64/" + Name()).c_str(), RTLD_NOW | RTLD_LOCAL);
}

// Sets *function, and *missing to the name of the first one that the library lacks.
template <typename Function>
void Resolve(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

}  // namespace

std::unique_ptr<CublasLt> CublasLt::Open(std::string* error) {
  void* const library = OpenLibrary(error);
  if (library == nullptr) {
    *error = Name() + " cannot be opened (" + *error + "): install cuBLAS of CUDA " +
             std::to_string(CUBLAS_VER_MAJOR) + " or put its folder into LD_LIBRARY_PATH";
    return nullptr;
  }
  error->clear();
  std::unique_ptr<CublasLt> lt(new CublasLt);
  const std::string missing = lt->ResolveAll(library);
  if (!missing.empty()) {
    *error = Name() + " lacks " + missing;
    return nullptr;
  }
  if (lt->version() / 10000 != CUBLAS_VER_MAJOR) {
    *error = Name() + " says that its version is " + std::to_string(lt->version()) +
             "; allowed: " + std::to_string(CUBLAS_VER_MAJOR) + ".x";
    return nullptr;
  }
  const cublasStatus_t status = lt->create(&lt->handle_);
  if (status != CUBLAS_STATUS_SUCCESS) {
    *error = "cublasLtCreate failed with status " + std::to_string(status);
    return nullptr;
  }
  return lt;
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) destroy(handle_);
}

std::string CublasLt::ResolveAll(void* library) {
  std::string missing;
  Resolve(library, "cublasLtCreate", &create, &missing);
  Resolve(library, "cublasLtDestroy", &destroy, &missing);
  Resolve(library, "cublasLtGetVersion", &get_version, &missing);
  Resolve(library, "cublasLtMatmul", &matmul, &missing);
  Resolve(library, "cublasLtMatmulAlgoCheck", &matmul_algo_check, &missing);
  Resolve(library, "cublasLtMatmulAlgoConfigGetAttribute", &matmul_algo_config_get_attribute,
          &missing);
  Resolve(library, "cublasLtMatmulAlgoConfigSetAttribute", &matmul_algo_config_set_attribute,
          &missing);
  Resolve(library, "cublasLtMatmulAlgoGetHeuristic", &matmul_algo_get_heuristic, &missing);
  Resolve(library, "cublasLtMatmulAlgoInit", &matmul_algo_init, &missing);
  Resolve(library, "cublasLtMatmulDescInit_internal", &matmul_desc_init, &missing);
  Resolve(library, "cublasLtMatmulDescSetAttribute", &matmul_desc_set_attribute, &missing);
  Resolve(library, "cublasLtMatmulPreferenceInit_internal", &matmul_preference_init, &missing);
  Resolve(library, "cublasLtMatmulPreferenceSetAttribute", &matmul_preference_set_attribute,
          &missing);
  Resolve(library, "cublasLtMatrixLayoutInit_internal", &matrix_layout_init, &missing);
  return missing;
}

}  // namespace millrace::kernels
