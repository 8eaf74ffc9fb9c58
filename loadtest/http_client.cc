#include "loadtest/http_client.h"

#include <chrono>
#include <utility>

#include "base/strings.h"
#include "loadtest/http_connection.h"

namespace millrace {
namespace {

namespace asio = boost::asio;
using Error = boost::system::error_code;

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

HttpLoadClient::HttpLoadClient(const ServerUrl& url, const HttpEndpoints& endpoints, HttpTls* tls,
                               Driver& driver)
    : endpoints_(endpoints), tls_(tls), driver_(driver), writer_(driver.options(), url) {}

HttpLoadClient::~HttpLoadClient() = default;

void HttpLoadClient::Send(std::unique_ptr<Exchange> exchange) {
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

void HttpLoadClient::AbortAll() {
  // Done may begin other streams, but none after the driver has given up.
  const std::vector<HttpConnection*> active(active_.begin(), active_.end());
  for (HttpConnection* connection : active) connection->Abort(Outcome::kUnfinished);
}

void HttpLoadClient::Ended(std::shared_ptr<HttpConnection> connection,
                           std::unique_ptr<Exchange> exchange, bool is_reusable) {
  active_.erase(connection.get());
  if (is_reusable) idle_.push_back(std::move(connection));
  driver_.Done(std::move(exchange));
  // A request that became due by it (a next turn, or one that waited for capacity) goes out now.
  Schedule(0);
}

void HttpLoadClient::Schedule(double seconds) {
  timer_.expires_after(
      std::chrono::nanoseconds(static_cast<int64_t>(std::max(0.0, seconds) * 1e9)));
  timer_.async_wait([this](const Error& error) {
    if (!error) Tick();
  });
}

void HttpLoadClient::Tick() {
  const double wake = driver_.Tick(driver_.Now());
  if (driver_.finished()) {
    idle_.clear();
    io_.stop();
    return;
  }
  Schedule(wake - driver_.Now());
}

void HttpLoadClient::Run() {
  Tick();
  io_.run();
}

}  // namespace millrace
