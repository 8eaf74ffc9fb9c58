# CUDA is used where its toolkit is found. Without it millraced is built all the same, and refuses --device cuda by name.
#
# The CUDA runtime is linked statically and cuBLASLt is opened when a model is loaded onto a GPU (kernels/gemm/cublaslt_api.h):
# one program serves with and without a GPU, on machines that have none of these libraries.
set(MILLRACE_CUDA AUTO CACHE STRING "Build the GPU path: AUTO (where a CUDA toolkit is found), ON or OFF")
set_property(CACHE MILLRACE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MILLRACE_CUDA_ARCHITECTURES "90a" CACHE STRING "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES takes them: 90a, 89, 80")

set(MILLRACE_HAS_CUDA OFF)
# The sanitizers of the host know nothing of device code.
if(NOT MILLRACE_CUDA STREQUAL "OFF" AND NOT MILLRACE_SANITIZE)
  find_program(MILLRACE_NVCC nvcc PATHS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
  if(MILLRACE_NVCC)
    set(MILLRACE_HAS_CUDA ON)
  elseif(MILLRACE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MILLRACE_CUDA is ON, but there is no nvcc in PATH, /usr/local/cuda/bin or CUDA_HOME")
  endif()
endif()

if(MILLRACE_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER "${MILLRACE_NVCC}")
  set(CMAKE_CUDA_ARCHITECTURES "${MILLRACE_CUDA_ARCHITECTURES}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # CMake 3.25.1 does not know that CUDA 12 and later speak it.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit 13 REQUIRED)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG -lineinfo")
endif()
