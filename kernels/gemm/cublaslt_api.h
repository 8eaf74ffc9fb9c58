// cuBLASLt, opened when the first model is loaded onto a GPU: the program starts on machines that
// have no CUDA libraries, and takes the cuBLASLt that the machine has (its major version must be
// the one of the headers we were built with).
#ifndef MILLRACE_KERNELS_GEMM_CUBLASLT_API_H_
#define MILLRACE_KERNELS_GEMM_CUBLASLT_API_H_

#include <cublasLt.h>

#include <memory>
#include <string>

namespace millrace::kernels {

// The library's functions that we use, and a handle for the device that was current when it was
// opened. Constant after Open: any thread may use it, and several at a time.
class CublasLt {
 public:
  // Looks for the library as the loader does (LD_LIBRARY_PATH, the system's folders) and then where
  // CUDA's toolkit installs it. Null, with the reason in *error, where there is none, where it is
  // of another major version or lacks a function, or where the device refuses a handle.
  static std::unique_ptr<CublasLt> Open(std::string* error);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  size_t version() const { return get_version(); }  // 130100 is 13.1.0

  // Named after the functions less their prefix.
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) matmul_algo_check;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) matmul_algo_config_get_attribute;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) matmul_algo_config_set_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic;
  decltype(&cublasLtMatmulAlgoInit) matmul_algo_init;
  decltype(&cublasLtMatmulDescInit_internal) matmul_desc_init;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
  decltype(&cublasLtMatmulPreferenceInit_internal) matmul_preference_init;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute;
  decltype(&cublasLtMatrixLayoutInit_internal) matrix_layout_init;

 private:
  CublasLt() = default;
  // Returns the name of the first function that the library lacks; empty if it has them all.
  std::string ResolveAll(void* library);

  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_CUBLASLT_API_H_
