#include "executors/cuda/trace.h"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace millrace::cuda {
namespace {

constexpr char kLibrary[] = "libcupti.so.13";
constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

// ---- The library ----

struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) get_next_record;
  decltype(&cuptiActivityGetNumDroppedRecords) get_num_dropped_records;
  decltype(&cuptiGetResultString) get_result_string;
};

absl::StatusOr<Cupti> OpenCupti() {
  void* library = nullptr;
  for (const char* folder : {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/"}) {
    library = dlopen(absl::StrCat(folder, kLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "trace: ", kLibrary,
        " cannot be opened: install CUPTI of CUDA 13 or put its folder into LD_LIBRARY_PATH"));
  }
  Cupti cupti;
  std::string missing;
  const auto resolve = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  resolve("cuptiActivityRegisterCallbacks", cupti.register_callbacks);
  resolve("cuptiActivityEnable", cupti.enable);
  resolve("cuptiActivityDisable", cupti.disable);
  resolve("cuptiActivityFlushAll", cupti.flush_all);
  resolve("cuptiActivityGetNextRecord", cupti.get_next_record);
  resolve("cuptiActivityGetNumDroppedRecords", cupti.get_num_dropped_records);
  resolve("cuptiGetResultString", cupti.get_result_string);
  if (!missing.empty()) {
    return absl::UnavailableError(absl::StrCat("trace: ", kLibrary, " lacks ", missing));
  }
  return cupti;
}

// ---- The records ----

std::string Demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string demangled = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return demangled;
}

const char* MemcpyName(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "memcpy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "memcpy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "memcpy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "memcpy peer to peer";
    default:
      return "memcpy";
  }
}

// The receiver of records. CUPTI supports one per process, without a user argument, so it is
// global. It lives as long as the process, since CUPTI may call back at exit.
class Recorder {
 public:
  static Recorder& Get() {
    static Recorder* const recorder = new Recorder;
    return *recorder;
  }

  absl::Status Open() {
    std::lock_guard lock(mutex_);
    if (cupti_.has_value()) return absl::OkStatus();
    MILLRACE_ASSIGN_OR_RETURN(cupti_, OpenCupti());
    return absl::OkStatus();
  }

  absl::Status Start() {
    MILLRACE_RETURN_IF_ERROR(Open());
    std::unique_lock lock(mutex_);
    MILLRACE_RETURN_IF_ERROR(RegisterOnce());
    if (recording_) return absl::FailedPreconditionError("trace: one is running already");
    recording_ = true;
    operations_.clear();
    kernel_places_.clear();
    dropped_ = 0;
    lock.unlock();
    for (const CUpti_ActivityKind kind : kKinds) {
      absl::Status status = Check(cupti_->enable(kind), "cuptiActivityEnable");
      if (!status.ok()) {
        (void)Stop();
        return status;
      }
    }
    return absl::OkStatus();
  }

  // CUPTI delivers its buffers during flush_all, so the lock is not held then.
  absl::StatusOr<std::vector<DeviceOperation>> Stop() {
    const CUptiResult flushed = cupti_->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    for (const CUpti_ActivityKind kind : kKinds) cupti_->disable(kind);
    std::lock_guard lock(mutex_);
    recording_ = false;
    std::vector<DeviceOperation> operations = TakeOperations();
    MILLRACE_RETURN_IF_ERROR(Check(flushed, "cuptiActivityFlushAll"));
    if (dropped_ > 0) {
      return absl::ResourceExhaustedError(absl::StrCat("trace: CUPTI lost ", dropped_, " records"));
    }
    std::sort(
        operations.begin(), operations.end(),
        [](const DeviceOperation& a, const DeviceOperation& b) { return a.begin_ns < b.begin_ns; });
    return operations;
  }

 private:
  using Place = std::pair<uint32_t, uint32_t>;  // a device and a stream of it

