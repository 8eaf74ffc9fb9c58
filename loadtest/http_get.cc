#include <boost/asio/connect.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <chrono>
#include <functional>
#include <utility>

#include "base/strings.h"
#include "loadtest/http_client.h"
#include "loadtest/stream_chunk.h"

namespace millrace {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Error = boost::system::error_code;

constexpr auto kTimeout = std::chrono::seconds(10);

// One request and its response.
struct Get {
  http::request<http::empty_body> request;
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  Error result;
};

// Connects, calls `begin` with what to go on with, and has the request answered over `stream`,
// which is one of `io`. Returns when that has ended.
template <typename Stream, typename Begin>
void Fetch(asio::io_context& io, Stream& stream, const HttpEndpoints& endpoints, Get& get,
           const Begin& begin) {
  beast::get_lowest_layer(stream).expires_after(kTimeout);
  const std::function<void()> ask = [&] {
    http::async_write(stream, get.request, [&](Error failed, size_t) {
      get.result = failed;
      if (failed) return;
      http::async_read(stream, get.buffer, get.response,
                       [&](Error ended, size_t) { get.result = ended; });
    });
  };
  beast::get_lowest_layer(stream).async_connect(endpoints,
                                                [&](Error error, const asio::ip::tcp::endpoint&) {
                                                  get.result = error;
                                                  if (!error) begin(ask);
                                                });
  io.run();
}

}  // namespace

absl::StatusOr<std::string> HttpGet(const Options& options, const ServerUrl& url,
                                    const HttpEndpoints& endpoints, HttpTls* tls,
                                    const std::string& path) {
  Get get{.request = {http::verb::get, url.path + path, 11}};
  get.request.set(http::field::host, url.Authority());
  if (!options.api_key.empty()) {
    get.request.set(http::field::authorization, "Bearer " + options.api_key);
  }
  for (const auto& [name, value] : options.headers) get.request.set(name, value);
  get.request.set(http::field::connection, "close");
  asio::io_context io;
  if (tls == nullptr) {
    beast::tcp_stream stream(io);
    Fetch(io, stream, endpoints, get, [](const std::function<void()>& ask) { ask(); });
  } else {
    beast::ssl_stream<beast::tcp_stream> stream(io, tls->context());
    tls->Prepare(stream);
    Fetch(io, stream, endpoints, get, [&](const std::function<void()>& ask) {
      stream.async_handshake(asio::ssl::stream_base::client, [&get, ask](Error failed) {
        get.result = failed;
        if (!failed) ask();
      });
    });
  }
  const std::string name = StrCat(url.Scheme(), "://", url.Authority(), url.path, path);
  if (get.result) return absl::UnavailableError(StrCat(name, ": ", get.result.message()));
  if (get.response.result_int() != 200) {
    StreamChunk chunk;
    ReadStreamChunk(get.response.body(), chunk, nullptr, nullptr);
    return absl::UnavailableError(StrCat(name, ": HTTP ", get.response.result_int(),
                                         chunk.has_error ? ": " : "", Printable(chunk.error, 200)));
  }
  return std::move(get.response.body());
}

}  // namespace millrace
