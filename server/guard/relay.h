// One guarded connection: moves checked bytes between a client's socket and the socket pair to the
// server.
#ifndef MILLRACE_SERVER_GUARD_RELAY_H_
#define MILLRACE_SERVER_GUARD_RELAY_H_

#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "server/guard/buffer_pool.h"
#include "server/guard/frame_guard.h"
#include "server/guard/guard_metrics.h"
#include "server/guard/socket_progress.h"
#include "server/tls/transport.h"

namespace millrace {

class Relay;

// The entrance, as a relay uses it.
class RelayHost {
 public:
  virtual ~RelayHost() = default;
  virtual GuardShared& shared() = 0;
  virtual GuardMetrics& metrics() = 0;
  virtual const TransportRules& transport_rules() = 0;
  // Hands the server its end of the pair. False: no more connections are taken.
  virtual bool AttachServer(Relay& relay, int fd) = 0;
  // Called when all streams together are more than allowed.
  virtual void MakeRoomForStreams() = 0;
  // Called once, as the last thing on the relay's thread.
  virtual void OnEnded(Relay& relay) = 0;
};

// Everything but the constructor and what is said to be thread-safe runs on one thread.
class Relay : public std::enable_shared_from_this<Relay> {
 public:
  using Context = boost::asio::io_context;

  // How busy a connection is, in the order in which connections give way to new ones.
  enum class Activity : uint8_t { kHandshake, kIdle, kBusy };

  Relay(boost::asio::ip::tcp::socket client, Context& context, BufferPool& buffers, RelayHost& host,
        uint64_t id);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void Start();
  void Tick(SteadyTime now);
  // Closes the connection with GOAWAY.
  void End(GuardReason reason, std::string_view text);
  // Tells the client with GOAWAY to open no more streams here. Those that it opens until it has
  // read that are served.
  void AnnounceEnd();
  // Closes it at once.
  void Abort(GuardReason reason);

  // Thread-safe.
  Context& context() { return context_; }
  uint64_t id() const { return id_; }
  // Once the server is attached it is the client's address, else perhaps a proxy's.
  const boost::asio::ip::tcp::endpoint& peer() const { return client_.peer(); }
  // Returns the name in the client's certificate. Call once the server is attached.
  std::string_view client_name() const { return client_.client_name(); }
  std::shared_ptr<const std::vector<std::string>> client_identities() const {
    return client_.client_identities();
  }
  Activity activity() const { return activity_; }
  SteadyTime since() const { return SteadyTime(Duration(since_.load())); }  // of that activity
  size_t streams() const { return open_streams_; }

 private:
  enum class Phase {
    kOpen,
    kEnding,  // the GOAWAY waits for the end of the server's frame
    kLinger,  // all is said; waiting for the client to close
    kClosed,
  };
  // The bytes of one direction: [begin, checked) are to be sent on, [checked, end) to be checked.
  struct Pipe {
    std::vector<uint8_t> bytes;
    size_t begin = 0;
    size_t checked = 0;
    size_t end = 0;
    std::string inject;    // frames of the guard's, for the next boundary
    bool drained = false;  // the socket had no more when it was read last
    bool reading = false;  // waits for bytes
    bool writing = false;  // waits for the socket to take more
    bool eof = false;
  };
  using Pair = boost::asio::local::stream_protocol::socket;

  void PumpClient();
  void PumpServer();
  // Returns false when there is nothing to do until a socket or a timer says so.
  bool StepClient();
  bool StepServer();
  template <typename Socket>
  bool Fill(Socket& from, Pipe& pipe, void (Relay::*pump)());
  template <typename Socket>
  bool WaitReadable(Socket& from, Pipe& pipe, void (Relay::*pump)());
  template <typename Socket>
  bool Flush(Pipe& pipe, Socket& to, void (Relay::*pump)(), uint64_t& written);
  void Compact(Pipe& pipe);

  bool Attach();
  void SendResets();
  void NoteActivity();
  void OnViolation();
  void OnBadBeginning();
  void SendLast(std::string_view last);
  void Linger();
  void ReadAway();
  void OnServerGone();
  void Close();
  GuardReason reason() const { return reason_.value_or(GuardReason::kClosed); }

  Transport client_;
  Pair pair_;
  Context& context_;
  BufferPool& buffers_;
  RelayHost& host_;
  const uint64_t id_;

  Phase phase_ = Phase::kOpen;
  FrameGuard guard_;
  Pipe in_;   // client to server
  Pipe out_;  // server to client
  bool attached_ = false;
  bool server_gone_ = false;  // it takes no more bytes; what it sent may not all be with the client
  bool pumping_client_ = false;
  bool pumping_server_ = false;
  SteadyTime began_;
  SteadyTime deadline_;  // of kEnding and kLinger
  SteadyTime next_check_;
  size_t read_away_ = 0;
  uint64_t sent_ = 0;      // to the client
  uint64_t unneeded_ = 0;  // sent to the server
  SocketProgress progress_;
  std::optional<GuardReason> reason_;

  std::atomic<Activity> activity_ = Activity::kHandshake;
  std::atomic<Duration::rep> since_ = 0;
  std::atomic<size_t> open_streams_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_RELAY_H_
