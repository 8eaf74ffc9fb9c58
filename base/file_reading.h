// The state of a file that a setting names and that is read again later: whether the last reading
// succeeded.
#ifndef MILLRACE_BASE_FILE_READING_H_
#define MILLRACE_BASE_FILE_READING_H_

#include <functional>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"

namespace millrace {

// Logs a reading that failed, each other reason at once, the same one again each minute, and keeps
// whether the last one did. What was read before stays in force meanwhile. Thread-safe.
class FileReading {
 public:
  static constexpr Duration kLogEvery = std::chrono::minutes(1);

  // `setting` names the file; `stays` begins the lines of the log: "the keys stay as they were".
  FileReading(std::string setting, std::string stays, const Clock& clock = Clock::Real());

  // Tells it of a reading after the first.
  void Report(const absl::Status& read);
  // Logs the last failure again if a minute is over, for owners that read on demand alone.
  void Remind();

  const std::string& setting() const { return setting_; }
  bool failing() const;

  // Calls `changed` with failing() now and whenever that changes, by the thread that reports, until
  // another function takes its place.
  void OnChange(std::function<void(bool failing)> changed);

 private:
  void Log();  // with mutex_

  const std::string setting_;
  const std::string stays_;
  const Clock& clock_;

  mutable std::mutex mutex_;  // guards what follows
  std::string error_;         // of the last reading; empty: it succeeded
  SteadyTime logged_;
  std::function<void(bool)> changed_ = [](bool) {};
};

}  // namespace millrace

#endif  // MILLRACE_BASE_FILE_READING_H_
