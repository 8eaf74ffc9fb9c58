// The part of TLS that endpoints share: the certificate, followed as its files change, the threads
// of the handshakes, and the limits of those that are under way.
#ifndef MILLRACE_SERVER_TLS_TLS_SERVER_H_
#define MILLRACE_SERVER_TLS_TLS_SERVER_H_

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/file_reading.h"
#include "server/tls/hello_budget.h"
#include "server/tls/tls_context.h"

namespace prometheus {
class Gauge;
class Registry;
}  // namespace prometheus

namespace millrace {

// Thread-safe.
class TlsServer {
 public:
  // Reads the files, and again within a second after they have changed: new connections then see
  // the new ones. A reading that fails is repeated every 30 s, and what was read before stays. An
  // error is TlsContext::Load's. `registry` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Open(TlsFiles files, int handshake_threads,
                                                         prometheus::Registry& registry,
                                                         const Clock& clock = Clock::Real());
  ~TlsServer();
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  std::shared_ptr<const TlsContext> context() const;
  // Runs the handshakes, of which one takes as long as many tokens.
  boost::asio::thread_pool& handshakes() { return handshakes_; }
  // Counts the memory that OpenSSL gets for a handshake whose first message has so many bytes.
  // False: there is too little, and this one is to be refused. Each that was counted is to be ended
  // with the same number.
  bool BeginHandshake(size_t hello_bytes);
  void EndHandshake(size_t hello_bytes) { shaking_ -= MemoryOf(hello_bytes); }
  // Returns whether they take so much that the slow ones are to give way.
  bool crowded() const { return shaking_ > kMuchForHandshakes; }
  // The memory of first messages that have not come whole.
  HelloBudget& hellos() { return hellos_; }

  // Reads the files now.
  void Reload();
  // The state of the readings after the first, of all files together.
  FileReading& reading() { return reading_; }

 private:
  static constexpr size_t kMuchForHandshakes = 14 << 20;  // some 300 ordinary ones
  static constexpr size_t kMostForHandshakes = 24 << 20;
  static constexpr size_t kMostHelloBytes = 16 << 20;  // a thousand of the longest

  TlsServer(TlsFiles files, int handshake_threads, prometheus::Registry& registry,
            const Clock& clock);

  // A long message is kept, read into a buffer and taken apart.
  static constexpr size_t MemoryOf(size_t hello_bytes) { return (46 << 10) + 3 * hello_bytes; }
  std::string Stamp() const;
  absl::Status Read();
  void Report(const absl::Status& read);
  void Follow();

  const TlsFiles files_;
  const Clock& clock_;
  boost::asio::thread_pool handshakes_;
  std::atomic<size_t> shaking_ = 0;  // bytes of the handshakes under way
  HelloBudget hellos_{kMostHelloBytes};
  prometheus::Gauge* const expiry_;
  prometheus::Gauge* const revocations_expiry_;  // null without revocation lists

  FileReading reading_;
  std::mutex one_reading_;  // at a time; guards what follows
  std::string read_;        // the stamp of what was read last
  SteadyTime again_;        // when the last reading is repeated, if it failed

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable stop_;
  bool stopping_ = false;
  std::shared_ptr<const TlsContext> context_;

  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_TLS_SERVER_H_
