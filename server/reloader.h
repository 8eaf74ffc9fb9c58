// SIGHUP: reads the settings again and applies those that a running server can change.
#ifndef MILLRACE_SERVER_RELOADER_H_
#define MILLRACE_SERVER_RELOADER_H_

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/load.h"

namespace millrace {

// Log levels and allowed hosts change; other settings are named in the log and wait for the next
// start. Settings that are wrong change nothing. Thread-safe.
class Reloader {
 public:
  using Load = std::function<absl::StatusOr<Startup>()>;
  using SetHosts = std::function<absl::Status(const std::vector<std::string>& hosts)>;

  Reloader(Load load, Startup first) : load_(std::move(load)), first_(std::move(first)) {}

  // Sets what changes the hosts of the running server, and applies what was loaded before.
  // `read_certificates` is called at each reload.
  void Connect(SetHosts set_hosts, std::function<void()> read_certificates);
  // Lets it go, before the server ends.
  void Disconnect();

  void Reload();

 private:
  absl::Status ReloadLocked();

  const Load load_;
  const Startup first_;
  std::mutex mutex_;
  std::function<void()> read_certificates_;  // guarded by mutex_; null likewise
  SetHosts set_hosts_;                       // guarded by mutex_; null: there is no server
  bool hosts_wait_ = false;                  // guarded by mutex_: for the server
  std::vector<std::string> hosts_;           // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_RELOADER_H_
