#include "loadtest/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <utility>

#include "base/strings.h"
#include "loadtest/http_connection.h"
#include "loadtest/stream_chunk.h"

namespace millrace {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Error = boost::system::error_code;

constexpr auto kGetTimeout = std::chrono::seconds(10);

}  // namespace

absl::StatusOr<HttpEndpoints> ResolveUrl(const ServerUrl& url) {
  asio::io_context io;
  Error error;
  const auto found = asio::ip::tcp::resolver(io).resolve(url.host, url.port, error);
  if (error || found.empty()) {
    return absl::NotFoundError(
        StrCat("flag --url: cannot resolve ", Printable(url.host), ": ", error.message()));
  }
  return HttpEndpoints(found.begin(), found.end());
}

absl::StatusOr<std::string> HttpGet(const Options& options, const ServerUrl& url,
                                    const HttpEndpoints& endpoints, const std::string& path) {
  asio::io_context io;
  beast::tcp_stream stream(io);
  http::request<http::empty_body> request(http::verb::get, url.path + path, 11);
  request.set(http::field::host, url.Authority());
  if (!options.api_key.empty()) {
    request.set(http::field::authorization, "Bearer " + options.api_key);
  }
  for (const auto& [name, value] : options.headers) request.set(name, value);
  request.set(http::field::connection, "close");
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  Error result;
  stream.expires_after(kGetTimeout);
  stream.async_connect(endpoints, [&](Error error, const asio::ip::tcp::endpoint&) {
    result = error;
    if (error) return;
    http::async_write(stream, request, [&](Error failed, size_t) {
      result = failed;
      if (failed) return;
      http::async_read(stream, buffer, response, [&](Error ended, size_t) { result = ended; });
    });
  });
  io.run();
  const std::string name = StrCat("http://", url.Authority(), url.path, path);
  if (result) return absl::UnavailableError(StrCat(name, ": ", result.message()));
  if (response.result_int() != 200) {
    StreamChunk chunk;
    ReadStreamChunk(response.body(), chunk, nullptr);
    return absl::UnavailableError(StrCat(name, ": HTTP ", response.result_int(),
                                         chunk.has_error ? ": " : "", Printable(chunk.error, 200)));
  }
  return std::move(response.body());
}

HttpClient::HttpClient(const ServerUrl& url, const HttpEndpoints& endpoints, Driver& driver)
    : endpoints_(endpoints), driver_(driver), writer_(driver.options(), url) {}

HttpClient::~HttpClient() = default;

void HttpClient::Send(std::unique_ptr<Exchange> exchange) {
  std::string bytes = writer_.Write(exchange->request);
  while (!idle_.empty() && !exchange->request.slow) {
    std::shared_ptr<HttpConnection> connection = std::move(idle_.back());
    idle_.pop_back();
    if (connection->IsStale()) continue;
    connection->Start(std::move(exchange), std::move(bytes));
    return;
  }
  std::make_shared<HttpConnection>(*this)->Start(std::move(exchange), std::move(bytes));
}

void HttpClient::AbortAll() {
  // Done may begin other streams, but none after the driver has given up.
  const std::vector<HttpConnection*> active(active_.begin(), active_.end());
  for (HttpConnection* connection : active) connection->Abort(Outcome::kUnfinished);
}

void HttpClient::Ended(std::shared_ptr<HttpConnection> connection,
                       std::unique_ptr<Exchange> exchange, bool is_reusable) {
  active_.erase(connection.get());
  if (is_reusable) idle_.push_back(std::move(connection));
  driver_.Done(std::move(exchange));
  // What became due by it (a next turn, or what waited for capacity) goes out now.
  Schedule(0);
}

void HttpClient::Schedule(double seconds) {
  timer_.expires_after(
      std::chrono::nanoseconds(static_cast<int64_t>(std::max(0.0, seconds) * 1e9)));
  timer_.async_wait([this](const Error& error) {
    if (!error) Tick();
  });
}

void HttpClient::Tick() {
  const double wake = driver_.Tick(driver_.Now());
  if (driver_.finished()) {
    idle_.clear();
    io_.stop();
    return;
  }
  Schedule(wake - driver_.Now());
}

void HttpClient::Run() {
  Tick();
  io_.run();
}

}  // namespace millrace
