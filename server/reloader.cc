#include "server/reloader.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

std::string HostsText(const std::vector<std::string>& hosts) {
  return hosts.empty() ? "none" : JoinList(hosts);
}

bool ChangesAtOnce(std::string_view setting) {
  return setting == "log" || setting == "allowed-hosts" || setting == "admin-allowed-hosts" ||
         setting == "metrics-allowed-hosts";
}

}  // namespace

Reloader::~Reloader() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Reloader::Connect(SetHosts set_hosts, std::function<void()> read_certificates) {
  const std::lock_guard lock(mutex_);
  server_ = {std::move(set_hosts), std::move(read_certificates)};
  if (!waiting_.has_value()) return;
  if (absl::Status s = server_.set_hosts(*waiting_); !s.ok()) {
    kLog.Error("reload: ", std::string(s.message()));
  }
  waiting_.reset();
}

bool Reloader::Disconnect(Duration patience) {
  reading_.OnChange([](bool) {});
  std::unique_lock lock(mutex_);
  server_ = {};
  asked_ = false;
  return changed_.wait_for(lock, patience, [this] { return !busy_; });
}

void Reloader::Reload() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.notify_all();
}

void Reloader::Run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const bool asked =
        changed_.wait_for(lock, FileReading::kLogEvery, [this] { return asked_ || ending_; });
    if (!asked) reading_.Remind();
    if (!std::exchange(asked_, false) || ending_) continue;
    busy_ = true;
    const Connection server = server_;
    lock.unlock();
    if (server.read_certificates != nullptr) server.read_certificates();
    reading_.Report(ReloadOnce(server));
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

absl::Status Reloader::ReloadOnce(const Connection& server) {
  MILLRACE_ASSIGN_OR_RETURN(const Startup startup, load_());
  const Settings& settings = startup.settings;
  if (server.set_hosts != nullptr) {
    MILLRACE_RETURN_IF_ERROR(server.set_hosts(settings));
  } else {
    const std::lock_guard lock(mutex_);
    if (server_.set_hosts != nullptr) {
      MILLRACE_RETURN_IF_ERROR(server_.set_hosts(settings));  // it was connected meanwhile
    } else {
      waiting_ = settings;
    }
  }
  MILLRACE_RETURN_IF_ERROR(SetLogLevels(settings.log));
  std::vector<std::string> later;
  for (const std::string& name : ChangedSettings(first_, startup)) {
    if (!ChangesAtOnce(name)) later.push_back(name);
  }
  kLog.Info("reloaded: log levels ", LogLevels(), "; allowed hosts ",
            HostsText(settings.allowed_hosts), ", of the administration ",
            HostsText(settings.admin_allowed_hosts));
  if (!later.empty()) {
    kLog.Warning("reload: these take effect at the next start: ", JoinList(later));
  }
  return absl::OkStatus();
}

}  // namespace millrace
