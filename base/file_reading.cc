#include "base/file_reading.h"

#include <utility>

#include "base/log.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

}  // namespace

FileReading::FileReading(std::string setting, std::string stays, const Clock& clock)
    : setting_(std::move(setting)), stays_(std::move(stays)), clock_(clock) {}

void FileReading::Report(const absl::Status& read) {
  const std::lock_guard lock(mutex_);
  std::string error = read.ok() ? "" : std::string(read.message());
  if (!read.ok() && error.empty()) error = "unknown error";
  const bool other = error != error_;
  const bool turned = error.empty() != error_.empty();
  error_ = std::move(error);
  if (turned) changed_(!error_.empty());
  if (!error_.empty() && (other || clock_.Now() - logged_ >= kLogEvery)) Log();
}

void FileReading::Remind() {
  const std::lock_guard lock(mutex_);
  if (!error_.empty() && clock_.Now() - logged_ >= kLogEvery) Log();
}

bool FileReading::failing() const {
  const std::lock_guard lock(mutex_);
  return !error_.empty();
}

void FileReading::OnChange(std::function<void(bool)> changed) {
  const std::lock_guard lock(mutex_);
  changed_ = std::move(changed);
  changed_(!error_.empty());
}

void FileReading::Log() {
  logged_ = clock_.Now();
  kLog.Error(stays_, ": ", error_);
}

}  // namespace millrace
