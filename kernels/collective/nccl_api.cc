#include "kernels/collective/nccl_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace millrace::kernels {
namespace {

// The part of NCCL 2's interface that is used here, after its documentation.
struct UniqueId {
  char bytes[128];
};
static_assert(sizeof(UniqueId) == sizeof(NcclId));
constexpr int kSuccess = 0;
constexpr int kInProgress = 7;
constexpr int kInt8 = 0;
constexpr int kBfloat16 = 9;
constexpr int kSum = 0;

struct Library {
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*init_rank)(void**, int, UniqueId, int) = nullptr;
  int (*abort)(void*) = nullptr;
  int (*async_error)(void*, int*) = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, void*, cudaStream_t) = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  std::string error;

  Library() {
    setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/1);
    // Never closed again: the library has threads of its own.
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      error = dlerror();
      library = dlopen("/usr/local/cuda/lib64/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      error = "libnccl.so.2 cannot be opened (" + error +
              "): install NCCL or put its folder into LD_LIBRARY_PATH";
      return;
    }
    error.clear();
    Resolve(library, "ncclGetVersion", &get_version);
    Resolve(library, "ncclGetUniqueId", &get_unique_id);
    Resolve(library, "ncclCommInitRank", &init_rank);
    Resolve(library, "ncclCommAbort", &abort);
    Resolve(library, "ncclCommGetAsyncError", &async_error);
    Resolve(library, "ncclGetErrorString", &error_string);
    Resolve(library, "ncclAllGather", &all_gather);
    Resolve(library, "ncclAllReduce", &all_reduce);
  }

  template <typename Function>
  void Resolve(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr && error.empty()) error.append("libnccl.so.2 lacks ").append(name);
  }
};

const Library& TheLibrary() {
  static const Library library;
  return library;
}

}  // namespace

bool Nccl::MakeId(NcclId* id, std::string* error) {
  const Library& nccl = TheLibrary();
  *error = nccl.error;
  if (!error->empty()) return false;
  UniqueId made;
  if (const int result = nccl.get_unique_id(&made); result != kSuccess) {
    *error = std::string("NCCL: ") + nccl.error_string(result);
    return false;
  }
  std::copy(std::begin(made.bytes), std::end(made.bytes), id->begin());
  return true;
}

std::unique_ptr<Nccl> Nccl::Join(const NcclId& id, int ranks, int rank, std::string* error) {
  const Library& nccl = TheLibrary();
  *error = nccl.error;
  if (!error->empty()) return nullptr;
  UniqueId shared;
  std::copy(id.begin(), id.end(), shared.bytes);
  void* communicator = nullptr;
  if (const int result = nccl.init_rank(&communicator, ranks, shared, rank); result != kSuccess) {
    *error = std::string("NCCL: ") + nccl.error_string(result);
    return nullptr;
  }
  return std::unique_ptr<Nccl>(new Nccl(communicator, ranks, rank));
}

Nccl::~Nccl() { Abort(); }

cudaError_t Nccl::AllGather(const void* send, void* gathered, size_t bytes, cudaStream_t stream) {
  void* const communicator = communicator_;
  if (communicator == nullptr) return cudaErrorUnknown;
  return Check(TheLibrary().all_gather(send, gathered, bytes, kInt8, communicator, stream));
}

cudaError_t Nccl::AllReduce(const Bf16* send, Bf16* sum, size_t count, cudaStream_t stream) {
  void* const communicator = communicator_;
  if (communicator == nullptr) return cudaErrorUnknown;
  return Check(TheLibrary().all_reduce(send, sum, count, kBfloat16, kSum, communicator, stream));
}

cudaError_t Nccl::Check(int result) {
  if (result == kSuccess || result == kInProgress) return cudaSuccess;
  int none = kSuccess;
  result_.compare_exchange_strong(none, result);
  return cudaErrorUnknown;
}

std::string Nccl::error() const {
  int result = result_;
  void* const communicator = communicator_;
  if (result == kSuccess && communicator != nullptr) {
    (void)TheLibrary().async_error(communicator, &result);
  }
  if (result == kSuccess || result == kInProgress) {
    return communicator == nullptr ? "NCCL: aborted" : "";
  }
  return std::string("NCCL: ") + TheLibrary().error_string(result);
}

void Nccl::Abort() {
  if (void* const communicator = communicator_.exchange(nullptr); communicator != nullptr) {
    (void)TheLibrary().abort(communicator);
  }
}

}  // namespace millrace::kernels
