// SIGHUP: reads the settings again and applies those that a running server can change.
#ifndef MILLRACE_SERVER_RELOADER_H_
#define MILLRACE_SERVER_RELOADER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/file_reading.h"
#include "config/load.h"

namespace millrace {

// Log levels and the lists of allowed hosts change; other settings are named in the log and wait
// for the next start. Settings that are wrong change nothing. Thread-safe.
class Reloader {
 public:
  using Load = std::function<absl::StatusOr<Startup>()>;
  // Applies the hosts of these settings.
  using SetHosts = std::function<absl::Status(const Settings& settings)>;

  Reloader(Load load, Startup first) : load_(std::move(load)), first_(std::move(first)) {}
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;
  // Waits for a reload that is under way.
  ~Reloader();

  // Sets what changes the hosts of the running server, and applies what was loaded before.
  // `read_certificates` is called at each reload.
  void Connect(SetHosts set_hosts, std::function<void()> read_certificates);
  // Lets it go, before the server ends. Returns whether no reload uses it any more: one that hangs,
  // in a file system that does not answer say, is waited for no longer than `patience`, and then
  // the server must stay until the process ends.
  bool Disconnect(Duration patience);

  // Has a thread of its own do it and returns at once, so that the caller hears further signals.
  // The first call starts the thread, which inherits the caller's mask of signals.
  void Reload();

  // The state of the reloads.
  FileReading& reading() { return reading_; }

 private:
  // The part of the server that a reload changes; null: there is none.
  struct Connection {
    SetHosts set_hosts;
    std::function<void()> read_certificates;
  };

  void Run();
  absl::Status ReloadOnce(const Connection& server);

  const Load load_;
  const Startup first_;
  FileReading reading_{"config", "reload: nothing changes"};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::thread thread_;
  bool asked_ = false;
  bool busy_ = false;
  bool ending_ = false;
  Connection server_;
  std::optional<Settings> waiting_;  // whose hosts wait for the server
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_RELOADER_H_
