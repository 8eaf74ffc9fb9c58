// Logging: a level for each component, a request's id on each line that concerns one, text or JSON.
//
//   constexpr Logger kLog(LogComponent::kEngine);
//   kLog.Info("preempted ", count, " sequences");
//   kLog.ForRequest(id).Debug("took slot ", slot);
//
// A line goes to stderr before the call returns, so the last line before a crash is there. It is
// one line whatever the message holds. Messages never carry prompt or completion text unless the
// operator asked for it (--log-prompts).
#ifndef MILLRACE_BASE_LOG_H_
#define MILLRACE_BASE_LOG_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/strings.h"

namespace millrace {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat : uint8_t { kText, kJson };

// The parts of the program that have a level of their own, by the names that --log takes.
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
// Every level is kInfo (zero-initialization would be kDebug) until SetLogLevels.
inline constinit std::array<std::atomic<LogLevel>, kLogComponentNames.size()> levels = {
    LogLevel::kInfo, LogLevel::kInfo, LogLevel::kInfo, LogLevel::kInfo,
    LogLevel::kInfo, LogLevel::kInfo, LogLevel::kInfo};
void Write(LogLevel level, LogComponent component, std::string_view request_id,
           std::string_view message);
}  // namespace log_internal

// A component's voice, and perhaps a request's. A small value; safe to use from any thread.
class Logger {
 public:
  constexpr explicit Logger(LogComponent component) : component_(component) {}

  // The same component, speaking of one request. `id` must outlive the returned logger.
  constexpr Logger ForRequest(std::string_view id) const {
    Logger logger(component_);
    logger.request_id_ = id;
    return logger;
  }

  // For what is costly to prepare: the calls below check this themselves.
  bool Enabled(LogLevel level) const {
    return level >=
           log_internal::levels[static_cast<size_t>(component_)].load(std::memory_order_relaxed);
  }

  // The pieces are put together as StrCat does it, and only if the level is on.
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

// Sets every component's level, live: "info,engine=debug,http=off" gives the rest info, which is
// also what an absent default means. InvalidArgument, changing nothing, names the part that is
// wrong and what is allowed.
absl::Status SetLogLevels(std::string_view spec);

// The same check without the effect.
absl::Status CheckLogLevels(std::string_view spec);

// The levels in force, as SetLogLevels takes them.
std::string LogLevels();

// Text (the default): `2026-11-21T09:30:00.000Z info engine [request-id] message`.
// JSON: an object a line: time, level, component, request_id (if there is one), message.
void SetLogFormat(LogFormat format);

}  // namespace millrace

#endif  // MILLRACE_BASE_LOG_H_
