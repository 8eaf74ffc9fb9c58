// Requests and answers between the sockets (connection.h) and the endpoints (endpoint.h). No Beast
// here.
#ifndef MILLRACE_SERVER_HTTP_API_HTTP_MESSAGE_H_
#define MILLRACE_SERVER_HTTP_API_HTTP_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request/trace.h"
#include "server/http/json/api_error.h"

namespace millrace {

// A body in pieces. Bodies may share a piece, so that a long text is not copied to stand between
// others.
class SharedBody {
 public:
  explicit SharedBody(std::string piece) { Add(std::move(piece)); }
  SharedBody() = default;

  void Add(std::string piece) { Add(std::make_shared<const std::string>(std::move(piece))); }
  void Add(std::shared_ptr<const std::string> piece) {
    size_ += piece->size();
    pieces_.push_back(std::move(piece));
  }

  size_t size() const { return size_; }
  const std::vector<std::shared_ptr<const std::string>>& pieces() const { return pieces_; }
  // Returns the bytes that follow the first `begin` ones in their piece; empty: there are none.
  std::string_view From(size_t begin) const {
    for (const std::shared_ptr<const std::string>& piece : pieces_) {
      if (begin < piece->size()) return std::string_view(*piece).substr(begin);
      begin -= piece->size();
    }
    return {};
  }

 private:
  std::vector<std::shared_ptr<const std::string>> pieces_;
  size_t size_ = 0;
};

// A request as its header tells it, before the body has come.
struct HttpRequestHead {
  std::string method;  // as it came: "GET"
  std::string path;    // without the query; "*" in "OPTIONS *"
  std::string query;   // what follows the path's "?", as it came
  std::string host;    // "Host", or the authority of an absolute target; may be empty in HTTP/1.0
  std::optional<std::string> origin;
  // The preflight request of a browser's page: Access-Control-Request-Method, -Headers and
  // -Private-Network. Empty and false in every other request.
  std::string cors_method;
  std::string cors_headers;
  bool cors_private_network = false;
  std::string authorization;
  // The names that the certificate of the connection's client stands for; null without one.
  std::shared_ptr<const std::vector<std::string>> identities;
  std::string accept;
  bool is_anthropic = false;  // a client of Anthropic's API asks: anthropic-version is there
  std::string content_type;
  std::string content_encoding;
  std::string
      request_id;  // the client's X-Request-Id if it is fit to be repeated, else one of ours
  std::optional<uint64_t> content_length;  // unset: none, or chunked
  std::optional<absl::Duration> timeout;   // X-Request-Timeout-Ms
  std::optional<TraceContext> trace;       // traceparent and tracestate
  // Inference-Header-Content-Length: the bytes of the body's JSON, before tensors in binary.
  std::optional<uint64_t> json_length;
};

// Tokens that a request used.
struct UsedTokens {
  int64_t prompt = 0;
  int64_t completion = 0;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // beside the usual ones
  std::string body;
  std::shared_ptr<const SharedBody> shared_body = {};  // in place of `body`, which is then empty
  // For the access log: of an error its code and the field at fault, else what was used.
  std::string reason = {};
  std::string param = {};
  std::optional<UsedTokens> tokens = {};
};

// Returns an error's response, with Retry-After, x-should-retry and WWW-Authenticate where they
// belong.
HttpResponse ErrorResponse(const ApiError& error);
// Returns the response of a status that is not OK.
HttpResponse ErrorResponse(const absl::Status& status);

// Makes `response` the head of a stream of server-sent events.
void BeginEventStream(HttpResponse& response);

inline constexpr std::string_view kPingComment = ": ping\n\n";

// Tells a connection that its answer has something to be polled for. Thread-safe, cheap, and may
// outlive both.
using Wake = std::function<void()>;

// An answer in the making. Everything is called on one thread; to drop it ends the work behind it.
class Answer {
 public:
  enum class State {
    kWaiting,  // nothing now: poll again when woken
    kWhole,    // `response` is complete, and the end
    kChunk,    // bytes were appended to `body`: poll again when they are written
    kPause,    // the same, and nothing more is there now: poll again when woken
    kEnd,      // perhaps bytes were appended; the answer is complete
    kBroken,   // bytes were appended; the answer ended with an error, and so must the connection
  };

  virtual ~Answer() = default;

  // Returns what there is to send now. With the first kChunk, kPause, kEnd or kBroken `response`
  // has the status and the headers that come before the body.
  virtual State Poll(HttpResponse& response, std::string& body) = 0;

  // Called when nothing has been sent for a while. A stream of events appends a comment, which
  // clients pass over and which keeps proxies from closing the connection, and returns true; if
  // that is its first chunk, `response` has the status and the headers. Others return false.
  virtual bool Ping(HttpResponse& /*response*/, std::string& /*body*/) { return false; }

  // Returns whether the work behind it has ended, and what it holds waits for its client alone.
  virtual bool ended() const { return false; }

  // Returns how many bytes it holds until Poll has returned the last of them; 0 if Poll makes them.
  virtual size_t held_bytes() const { return 0; }

  // Returns the tokens used so far, for the access log; nothing if no model was asked.
  virtual std::optional<UsedTokens> tokens() const { return std::nullopt; }
};

// At once, or as the work goes on.
using Handled = std::variant<HttpResponse, std::unique_ptr<Answer>>;

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_HTTP_MESSAGE_H_
