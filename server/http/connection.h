// One client's connection: reads requests one after the other, has the Api answer them, writes.
#ifndef MILLRACE_SERVER_HTTP_CONNECTION_H_
#define MILLRACE_SERVER_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/guard/body_budget.h"
#include "server/guard/socket_progress.h"
#include "server/http/api.h"
#include "server/http/http_metrics.h"
#include "server/http/http_server.h"
#include "server/http/io_thread.h"
#include "server/http/wire.h"
#include "server/tls/transport.h"

namespace millrace {

// The state that all connections of a server share.
struct ServerState {
  ServerState(const Api& api, const HttpLimits& limits, HttpMetrics& metrics, size_t workers,
              const TransportRules& transport_rules)
      : api(api),
        limits(limits),
        metrics(metrics),
        transport_rules(transport_rules),
        bodies(limits.all_bodies_bytes),
        workers(workers),
        large_workers(workers) {}

  const Api& api;
  const HttpLimits& limits;
  HttpMetrics& metrics;
  const TransportRules& transport_rules;
  std::atomic<size_t> connections{0};
  std::atomic<size_t> closed{0};  // of them, those that wait for their last handlers
  BodyBudget bodies;              // of requests being read
  std::atomic<bool> stopping{false};
  // For what Api::CostOf says. A large body does not hold up those that are less so, and nothing
  // holds up the metrics.
  boost::asio::thread_pool workers;
  boost::asio::thread_pool large_workers;
  boost::asio::thread_pool metrics_worker{1};

  bool full() const { return connections - closed > limits.connections; }
  boost::asio::thread_pool& PoolFor(RequestCost cost) {
    if (cost == RequestCost::kMetrics) return metrics_worker;
    return cost == RequestCost::kLarge ? large_workers : workers;
  }
};

// Everything but the constructor runs on its IoThread.
//
// It always waits for the socket to become readable, also while it answers: that is how it sees a
// client leave, and then the answer is dropped, which cancels the work behind it. A client that has
// closed only its own direction has left, too. What a client sends ahead (pipelining) waits in a
// bounded buffer, and then in the socket.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using SteadyTime = std::chrono::steady_clock::time_point;

  // Takes over a socket that the caller has counted in `state.connections`; the destructor
  // decrements that count. `spare`: beyond the limit of connections, so only for probes while it
  // is.
  Connection(boost::asio::ip::tcp::socket socket, IoThread& thread, ServerState& state, bool spare);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  void Start();
  boost::asio::io_context& context() { return thread_.context(); }
  // Called when the response may have more bytes to send.
  void OnWake();
  // Fetch what OnWake needs into the processor's caches: first Prefetch, a little later
  // PrefetchAnswer.
  void Prefetch() const;
  void PrefetchAnswer() const;
  void CheckDeadline(SteadyTime now);
  // Closes the connection if it is one of `which`; another one closes after its response.
  void Stop(WhichConnections which);
  // Returns when the connection began to wait for a request, or for the rest of its header; nothing
  // if it does neither.
  std::optional<SteadyTime> waiting_since() const;
  bool idle() const { return phase_ == Phase::kIdle; }

 private:
  enum class Phase {
    kIdle,    // nothing of the next request has come
    kHead,    // reading its header
    kBody,    // reading its body
    kAnswer,  // answering it
    kLinger,  // all is said; waiting for the client to close
    kClosed,
  };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void BeginRequest();
  void WaitReadable();
  void OnReadable();
  void OnBadBeginning();
  void Feed();
  bool FeedParser();
  void OnHead();
  void OnBodyBytes();
  void RefuseBody();
  void CheckBody(SteadyTime now);
  void OnRequest();
  void OnHandled(Handled handled);

  void Refuse(const ApiError& error);
  void Respond(const HttpResponse& response, bool keep_alive);
  void AppendHead(const HttpResponse& response, Framing framing, size_t length);
  void Advance();
  bool Produce();
  void ProduceFirst();
  void BeginBody(Answer::State state, const HttpResponse& response, std::string_view body);
  void AppendBody(std::string_view body);
  void PingIfQuiet(SteadyTime now);
  bool Flush();
  void OnWritable();
  void FinishResponse();
  // Lets go of the answer, and keeps what it used.
  void DropAnswer();
  void Record();
  void Linger();
  void Close();

  void SetDeadline(absl::Duration after);
  Wake MakeWake() const;
  const HttpLimits& limits() const { return state_.limits; }

  Transport socket_;
  IoThread& thread_;
  ServerState& state_;

  // A token needs these, so they come first, side by side.
  Phase phase_ = Phase::kIdle;
  bool waiting_write_ = false;
  bool head_sent_ = false;
  bool chunked_ = false;
  bool done_ = false;     // all of the answer is in out_
  bool drained_ = false;  // the answer has no more until it wakes the connection
  bool keep_alive_ = false;
  bool spare_;
  std::unique_ptr<Answer> answer_;
  std::string out_;
  size_t out_begin_ = 0;                // what is before it is written
  uint64_t sent_ = 0;                   // on this connection
  uint64_t sent_bytes_ = 0;             // of the answer
  std::optional<SteadyTime> deadline_;  // of what phase_ waits for
  SteadyTime next_check_;               // of progress_
  uint64_t quiet_sent_ = 0;             // sent_ when CheckDeadline saw it last
  SteadyTime quiet_since_;              // the client has got nothing; seen at CheckDeadline

  std::shared_ptr<Connection> self_;  // from Start to Close: the only owner while it waits
  std::shared_ptr<WakeSlot> wake_slot_;

  // Holds what was read and not parsed: a header's beginning, or requests sent ahead. Nothing stays
  // where all is parsed, so a connection that streams an answer has no buffer here.
  boost::beast::flat_buffer in_{IoThread::kInputBytes};
  std::optional<Parser> parser_;
  HttpRequestHead head_;
  std::optional<BodyBudget::Body> charge_;  // of state_.bodies
  size_t read_away_ = 0;
  bool waiting_read_ = false;
  bool feeding_ = false;

  SteadyTime began_;  // when the request's first byte came, before that the waiting for it
  SteadyTime body_began_;
  int status_ = 0;                     // of the answer; 0 until it is known
  std::string reason_;                 // of a refusal, or of an answer that broke off
  std::string param_;                  // of a refusal: the field at fault
  std::optional<TokenCounts> tokens_;  // of an answer that is no longer there
  uint64_t request_bytes_ = 0;         // of the body
  SocketProgress progress_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_CONNECTION_H_
