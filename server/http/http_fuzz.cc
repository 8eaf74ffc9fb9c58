// Fuzzes the way of a request from its first byte to the answer: Beast's parser as a connection
// drives it, the header's checks, the routes and what they answer, with an engine behind them that
// says a few words. The answer's header must itself be HTTP.
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>

#include "base/fuzz_test_util.h"
#include "server/http/all_protocols.h"
#include "server/http/api/api.h"
#include "server/http/http_server.h"
#include "server/http/scripted_engine_test_util.h"
#include "server/http/transport/wire.h"

namespace {

namespace http = boost::beast::http;
using millrace::FuzzCheck;

void Say(const millrace::GenerateRequest& request, millrace::ScriptedStream& stream) {
  if (request.echo) stream.Push({.echo = true, .text = "p\"", .tokens = {1}});
  stream.Push(millrace::TextEvent("He"));
  stream.Push(millrace::TextEvent("\"llo\"\n\xc3\xa9"));
  stream.Push(millrace::FinishEvent());
}

void CheckResponse(const millrace::HttpRequestHead& head, const millrace::HttpResponse& response) {
  std::string text;
  millrace::AppendResponseHead(text, response, head.request_id, millrace::Framing::kLength, 0,
                               true);
  http::response_parser<http::string_body> parser;
  boost::beast::error_code error;
  const size_t read = parser.put(boost::asio::buffer(text), error);
  FuzzCheck(!error && parser.is_done() && read == text.size(), "the answer is not HTTP: " + text);
}

void Answer(const millrace::Api& api, const millrace::HttpRequestHead& head,
            const std::string& body) {
  auto handled = api.Handle(head, body, [] {});
  if (const auto* response = std::get_if<millrace::HttpResponse>(&handled)) {
    return CheckResponse(head, *response);
  }
  millrace::HttpResponse response;
  std::string text;
  using State = millrace::Answer::State;
  for (int polls = 0; polls < 10'000; ++polls) {
    const State state = std::get<1>(handled)->Poll(response, text);
    if (state == State::kChunk || state == State::kPause) continue;
    if (state != State::kWaiting) CheckResponse(head, response);
    return;
  }
  FuzzCheck(false, "the answer does not end");
}

// A header that says what is wrong, or the body; false: not all of it has come.
bool Read(std::string_view bytes, http::request_parser<http::string_body>& parser,
          const millrace::Api& api, millrace::HttpRequestHead& head) {
  const millrace::HttpLimits limits;
  millrace::FuzzRandom random(bytes);
  size_t used = 0;
  bool checked = false;
  for (size_t come = 0; come < bytes.size() && !parser.is_done();) {
    come = std::min(bytes.size(), come + 1 + random.Below(200));
    boost::beast::error_code error;
    used += parser.put(boost::asio::buffer(bytes.data() + used, come - used), error);
    if (error && error != http::error::need_more) {
      CheckResponse(head, millrace::ErrorResponse(millrace::MalformedError(error)));
      return false;
    }
    if (!parser.is_header_done() || checked) continue;
    checked = true;
    if (const auto refused = millrace::ReadHead(parser.get(), limits.header_fields, head)) {
      CheckResponse(head, millrace::ErrorResponse(*refused));
      return false;
    }
    if (const auto length = parser.content_length()) head.content_length = *length;
    if (const auto response = api.Check(head)) {
      CheckResponse(head, *response);
      return false;
    }
    parser.eager(true);
    come = used;
  }
  return parser.is_done();
}

// The scripted engine keeps all requests: it is replaced once it has some.
struct Server {
  millrace::ScriptedFrontend frontend;
  millrace::Api api{frontend,
                    millrace::HostPolicy::Make("127.0.0.1", {}, false).value(),
                    {.allowed_origins = {"https://a.example"}},
                    millrace::AllProtocols()};

  Server() { frontend.engine.set_script(Say); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto& server = *new std::unique_ptr<Server>(new Server);
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(millrace::HttpLimits().header_bytes));
  parser.body_limit(boost::none);
  millrace::HttpRequestHead head;
  head.request_id = "r";
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bytes.remove_prefix(std::min(bytes.find_first_not_of("\r\n"), bytes.size()));
  if (!Read(bytes, parser, server->api, head)) return 0;
  static_cast<void>(server->api.CostOf(head, parser.get().body().size()));
  static_cast<void>(server->api.HandlerOf(head));
  Answer(server->api, head, parser.get().body());
  if (server->frontend.engine.num_requests() > 0) server = std::make_unique<Server>();
  return 0;
}
