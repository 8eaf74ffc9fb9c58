// millraced: serves a model until it is told to stop; `millraced chat` talks to one, and
// `millraced health` asks a running server for its health; config/commands.cc lists the others.
//
// Exit status: 0 after a drain, a signal while a model is fetched or loaded, a measurement, and for
// --help; 1 when it cannot start, figures are void, or a server is not well; 70 (EX_SOFTWARE) when
// the device or another node has failed, so that a supervisor starts it anew; 128 + n when a second
// signal n ends it at once.
#include <malloc.h>
#include <sys/resource.h>
#include <sysexits.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/event.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/memory_trimmer.h"
#include "base/status.h"
#include "config/load.h"
#include "executors/factory.h"
#include "formats/files/shrunk_files.h"
#include "server/bench/bench.h"
#include "server/chat/chat.h"
#include "server/convert/convert.h"
#include "server/doctor/doctor.h"
#include "server/doctor/memory_report.h"
#include "server/health.h"
#include "server/local_models.h"
#include "server/model_location.h"
#include "server/node.h"
#include "server/reloader.h"
#include "server/server.h"
#include "server/signals.h"
#include "server/startup_guard.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

// How long a device that hangs may hold up the end.
constexpr Duration kLongestEnd = std::chrono::seconds(10);
// How long a node may take to end once another one has failed.
constexpr Duration kLastWords = std::chrono::seconds(1);

// Each client takes a file descriptor. The soft limit of most shells and containers is 1024, for
// the sake of programs that use select().
void AllowManyConnections() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) kLog.Warning("cannot raise the limit of open files");
}

absl::Status SetUp(const Startup& startup) {
  SetLogFormat(startup.settings.log_format);
  MILLRACE_RETURN_IF_ERROR(SetLogLevels(startup.settings.log));
  for (const std::string& warning : startup.warnings) kLog.Warning(warning);
  if (!startup.given.empty()) kLog.Info("settings: ", startup.given);
  AllowManyConnections();
  if (startup.settings.faults.empty()) return absl::OkStatus();
  MILLRACE_RETURN_IF_ERROR(ArmFaultPoints(startup.settings.faults));
  kLog.Warning("faults are armed, which is for tests alone: ", startup.settings.faults);
  return absl::OkStatus();
}

// Every request has its end; what is left are a device's steps in flight, which may never finish.
void EndEvenIfTheDeviceHangs(int status, Duration after = kLongestEnd) {
  std::thread([status, after] {
    std::this_thread::sleep_for(after);
    std::_Exit(status);
  }).detach();
}

// Runs as another node than node 0. The first signal asks node 0 to end, and this node with it.
int Follow(const Settings& settings, std::atomic<bool>& stop) {
  NodeEvents events;
  events.on_failure = [] { EndEvenIfTheDeviceHangs(EX_SOFTWARE, kLastWords); };
  events.on_leave = [&] {
    // Node 0 serves on during the delay and the drain, and needs this node's ranks for that.
    EndEvenIfTheDeviceHangs(EXIT_SUCCESS,
                            settings.drain_delay + settings.drain_timeout + kLongestEnd);
  };
  events.on_end = [&] {
    stop = true;  // what is still fetched is not needed
    EndEvenIfTheDeviceHangs(EXIT_SUCCESS);
  };
  const absl::Status status = FollowNode0(settings, events, stop);
  if (status.ok()) return EXIT_SUCCESS;
  if (absl::IsCancelled(status)) {
    kLog.Info(std::string(status.message()));
    return EXIT_SUCCESS;
  }
  const bool failed = absl::IsUnavailable(status);
  kLog.Error(failed ? "ended: " : "cannot start: ", std::string(status.message()));
  std::fflush(nullptr);
  std::_Exit(failed ? EX_SOFTWARE : EXIT_FAILURE);
}

int Bench(const Startup& startup) {
  absl::Status status = SetUp(startup);
  if (status.ok()) status = RunBench(startup.settings, startup.given);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "millraced bench: %s\n", std::string(status.message()).c_str());
  std::fflush(nullptr);
  std::_Exit(EXIT_FAILURE);  // where a kernel never ends, so does what CUDA does in exit()
}

// Prints the plan of memory. Returns whether the machine has as much.
absl::StatusOr<bool> DryRun(Settings settings) {
  settings.offline = true;  // A plan does not fetch gigabytes.
  MILLRACE_ASSIGN_OR_RETURN(const std::string path, ModelPath(settings));
  const absl::StatusOr<MemoryReport> report = ReportMemory(settings, path);
  if (!report.ok()) return ExplainModelError(settings, path, report.status());
  std::fputs(MemoryReportText(*report).c_str(), stdout);
  return report->fits();
}

int Chat(Startup startup) {
  // The terminal is the conversation's.
  if (!startup.values.contains("log")) startup.settings.log = "warning";
  startup.given.clear();
  absl::Status status = SetUp(startup);
  if (status.ok()) status = RunChat(startup);
  if (!status.ok()) {
    std::fprintf(stderr, "millraced chat: %s\n", std::string(status.message()).c_str());
  }
  std::fflush(nullptr);
  FlushLogs(std::chrono::seconds(1));
  std::_Exit(status.ok() ? EXIT_SUCCESS : EXIT_FAILURE);
}

int Health(const Settings& settings) {
  const absl::Status status = AskForHealth(settings);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "millraced health: %s\n", std::string(status.message()).c_str());
  return EXIT_FAILURE;
}

