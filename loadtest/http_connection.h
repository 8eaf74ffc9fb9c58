// One connection of the HTTP client, and the stream on it.
#ifndef MILLRACE_LOADTEST_HTTP_CONNECTION_H_
#define MILLRACE_LOADTEST_HTTP_CONNECTION_H_

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "loadtest/http_client.h"
#include "loadtest/http_response.h"
#include "loadtest/http_socket.h"
#include "loadtest/sse.h"

namespace millrace {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  explicit HttpConnection(HttpLoadClient& client);

  // Sends a request. The exchange goes back to the client when it has ended.
  void Start(std::unique_ptr<Exchange> exchange, std::string bytes);
  // Ends the stream with this outcome, and closes the connection.
  void Abort(Outcome outcome);
  // Returns whether the server has closed the idle connection or sent data without a request.
  bool IsStale();

 private:
  using Error = boost::system::error_code;
  struct BodySink {
    HttpConnection* connection;
    bool operator()(std::string_view bytes) const { return connection->TakeBody(bytes); }
  };

  void Connect(size_t endpoint);
  void Write();
  void Read();
  void TakeRead(const Error& error, size_t bytes);
  // Feeds what was read to the parser. Returns an error of the response, empty if there is none.
  std::string Parse();
  bool TakeBody(std::string_view bytes);
  void TakeEvent(std::string_view data);
  void Count(double now);
  void ReadMore(size_t bytes);
  void EndOfResponse();
  void LostConnection(const Error& error);
  bool SendAgain();
  std::string BodyError() const;
  void StartDeadline();
  void Fail(std::string error);
  void End(Outcome outcome, std::string error, bool is_reusable);

  HttpLoadClient& client_;
  HttpSocket socket_;
  std::optional<boost::asio::steady_timer> deadline_;
  std::optional<boost::asio::steady_timer> pace_;
  std::unique_ptr<Exchange> exchange_;  // null: idle or ended
  std::string out_;
  bool is_written_ = false;
  bool has_served_ = false;  // this is not the connection's first request

  std::optional<HttpResponseReader<BodySink>> reader_;
  SseParser sse_;
  std::string in_;     // what the parser has not taken, with room for more
  size_t filled_ = 0;  // bytes of in_
  bool has_response_ = false;

  // The state of the stream.
  std::string other_body_;  // of a response that is no stream
  bool is_done_ = false;    // [DONE] has come
  bool has_finish_ = false;
  std::string stream_error_;
  int64_t events_ = 0;        // tokens that events of this read brought
  int64_t usage_tokens_ = 0;  // that the server has counted so far
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HTTP_CONNECTION_H_
