// Sends a thread's requests over HTTP/1.1, a connection for each stream, and keeps connections.
#ifndef MILLRACE_LOADTEST_HTTP_CLIENT_H_
#define MILLRACE_LOADTEST_HTTP_CLIENT_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/driver.h"
#include "loadtest/http_request.h"
#include "loadtest/tls.h"
#include "loadtest/url.h"

namespace millrace {

class HttpConnection;

using HttpEndpoints = std::vector<boost::asio::ip::tcp::endpoint>;

// Resolves the server's name. An error names it.
absl::StatusOr<HttpEndpoints> ResolveUrl(const ServerUrl& url);

// Sends a GET and returns the body of a response with status 200. Blocks, 10 s at most. `tls` is
// null for http://.
absl::StatusOr<std::string> HttpGet(const Options& options, const ServerUrl& url,
                                    const HttpEndpoints& endpoints, HttpTls* tls,
                                    const std::string& path);

class HttpLoadClient : public Client {
 public:
  // `tls` is null for http://.
  HttpLoadClient(const ServerUrl& url, const HttpEndpoints& endpoints, HttpTls* tls,
                 Driver& driver);
  ~HttpLoadClient() override;

  void Send(std::unique_ptr<Exchange> exchange) override;
  void AbortAll() override;
  // Runs the thread's share until the driver has finished.
  void Run();

 private:
  friend class HttpConnection;

  void Tick();
  void Schedule(double seconds);
  void Started(HttpConnection* connection) { active_.insert(connection); }
  // Gives back an exchange that has ended, and the connection, if it can serve another.
  void Ended(std::shared_ptr<HttpConnection> connection, std::unique_ptr<Exchange> exchange,
             bool is_reusable);

  boost::asio::io_context io_{1};
  boost::asio::steady_timer timer_{io_};
  const HttpEndpoints& endpoints_;
  HttpTls* const tls_;
  Driver& driver_;
  const HttpRequestWriter writer_;
  std::unordered_set<HttpConnection*> active_;
  std::vector<std::shared_ptr<HttpConnection>> idle_;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HTTP_CLIENT_H_
