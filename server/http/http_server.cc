#include "server/http/http_server.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "server/guard/acceptor.h"
#include "server/http/all_protocols.h"
#include "server/http/api/api.h"
#include "server/http/api/host_policy.h"
#include "server/http/transport/connection.h"
#include "server/http/transport/http_metrics.h"
#include "server/http/transport/io_thread.h"
#include "server/http/transport/server_state.h"
#include "server/http/transport/wire.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

Listener ListenerOf(const HttpOptions& options) {
  if (options.metrics_only) return Listener::kMetrics;
  return options.admin ? Listener::kAdmin : Listener::kPublic;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(Frontend& frontend, HttpOptions options)
      : frontend_(frontend), options_(std::move(options)) {}

  absl::StatusOr<uint16_t> Start();
  absl::Status CheckAllowedHosts(const std::vector<std::string>& hosts) const {
    return MakeHostPolicy(hosts).status();
  }
  absl::Status SetAllowedHosts(const std::vector<std::string>& hosts);
  void Adopt(int fd) { acceptor_->Adopt(fd); }
  void DropHandshakes();
  void StopListening();
  void Stop(absl::Duration grace);

 private:
  absl::StatusOr<HostPolicy> MakeHostPolicy(const std::vector<std::string>& allowed) const;
  absl::StatusOr<uint16_t> Listen();
  void OnAccepted(net::ip::tcp::socket socket, IoThread& thread);
  void RefuseConnection(net::ip::tcp::socket socket);
  void MakeRoom(size_t tried, std::shared_ptr<Connection> newcomer);
  // Lets the threads go, and before them what lives on them.
  void Forget();
  // Runs `work` on every thread and waits for it.
  template <typename Work>
  void OnEveryThread(Work work);

  Frontend& frontend_;
  HttpOptions options_;
  std::unique_ptr<HttpMetrics> metrics_;
  std::unique_ptr<Api> api_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::unique_ptr<ServerState> state_;
  std::optional<Acceptor> acceptor_;  // on the first thread
};

absl::StatusOr<HostPolicy> HttpServer::Impl::MakeHostPolicy(
    const std::vector<std::string>& allowed) const {
  // An empty credential passes exactly if no key is set.
  const bool has_key = !options_.metrics_only && !frontend_.Authorize("").ok();
  return HostPolicy::Make(options_.host, allowed, has_key, options_.hosts_setting);
}

absl::Status HttpServer::Impl::SetAllowedHosts(const std::vector<std::string>& hosts) {
  MILLRACE_ASSIGN_OR_RETURN(HostPolicy policy, MakeHostPolicy(hosts));
  api_->SetHosts(std::move(policy));
  return absl::OkStatus();
}

absl::StatusOr<uint16_t> HttpServer::Impl::Start() {
  if (options_.admin) options_.host = "127.0.0.1";
  MILLRACE_ASSIGN_OR_RETURN(HostPolicy policy, MakeHostPolicy(options_.allowed_hosts));
  api_ = std::make_unique<Api>(frontend_, std::move(policy),
                               ApiOptions{.listener = ListenerOf(options_),
                                          .allowed_origins = options_.allowed_origins,
                                          .console = options_.console,
                                          .max_body_bytes = options_.limits.body_bytes,
                                          .unknown_fields = options_.unknown_fields,
                                          .auto_tool_choice = options_.auto_tool_choice,
                                          .drain = options_.drain},
                               AllProtocols());
  metrics_ = std::make_unique<HttpMetrics>(frontend_.metrics().registry());
  if (options_.outputs == nullptr) {
    options_.outputs = std::make_shared<OutputBudget>(options_.limits.all_answer_bytes);
  }
  state_ = std::make_unique<ServerState>(*api_, options_.limits, *metrics_, *options_.outputs,
                                         *options_.clock, std::max(options_.threads, 1),
                                         options_.transport);
  for (int i = 0; i < std::max(options_.threads, 1); ++i) {
    threads_.push_back(std::make_unique<IoThread>());
  }
  absl::StatusOr<uint16_t> port = Listen();
  if (!port.ok()) {
    Forget();
    return port;
  }
  for (const auto& thread : threads_) thread->Start();
  return port;
}

absl::StatusOr<uint16_t> HttpServer::Impl::Listen() {
  std::vector<net::io_context*> contexts;
  for (const auto& thread : threads_) contexts.push_back(&thread->context());
  acceptor_.emplace(std::move(contexts), LogComponent::kHttp,
                    [this](net::ip::tcp::socket socket, size_t thread) {
                      OnAccepted(std::move(socket), *threads_[thread]);
                    });
  if (!options_.listens) return uint16_t{0};
  return acceptor_->Listen({.host = options_.host,
                            .port = options_.port,
                            .host_setting = options_.host_setting,
                            .port_setting = options_.port_setting});
}

