# LibTorch is used where scripts/fetch_torch.sh has put it (`make test` calls it). Without it millraced is built all the same, and
# refuses --device torch by name. It is private to executors/torch, which becomes libmillrace_torch.so: the server opens it when it
# is asked for, so that neither start nor image of the default server pays for half a gigabyte.
#
# Plain imported targets, not find_package(Torch): that asks for CUDA's whole toolkit.
set(MILLRACE_TORCH AUTO CACHE STRING "Build --device torch: AUTO (where LibTorch has been fetched), ON or OFF")
set_property(CACHE MILLRACE_TORCH PROPERTY STRINGS AUTO ON OFF)

if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(_torch "$ENV{XDG_CACHE_HOME}")
else()
  set(_torch "$ENV{HOME}/.cache")
endif()
# As cache_path in scripts/common.sh.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS scripts/pypi/torch.txt)
file(SHA256 "${CMAKE_SOURCE_DIR}/scripts/pypi/torch.txt" _digest)
string(SUBSTRING "${_digest}" 0 12 _digest)
set(_torch "${_torch}/millrace/torch-${_digest}")

set(MILLRACE_HAS_TORCH OFF)
# It is not instrumented: what the sanitizers would say of it is wrong.
if(MILLRACE_TORCH STREQUAL "ON" AND MILLRACE_SANITIZE)
  message(FATAL_ERROR "MILLRACE_TORCH is ON and MILLRACE_SANITIZE ${MILLRACE_SANITIZE}: LibTorch is not instrumented; allowed: AUTO or OFF")
endif()
if(NOT MILLRACE_TORCH STREQUAL "OFF" AND NOT MILLRACE_SANITIZE)
  if(EXISTS "${_torch}/lib/libtorch_cpu.so")
    set(MILLRACE_HAS_TORCH ON)
  elseif(MILLRACE_TORCH STREQUAL "ON")
    message(FATAL_ERROR "MILLRACE_TORCH is ON, but LibTorch is not in the cache folder: scripts/fetch_torch.sh puts it there")
  endif()
endif()

if(MILLRACE_HAS_TORCH)
  foreach(library c10 torch_cpu)
    add_library(${library} SHARED IMPORTED GLOBAL)
    set_target_properties(${library} PROPERTIES IMPORTED_LOCATION "${_torch}/lib/lib${library}.so"
                                                INTERFACE_INCLUDE_DIRECTORIES "${_torch}/include")
  endforeach()
  # Where the linker finds what libtorch_cpu.so needs in its turn.
  set_target_properties(torch_cpu PROPERTIES INTERFACE_LINK_LIBRARIES c10 INTERFACE_LINK_OPTIONS "-Wl,-rpath-link,${_torch}/lib")
endif()
