// Logging with a level per component and a request id on lines that concern one request, as text or
// JSON.
//
//   constexpr Logger kLog(LogComponent::kEngine);
//   kLog.Info("preempted ", count, " sequences");
//   kLog.ForRequest(id).Debug("took slot ", slot);
//
// A line is written to stderr before the call returns if stderr takes it at once, so the last line
// before a crash is not lost. No call waits for who reads stderr: lines wait in a bounded queue,
// and are dropped and counted beyond it. A message is always one line. Messages never contain
// prompt or completion text unless the operator enabled it (--log-prompts).
#ifndef MILLRACE_BASE_LOG_H_
#define MILLRACE_BASE_LOG_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/strings.h"

namespace millrace {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat : uint8_t { kText, kJson };

// Parts of the program with a log level of their own. kLogComponentNames are the names that --log
// accepts.
enum class LogComponent : uint8_t {
  kExecutors,
  kEngine,
  kText,
  kHttp,
  kGrpc,
  kHub,
  kServer,
};
inline constexpr std::array<std::string_view, 7> kLogComponentNames = {
    "executors", "engine", "text", "http", "grpc", "hub", "server"};

namespace log_internal {
// The initial level is kInfo (zero-initialization would be kDebug), until SetLogLevels.
inline constinit std::array<std::atomic<LogLevel>, kLogComponentNames.size()> levels = {
    LogLevel::kInfo, LogLevel::kInfo, LogLevel::kInfo, LogLevel::kInfo,
    LogLevel::kInfo, LogLevel::kInfo, LogLevel::kInfo};
void Write(LogLevel level, LogComponent component, std::string_view request_id,
           std::string_view message);
}  // namespace log_internal

// Logs for a component and, optionally, a request. A small value; safe to use from any thread.
class Logger {
 public:
  constexpr explicit Logger(LogComponent component) : component_(component) {}

  // Returns a logger for one request of this component. `id` must outlive the returned logger.
  constexpr Logger ForRequest(std::string_view id) const {
    Logger logger(component_);
    logger.request_id_ = id;
    return logger;
  }

  // Returns whether `level` is on. Needed only where a message is costly to prepare, since the
  // calls below check it themselves.
  bool Enabled(LogLevel level) const {
    return level >=
           log_internal::levels[static_cast<size_t>(component_)].load(std::memory_order_relaxed);
  }

  // Logs the concatenation (StrCat) of the pieces, which is built only if the level is on.
  template <typename... Pieces>
  void Debug(const Pieces&... pieces) const {
    Log(LogLevel::kDebug, pieces...);
  }
  template <typename... Pieces>
  void Info(const Pieces&... pieces) const {
    Log(LogLevel::kInfo, pieces...);
  }
  template <typename... Pieces>
  void Warning(const Pieces&... pieces) const {
    Log(LogLevel::kWarning, pieces...);
  }
  template <typename... Pieces>
  void Error(const Pieces&... pieces) const {
    Log(LogLevel::kError, pieces...);
  }

 private:
  template <typename... Pieces>
  void Log(LogLevel level, const Pieces&... pieces) const {
    if (!Enabled(level)) return;
    log_internal::Write(level, component_, request_id_, StrCat(pieces...));
  }

  LogComponent component_;
  std::string_view request_id_;
};

// Sets every component's level at run time: in "info,engine=debug,http=off" the first entry applies
// to all other components, and info is the default. Returns InvalidArgument, naming the wrong part
// and the allowed values, and changes nothing if `spec` is invalid.
absl::Status SetLogLevels(std::string_view spec);

// Checks `spec` as SetLogLevels does, without any effect.
absl::Status CheckLogLevels(std::string_view spec);

// Returns the current levels in the format of SetLogLevels.
std::string LogLevels();

// Sets the format of log lines. Text is the default:
//   2026-11-21T09:30:00.000Z info engine [request-id] message
// JSON lines are objects with time, level, component, request_id (if any) and message.
void SetLogFormat(LogFormat format);

// Returns how many lines were dropped since the start.
uint64_t DroppedLogLines();

// Waits until stderr has taken all lines, at most for `most`. Called when the process is about to
// end.
void FlushLogs(Duration most);

}  // namespace millrace

#endif  // MILLRACE_BASE_LOG_H_