// Runs the commands that print what they find: get, list, rm, convert, doctor, and --dry-run.
int RunCommand(const Startup& startup) {
  std::atomic<bool> stop = false;
  SignalWatcher signals([&stop] { stop = true; }, [] {});
  Startup quiet = startup;
  quiet.given.clear();  // what was given stands on the screen
  absl::Status status = SetUp(quiet);
  const Settings& settings = startup.settings;
  if (status.ok()) {
    switch (startup.command) {
      case Command::kGet:
        status = GetModel(settings, stop);
        break;
      case Command::kList:
        status = ListModels();
        break;
      case Command::kRemove:
        status = RemoveModel(settings);
        break;
      case Command::kConvert:
        status = RunConvert(settings, stop);
        break;
      case Command::kDoctor: {
        const std::vector<Finding> findings = Examine(settings);
        std::fputs(FindingsText(findings).c_str(), stdout);
        return HasErrors(findings) ? EXIT_FAILURE : EXIT_SUCCESS;
      }
      default: {
        const absl::StatusOr<bool> fits = DryRun(settings);
        if (fits.ok()) return *fits ? EXIT_SUCCESS : EXIT_FAILURE;
        status = fits.status();
      }
    }
  }
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "millraced: %s\n", std::string(status.message()).c_str());
  return EXIT_FAILURE;
}

int PrintKernels() {
  const absl::StatusOr<std::string> table = CudaKernelTable();
  if (!table.ok()) {
    std::fprintf(stderr, "millraced: %s\n", std::string(table.status().message()).c_str());
    return EXIT_FAILURE;
  }
  std::fputs(table->c_str(), stdout);
  return EXIT_SUCCESS;
}

[[noreturn]] void End(int status) {
  FlushLogs(std::chrono::seconds(1));
  std::_Exit(status);
}

int Serve(const Startup& startup, const Reloader::Load& load) {
  auto guard = std::make_unique<StartupGuard>();
  Event end;
  std::atomic<bool> failed = false;
  std::atomic<bool> started = false;
  std::atomic<bool> stop = false;
  Reloader reloader(load, startup);
  SignalWatcher signals(
      [&] {
        stop = true;
        end.Raise();
      },
      [&] { reloader.Reload(); });
  if (absl::Status status = SetUp(startup); !status.ok()) {
    kLog.Error(std::string(status.message()));
    End(EXIT_FAILURE);
  }
  const MemoryTrimmer trimmer;
  if (startup.settings.node_rank > 0) {
    guard.reset();
    return Follow(startup.settings, stop);
  }
  NodeEvents events;
  events.on_failure = [&] {
    failed = true;
    end.Raise();
    // Another node's failure does not wait until this one has loaded its model.
    if (!started) EndEvenIfTheDeviceHangs(stop ? EXIT_SUCCESS : EX_SOFTWARE, kLastWords);
  };
  events.on_leave = [&] {
    stop = true;
    end.Raise();
  };
  events.on_end = [] { EndEvenIfTheDeviceHangs(EXIT_SUCCESS); };
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(startup.settings, events, stop);
  // A server that began is not taken down: where threads or memory are short, that may hang.
  if (absl::IsCancelled(server.status())) {
    kLog.Info(std::string(server.status().message()));
    End(EXIT_SUCCESS);
  }
  if (!server.ok()) {
    kLog.Error("cannot start: ", std::string(server.status().message()));
    End(failed ? EX_SOFTWARE : EXIT_FAILURE);
  }
  started = true;
  guard.reset();
  reloader.Connect(
      [&server](const Settings& settings) { return (*server)->SetAllowedHosts(settings); },
      [&server] { (*server)->ReloadCertificates(); });
  (*server)->Follow(reloader.reading());
  end.Wait();
  const bool free = reloader.Disconnect(kLastWords);
  if (!failed) (*server)->Drain();
  if (failed) {
    (*server)->CloseAfterFailure();
    End(EX_SOFTWARE);
  }
  if (!free) End(EXIT_SUCCESS);  // a reload hangs, and has the server
  EndEvenIfTheDeviceHangs(EXIT_SUCCESS);
  server->reset();
  FlushLogs(std::chrono::seconds(1));
  return EXIT_SUCCESS;
}

// Keeps freed memory for the next step. Its events are a megabyte where thousands of streams run,
// which the C library would give back to the system and fault in again, page by page, each time.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

int Run(int argc, char** argv) {
  KeepFreedMemory();
  ExplainShrunkFiles();
  absl::StatusOr<Startup> startup = LoadSettings(argc, argv);
  if (!startup.ok()) {
    std::fprintf(stderr, "millraced: %s\n", std::string(startup.status().message()).c_str());
    return EXIT_FAILURE;
  }
  if (!startup->print.empty()) {
    const bool usage = startup->command == Command::kUsage;
    std::fputs(startup->print.c_str(), usage ? stderr : stdout);
    return usage ? EXIT_FAILURE : EXIT_SUCCESS;
  }
  if (startup->command == Command::kPrintKernels) return PrintKernels();
  if (startup->command == Command::kHealth) return Health(startup->settings);
  if (startup->command == Command::kBench) return Bench(*startup);
  if (startup->command == Command::kChat) return Chat(*std::move(startup));
  if (startup->command != Command::kServe || startup->settings.dry_run) return RunCommand(*startup);
  // A reload waits for nobody who writes a pipe.
  return Serve(*startup, [argc, argv] { return LoadSettings(argc, argv, Pipes::kRefuse); });
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::Run(argc, argv); }
