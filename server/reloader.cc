#include "server/reloader.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

}  // namespace

void Reloader::Connect(SetHosts set_hosts, std::function<void()> read_certificates) {
  const std::lock_guard lock(mutex_);
  read_certificates_ = std::move(read_certificates);
  set_hosts_ = std::move(set_hosts);
  if (!std::exchange(hosts_wait_, false)) return;
  if (absl::Status s = set_hosts_(hosts_); !s.ok()) {
    kLog.Error("reload: ", std::string(s.message()));
  }
}

void Reloader::Disconnect() {
  const std::lock_guard lock(mutex_);
  set_hosts_ = nullptr;
  read_certificates_ = nullptr;
}

void Reloader::Reload() {
  const std::lock_guard lock(mutex_);
  if (read_certificates_ != nullptr) read_certificates_();
  if (absl::Status s = ReloadLocked(); !s.ok()) {
    kLog.Error("reload: nothing changes: ", std::string(s.message()));
  }
}

absl::Status Reloader::ReloadLocked() {
  // Reading a pipe would wait for whoever writes it, and no signal would be heard meanwhile.
  const std::string& file = first_.settings.config;
  if (std::error_code error; !file.empty() && !std::filesystem::is_regular_file(file, error)) {
    return absl::FailedPreconditionError(StrCat(
        "config: ", Printable(file), " is no regular file, which is read at the start only"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const Startup startup, load_());
  const Settings& settings = startup.settings;
  if (set_hosts_ != nullptr) {
    MILLRACE_RETURN_IF_ERROR(set_hosts_(settings.allowed_hosts));
  } else {
    hosts_ = settings.allowed_hosts;
    hosts_wait_ = true;
  }
  MILLRACE_RETURN_IF_ERROR(SetLogLevels(settings.log));
  std::vector<std::string> later;
  for (const std::string& name : ChangedSettings(first_, startup)) {
    if (name != "log" && name != "allowed-hosts") later.push_back(name);
  }
  kLog.Info("reloaded: log levels ", LogLevels(), "; allowed hosts ",
            settings.allowed_hosts.empty() ? "none" : JoinList(settings.allowed_hosts));
  if (!later.empty()) {
    kLog.Warning("reload: these take effect at the next start: ", JoinList(later));
  }
  return absl::OkStatus();
}

}  // namespace millrace
