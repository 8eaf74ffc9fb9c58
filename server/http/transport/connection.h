// One client's connection: reads requests one after the other, has the Api answer them, writes.
#ifndef MILLRACE_SERVER_HTTP_TRANSPORT_CONNECTION_H_
#define MILLRACE_SERVER_HTTP_TRANSPORT_CONNECTION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/request/tenant.h"
#include "server/guard/body_budget.h"
#include "server/guard/output_budget.h"
#include "server/guard/socket_progress.h"
#include "server/http/api/api.h"
#include "server/http/transport/http_limits.h"
#include "server/http/transport/http_metrics.h"
#include "server/http/transport/io_thread.h"
#include "server/http/transport/place_queue.h"
#include "server/http/transport/server_state.h"
#include "server/http/transport/wire.h"
#include "server/tls/transport.h"

namespace millrace {

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
  void RefuseWork(const absl::Status& why);
  void Continue();
  bool FindPlace(uint64_t bytes);
  void WantPlace(SteadyTime now);
  TenantShare Lane() const;
  void EndWanting();
  void CheckBody(SteadyTime now);
  void OnRequest();
  void HandleElsewhere(RequestCost cost, std::string body);
  void OnHandled(Handled handled);

  void Refuse(const ApiError& error);
  void Respond(HttpResponse response, bool keep_alive);
  void AppendHead(const HttpResponse& response, Framing framing, size_t length);
  // Charges a whole answer that is about to be sent. Returns the refusal to send in its place.
  std::optional<HttpResponse> ChargeWhole(const SharedBody& body);
  // Charges what waits, if it is not charged yet. Returns false if it must not wait.
  bool ChargeWaiting();
  // Counts what waits as one of the tenant's streams.
  absl::Status CountStream(const std::shared_ptr<const Tenant>& tenant, bool always);
  bool Charge(const std::shared_ptr<const Tenant>& tenant, uint64_t bytes, const void* buffer);
  // Notes what the client has taken of what is charged.
  void NoteTaken();
  void EndWaiting();
  std::string_view unwritten() const;
  void Advance();
  bool Produce();
  void ProduceFirst();
  void BeginBody(Answer::State state, const HttpResponse& response, std::string_view body);
  void AppendBody(std::string_view body);
  void PingIfQuiet(SteadyTime now);
  bool Flush();
  bool KeepWaiting();
  bool WaitWritable();
  bool WriteNextTurn();
  void OnWritable();
  void FinishResponse();
  // Lets go of the answer, and keeps what it used.
  void DropAnswer();
  void Record();
  void Linger();
  // `reason`: why an answer that is under way is broken off.
  void Close(std::string_view reason = "client_closed");

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
  size_t out_begin_ = 0;                          // what is before it is written
  std::unique_ptr<OutputBudget::Share> charged_;  // for what waits
  size_t turn_ = 0;                               // bytes written since the thread came to it
  uint64_t sent_ = 0;                             // on this connection
  uint64_t sent_bytes_ = 0;                       // of the answer
  std::optional<SteadyTime> deadline_;            // of what phase_ waits for
  SteadyTime next_check_;                         // of progress_
  uint64_t quiet_sent_ = 0;                       // sent_ when CheckDeadline saw it last
  SteadyTime quiet_since_;  // the client has got nothing; seen at CheckDeadline

  std::shared_ptr<const SharedBody> body_;  // a large one, which follows out_
  size_t body_begin_ = 0;                   // what is before it is written
  uint64_t taken_ = 0;  // by the client, on this connection, when charged_ was told last
  std::shared_ptr<const Tenant> counted_;  // what waits is one of its streams

  std::shared_ptr<Connection> self_;  // from Start to Close: the only owner while it waits
  std::shared_ptr<WakeSlot> wake_slot_;

  // Holds what was read and not parsed: a header's beginning, or requests sent ahead. Nothing stays
  // where all is parsed, so a connection that streams an answer has no buffer here.
  boost::beast::flat_buffer in_{IoThread::kInputBytes};
  std::optional<Parser> parser_;
  HttpRequestHead head_;
  std::optional<BodyBudget::Body> charge_;    // of state_.bodies
  std::optional<TenantBudget::Share> place_;  // of state_.large_bodies
  // While the body waits for place_, these say since when, and in what order of
  // state_.waiting_bodies. Nothing is read meanwhile.
  std::optional<SteadyTime> place_wanted_;
  std::optional<PlaceQueue::Ticket> ticket_;
  size_t read_away_ = 0;
  bool waiting_read_ = false;
  bool feeding_ = false;
  std::atomic<bool> closed_ = false;  // read by the threads for bodies, which leave its request out

  SteadyTime began_;  // when the request's first byte came, before that the waiting for it
  SteadyTime body_began_;
  int status_ = 0;                    // of the answer; 0 until it is known
  std::string reason_;                // of a refusal, or of an answer that broke off
  std::string param_;                 // of a refusal: the field at fault
  std::optional<UsedTokens> tokens_;  // of an answer that is no longer there
  uint64_t request_bytes_ = 0;        // of the body
  SocketProgress progress_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_TRANSPORT_CONNECTION_H_
