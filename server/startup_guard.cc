#include "server/startup_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/control_group.h"
#include "base/log.h"
#include "base/strings.h"
#include "config/value.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

constexpr std::string_view kNoThread =
    "the system gives no further thread; raise the limit that holds: processes (ulimit -u), the "
    "control group's pids.max, address space (ulimit -v)";
constexpr std::string_view kNoMemory =
    "the system gives no more memory; raise the limit that holds: the control group's memory.max, "
    "address space (ulimit -v)";
constexpr char kAborted[] =
    "millraced: cannot start: a library gave up, most likely for want of threads or memory; see "
    "ulimit -u, ulimit -v and the control group's pids.max and memory.max\n";

// Memory may be what is missing, so the log is only tried.
[[noreturn]] void End(std::string_view why) {
  try {
    kLog.Error("cannot start: ", why);
    FlushLogs(std::chrono::seconds(1));
  } catch (...) {
    (void)!write(STDERR_FILENO, kAborted, sizeof(kAborted) - 1);
  }
  std::_Exit(EXIT_FAILURE);
}

[[noreturn]] void OnTerminate() {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) End(kNoThread);
    End(error.what());
  } catch (const std::bad_alloc&) {
    End(kNoMemory);
  } catch (const std::exception& error) {
    End(error.what());
  } catch (...) {
  }
  End("an error that has no name");
}

void OnAbort(int) {
  (void)!write(STDERR_FILENO, kAborted, sizeof(kAborted) - 1);
  _exit(EXIT_FAILURE);
}

// Address space for libraries beside threads' stacks, an allocator's arenas above all.
// Nothing of it is used here.
constexpr size_t kReserve = size_t{256} << 20;

// gRPC's, the endpoints', the text pool's, the engine's and those that only live during the start.
// Measured: a server with the fake device has 40 threads on 2 cores; 3 more make masks.
int ThreadsOf(const Settings& settings) {
  constexpr int kOthers = 42;
  const int cores = UsableCores();
  const bool computes = settings.device == Device::kCpu || settings.device == Device::kTorch;
  const int threads = settings.threads > 0 ? settings.threads : cores;
  return kOthers + std::min(2 * cores, 32) + (computes ? threads : 0);
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  return ParseNumber<int64_t>(text);  // "max" is none
}

// Returns the limits of the process's control group and of those around it, of both versions.
std::vector<int64_t> GroupLimits() {
  std::vector<int64_t> limits;
  for (const ControlGroup& group : ControlGroupsOf("memory")) {
    const char* const name = group.version2 ? "memory.max" : "memory.limit_in_bytes";
    if (const auto limit = ReadNumber(group.folder / name)) limits.push_back(*limit);
  }
  return limits;
}

}  // namespace

StartupGuard::StartupGuard() : before_(std::set_terminate(OnTerminate)) {
  signal(SIGABRT, OnAbort);
}

StartupGuard::~StartupGuard() {
  signal(SIGABRT, SIG_DFL);
  std::set_terminate(before_);
}

StartupWatch::StartupWatch(std::string what, Duration most) {
  thread_ = std::thread([this, what = std::move(what), most] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, most, [this] { return done_; })) return;
    End(StrCat(what, " does not come up; threads or memory may be short (ulimit -u, ulimit -v)"));
  });
}

StartupWatch::~StartupWatch() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status CheckThreads(const Settings& settings) {
  std::mutex mutex;
  std::condition_variable changed;
  bool go = false;
  std::vector<std::thread> threads;
  absl::Status status;
  try {
    threads.reserve(ThreadsOf(settings));
    for (int i = 0; i < ThreadsOf(settings); ++i) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return go; });
      });
    }
    void* const space = mmap(nullptr, kReserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) {
      status = absl::ResourceExhaustedError(AbslView(kNoMemory));
    } else {
      munmap(space, kReserve);
    }
  } catch (const std::system_error&) {
    status = absl::ResourceExhaustedError(
        AbslView(StrCat(kNoThread, " (of the ", ThreadsOf(settings), " that it needs it got ",
                        threads.size(), ")")));
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError(AbslView(kNoMemory));
  }
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  return status;
}

int64_t MemoryLimit(std::string& whose) {
  whose = "this machine has";
  int64_t least = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const int64_t limit : GroupLimits()) {
    if (limit >= least) continue;
    least = limit;
    whose = "its control group allows";
  }
  rlimit space;
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY &&
      static_cast<int64_t>(space.rlim_cur) < least) {
    least = static_cast<int64_t>(space.rlim_cur);
    whose = "its address space (ulimit -v) allows";
  }
  return least;
}

absl::Status CheckKvCacheMemory(const Settings& settings) {
  if (settings.device != Device::kCpu && settings.device != Device::kTorch) return absl::OkStatus();
  std::string whose;
  const int64_t limit = MemoryLimit(whose);
  constexpr std::string_view kStates = "state-cache-memory";
  for (const auto& [name, bytes] :
       {std::pair(std::string_view("kv-cache-memory"), settings.kv_cache_memory),
        std::pair(kStates, settings.state_cache_memory)}) {
    if (bytes <= limit) continue;
    // LibTorch's checkpoints have a size that the start chose, where no flag did; most models have
    // none.
    if (name == kStates && (!settings.prefix_caching || settings.device == Device::kTorch))
      continue;
    return absl::InvalidArgumentError(
        AbslView(StrCat(name, ": got ", FormatSize(bytes), ", but ", whose, " ", limit >> 20,
                        "MiB, for the model, too")));
  }
  return absl::OkStatus();
}

}  // namespace millrace