  // Returns the operations of all streams that ran kernels, or of all if none did.
  std::vector<DeviceOperation> TakeOperations() {
    std::vector<DeviceOperation> taken;
    for (auto& [place, operation] : std::exchange(operations_, {})) {
      const auto at = kernel_places_.find(place);
      if (at == kernel_places_.end() && !kernel_places_.empty()) continue;
      operation.rank = static_cast<int32_t>(std::distance(kernel_places_.begin(), at));
      taken.push_back(std::move(operation));
    }
    return taken;
  }

  absl::Status RegisterOnce() {
    if (registered_) return absl::OkStatus();
    MILLRACE_RETURN_IF_ERROR(Check(cupti_->register_callbacks(RequestBuffer, TakeBuffer),
                                   "cuptiActivityRegisterCallbacks"));
    registered_ = true;
    return absl::OkStatus();
  }

  absl::Status Check(CUptiResult result, const char* what) const {
    if (result == CUPTI_SUCCESS) return absl::OkStatus();
    const char* text = nullptr;
    cupti_->get_result_string(result, &text);
    return absl::UnavailableError(
        absl::StrCat("trace: ", what, ": ", text != nullptr ? text : "unknown error"));
  }

  // A null buffer makes CUPTI drop and count records.
  static void CUPTIAPI RequestBuffer(uint8_t** buffer, size_t* size, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::malloc(kBufferBytes));
    *size = *buffer != nullptr ? kBufferBytes : 0;
    *most_records = 0;  // as many as fit
  }

  static void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                                  size_t valid_bytes) {
    Get().Take(context, stream, buffer, valid_bytes);
    std::free(buffer);
  }

  void Take(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid_bytes) {
    std::lock_guard lock(mutex_);
    size_t dropped = 0;
    cupti_->get_num_dropped_records(context, stream, &dropped);
    dropped_ += dropped;
    CUpti_Activity* record = nullptr;
    while (cupti_->get_next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) Add(*record);
  }

  void Add(const CUpti_Activity& record) {
    if (!recording_) return;
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
        const Place place(kernel.deviceId, kernel.streamId);
        kernel_places_.insert(place);
        AddOperation(place, KernelName(kernel.name), kernel.start, kernel.end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
        AddOperation({copy.deviceId, copy.streamId}, MemcpyName(copy.copyKind), copy.start,
                     copy.end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& set = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        AddOperation({set.deviceId, set.streamId}, "memset", set.start, set.end);
        break;
      }
      default:
        break;
    }
  }

  // A record without an end was still running when the buffers were flushed.
  void AddOperation(const Place& place, std::string name, uint64_t begin_ns, uint64_t end_ns) {
    if (end_ns == 0 || end_ns < begin_ns) return;
    operations_.push_back(
        {place, {std::move(name), static_cast<int64_t>(begin_ns), static_cast<int64_t>(end_ns)}});
  }

  const std::string& KernelName(const char* mangled) {
    const std::string key = mangled != nullptr ? mangled : "unnamed kernel";
    const auto [found, is_new] = names_.try_emplace(key);
    if (is_new) found->second = Demangled(key.c_str());
    return found->second;
  }

  std::optional<Cupti> cupti_;  // set once, under mutex_, before any callback
  std::mutex mutex_;            // guards the members below
  bool registered_ = false;
  bool recording_ = false;
  size_t dropped_ = 0;
  std::vector<std::pair<Place, DeviceOperation>> operations_;
  std::set<Place> kernel_places_;                       // streams that ran kernels
  std::unordered_map<std::string, std::string> names_;  // mangled to demangled
};

class CudaTrace final : public DeviceTrace {
 public:
  ~CudaTrace() override {
    if (!stopped_) (void)Recorder::Get().Stop();
  }
  absl::StatusOr<std::vector<DeviceOperation>> Stop() override {
    stopped_ = true;
    return Recorder::Get().Stop();
  }

 private:
  bool stopped_ = false;
};

}  // namespace

absl::Status CanTrace() { return Recorder::Get().Open(); }

absl::StatusOr<std::unique_ptr<DeviceTrace>> StartCudaTrace() {
  MILLRACE_RETURN_IF_ERROR(Recorder::Get().Start());
  return std::make_unique<CudaTrace>();
}

}  // namespace millrace::cuda