void HttpServer::Impl::OnAccepted(net::ip::tcp::socket socket, IoThread& thread) {
  if (state_->stopping) return;
  const size_t connections = ++state_->connections;
  const HttpLimits& limits = options_.limits;
  if (connections > limits.connections + limits.probe_connections) {
    MakeRoom(0, nullptr);
    --state_->connections;
    RefuseConnection(std::move(socket));
  } else {
    const bool spare = connections > limits.connections;
    const auto connection = std::make_shared<Connection>(std::move(socket), thread, *state_, spare);
    if (spare) {
      MakeRoom(0, connection);
    } else {
      net::post(thread.context(), [connection] { connection->Start(); });
    }
  }
}

// Has the threads close their longest waiting connections, `tried` first and those after it, until
// there are no more than the limit; then starts `newcomer`. Earlier newcomers may have found none
// that waited, and have stayed.
void HttpServer::Impl::MakeRoom(size_t tried, std::shared_ptr<Connection> newcomer) {
  if (tried == threads_.size()) {
    if (newcomer == nullptr) return;
    return net::post(newcomer->context(), [newcomer] { newcomer->Start(); });
  }
  IoThread& thread = *threads_[tried];
  net::post(thread.context(), [this, tried, &thread, newcomer = std::move(newcomer)] {
    while (state_->full() && thread.CloseLongestWaiting()) {
    }
    MakeRoom(state_->full() ? tried + 1 : threads_.size(), newcomer);
  });
}

// Without waiting for its request: this must stay cheap.
void HttpServer::Impl::RefuseConnection(net::ip::tcp::socket socket) {
  metrics_->OnRefusal("too_many_connections");
  if (options_.transport.tls != nullptr) return;  // to say it would take a handshake
  ApiError refusal = HttpError(503, "service_unavailable", "too many connections");
  refusal.retry_after = absl::Seconds(1);
  const HttpResponse response = ErrorResponse(refusal);
  std::string out;
  AppendResponseHead(out, response, "-", Framing::kLength, response.body.size(), false);
  out += response.body;
  error_code ignored;  // a courtesy: the connection ends either way
  socket.non_blocking(true, ignored);
  socket.write_some(net::buffer(out), ignored);
  socket.shutdown(net::ip::tcp::socket::shutdown_both, ignored);
}

template <typename Work>
void HttpServer::Impl::OnEveryThread(Work work) {
  std::vector<std::future<void>> done;
  for (const auto& thread : threads_) {
    auto task = std::make_shared<std::packaged_task<void()>>([&work, &thread] { work(*thread); });
    done.push_back(task->get_future());
    net::post(thread->context(), [task] { (*task)(); });
  }
  for (auto& one : done) one.wait();
}

void HttpServer::Impl::DropHandshakes() { acceptor_->DropHandshakes(); }

void HttpServer::Impl::StopListening() {
  if (threads_.empty()) return;
  OnEveryThread([this](IoThread& thread) {
    if (&thread == threads_.front().get()) acceptor_->Close();
    thread.CloseConnections(WhichConnections::kUsedIdle);
  });
}

void HttpServer::Impl::Stop(absl::Duration grace) {
  if (threads_.empty()) return;
  state_->stopping = true;
  StopListening();
  OnEveryThread([](IoThread& thread) { thread.CloseConnections(WhichConnections::kIdle); });
  const absl::Time end = absl::Now() + grace;
  while (state_->connections > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  OnEveryThread([](IoThread& thread) { thread.CloseConnections(WhichConnections::kAll); });
  state_->parsers.End();
  state_->renderer.End();
  for (const auto& thread : threads_) thread->Join();
  Forget();
}

void HttpServer::Impl::Forget() {
  acceptor_.reset();
  threads_.clear();
}

HttpServer::HttpServer(Frontend& frontend, HttpOptions options)
    : impl_(std::make_unique<Impl>(frontend, std::move(options))) {}

HttpServer::~HttpServer() { Stop(absl::ZeroDuration()); }

absl::StatusOr<uint16_t> HttpServer::Start() { return impl_->Start(); }

absl::Status HttpServer::CheckAllowedHosts(const std::vector<std::string>& hosts) const {
  return impl_->CheckAllowedHosts(hosts);
}

absl::Status HttpServer::SetAllowedHosts(const std::vector<std::string>& hosts) {
  return impl_->SetAllowedHosts(hosts);
}

void HttpServer::Adopt(int fd) { impl_->Adopt(fd); }

void HttpServer::DropHandshakes() { impl_->DropHandshakes(); }

void HttpServer::StopListening() { impl_->StopListening(); }

void HttpServer::Stop(absl::Duration grace) { impl_->Stop(grace); }

}  // namespace millrace
