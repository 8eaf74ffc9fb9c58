#include "server/guard/shared_port.h"

#include <poll.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <future>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/guard/acceptor.h"
#include "server/guard/first_bytes.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Tcp = net::ip::tcp;

constexpr std::chrono::milliseconds kTick(50);

// Connections wait here on top of those of the endpoints, which have a share of the descriptors of
// their own.
size_t WithinDescriptors(size_t connections) {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return connections;
  return std::min(connections, std::max<size_t>(files.rlim_cur / 10, 8));
}

// A connection that has not said its protocol.
struct Newcomer {
  explicit Newcomer(Tcp::socket taken) : socket(std::move(taken)) {}
  Tcp::socket socket;
  SteadyTime deadline;
  bool is_proxied = false;
  int wanted = 1;                             // bytes that must have come before another look
  bool rests = false;                         // until the next tick
  bool is_here = true;                        // false: handed on, or closed
  std::unique_ptr<HelloBudget::Hello> hello;  // with TLS, while a part of its first bytes is here
  std::list<std::shared_ptr<Newcomer>>::iterator place;
};

bool HasEnded(int fd) {
  pollfd one{.fd = fd, .events = POLLRDHUP};
  return poll(&one, 1, 0) == 1 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void SetLowWater(int fd, int bytes) {
  setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

}  // namespace

// Everything but Start, DropHandshakes, StopListening and Close runs on its thread.
class SharedPort::Impl {
 public:
  Impl(SharedPortOptions options, prometheus::Registry& registry, Endpoints endpoints);

  absl::StatusOr<uint16_t> Start();
  void DropHandshakes() { acceptor_.DropHandshakes(); }
  void StopListening();
  void Close();

 private:
  void Welcome(Tcp::socket socket);
  void Wait(const std::shared_ptr<Newcomer>& one);
  void Look(const std::shared_ptr<Newcomer>& one);
  void HandOn(Newcomer& one, const Take& endpoint);
  bool Charge(Newcomer& one, size_t bytes) const;
  void Evict(Newcomer& one);
  void Drop(Newcomer& one);
  std::shared_ptr<Newcomer> Leave(Newcomer& one);
  void Tick();
  template <typename Work>
  void OnThread(Work work);

  const SharedPortOptions options_;
  const size_t most_;
  const Endpoints endpoints_;
  prometheus::Gauge& waiting_metric_;
  prometheus::Counter& late_;
  prometheus::Counter& evicted_;

  net::io_context context_{1};
  net::executor_work_guard<net::io_context::executor_type> work_{context_.get_executor()};
  net::steady_timer timer_{context_};
  Acceptor acceptor_;
  std::list<std::shared_ptr<Newcomer>> waiting_;  // the oldest first
  std::vector<uint8_t> seen_ = std::vector<uint8_t>(FirstBytes::kMostBytes);
  bool ended_ = false;
  std::thread thread_;
};

SharedPort::Impl::Impl(SharedPortOptions options, prometheus::Registry& registry,
                       Endpoints endpoints)
    : options_(std::move(options)),
      most_(WithinDescriptors(options_.connections)),
      endpoints_(std::move(endpoints)),
      waiting_metric_(
          prometheus::BuildGauge()
              .Name("millrace_shared_port_connections")
              .Help("Connections to a port of HTTP and gRPC that have not said which they speak.")
              .Register(registry)
              .Add({})),
      late_(prometheus::BuildCounter()
                .Name("millrace_shared_port_closed_total")
                .Help("Those that were closed, by reason.")
                .Register(registry)
                .Add({{"reason", "handshake_timeout"}})),
      evicted_(prometheus::BuildCounter()
                   .Name("millrace_shared_port_closed_total")
                   .Help("Those that were closed, by reason.")
                   .Register(registry)
                   .Add({{"reason", "connections"}})),
      acceptor_({&context_}, LogComponent::kServer,
                [this](Tcp::socket socket, size_t) { Welcome(std::move(socket)); }) {}

absl::StatusOr<uint16_t> SharedPort::Impl::Start() {
  MILLRACE_ASSIGN_OR_RETURN(const uint16_t port, acceptor_.Listen({.host = options_.host,
                                                                   .port = options_.port,
                                                                   .port_setting = "http-port"}));
  Tick();
  thread_ = std::thread([this] { context_.run(); });
  return port;
}

void SharedPort::Impl::Welcome(Tcp::socket socket) {
  if (waiting_.size() >= most_) Evict(*waiting_.front());
  auto one = std::make_shared<Newcomer>(std::move(socket));
  error_code error;
  const Tcp::endpoint peer = one->socket.remote_endpoint(error);
  if (error) return;  // it is gone
  one->deadline = Clock::Real().Now() + options_.timeout;
  one->is_proxied = options_.transport.IsProxy(peer.address());
  one->place = waiting_.insert(waiting_.end(), one);
  waiting_metric_.Set(static_cast<double>(waiting_.size()));
  Look(one);
}

void SharedPort::Impl::Wait(const std::shared_ptr<Newcomer>& one) {
  one->socket.async_wait(Tcp::socket::wait_read, [this, one](const error_code& error) {
    if (!error && one->is_here) Look(one);
  });
}

void SharedPort::Impl::Look(const std::shared_ptr<Newcomer>& one) {
  const int fd = one->socket.native_handle();
  const ssize_t seen = recv(fd, seen_.data(), seen_.size(), MSG_PEEK | MSG_DONTWAIT);
  if (seen < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Wait(one);
  if (seen <= 0) return Drop(*one);
  const FirstBytes first = ReadFirstBytes({seen_.data(), static_cast<size_t>(seen)},
                                          one->is_proxied, options_.transport.tls != nullptr);
  switch (first.protocol) {
    case FirstBytes::Protocol::kHttp1:
      return HandOn(*one, endpoints_.http1);
    case FirstBytes::Protocol::kHttp2:
      return HandOn(*one, endpoints_.http2);
    case FirstBytes::Protocol::kUnknown:
      break;
  }
  // HTTP judges what such a client sent.
  if (HasEnded(fd)) return HandOn(*one, endpoints_.http1);
  if (!Charge(*one, first.size)) return Evict(*one);
  const int wanted = static_cast<int>(first.size);
  if (wanted == one->wanted && wanted > 1) {
    // The socket was readable, and has not so many: a system that is short of memory says so.
    one->rests = true;
    return;
  }
  // Bytes that lie there and are too few would wake this thread again and again.
  one->wanted = wanted;
  SetLowWater(fd, wanted);
  Wait(one);
}

void SharedPort::Impl::HandOn(Newcomer& one, const Take& endpoint) {
  if (one.wanted > 1) SetLowWater(one.socket.native_handle(), 1);
  error_code error;
  const int fd = Leave(one)->socket.release(error);
  if (!error) endpoint(fd);
}

// The bytes lie in the socket, at the most as many as are waited for. Without TLS they are few.
bool SharedPort::Impl::Charge(Newcomer& one, size_t bytes) const {
  TlsServer* const tls = options_.transport.tls;
  if (tls == nullptr) return true;
  if (one.hello == nullptr) one.hello = std::make_unique<HelloBudget::Hello>(tls->hellos());
  return one.hello->Charge(bytes);
}

void SharedPort::Impl::Evict(Newcomer& one) {
  evicted_.Increment();
  Drop(one);
}

// Counts it out first: a client that sees the end finds it in the metrics.
void SharedPort::Impl::Drop(Newcomer& one) {
  error_code ignored;
  Leave(one)->socket.close(ignored);
}

std::shared_ptr<Newcomer> SharedPort::Impl::Leave(Newcomer& one) {
  one.is_here = false;
  one.hello.reset();
  std::shared_ptr<Newcomer> self = std::move(*one.place);
  waiting_.erase(one.place);
  waiting_metric_.Set(static_cast<double>(waiting_.size()));
  return self;
}

void SharedPort::Impl::Tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](const error_code& error) {
    if (error || ended_) return;
    const SteadyTime now = Clock::Real().Now();
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const std::shared_ptr<Newcomer> one = *it++;
      if (now > one->deadline) {
        late_.Increment();
        Drop(*one);
      } else if (one->hello != nullptr && one->hello->gave_way()) {
        Evict(*one);
      } else if (std::exchange(one->rests, false)) {
        Look(one);
      }
    }
    Tick();
  });
}

template <typename Work>
void SharedPort::Impl::OnThread(Work work) {
  if (!thread_.joinable()) return;
  std::promise<void> done;
  net::post(context_, [&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

void SharedPort::Impl::StopListening() {
  OnThread([this] { acceptor_.Close(); });
}

void SharedPort::Impl::Close() {
  OnThread([this] {
    acceptor_.Close();
    while (!waiting_.empty()) Drop(*waiting_.front());
    ended_ = true;
    timer_.cancel();
    work_.reset();
  });
  if (thread_.joinable()) thread_.join();
}

SharedPort::SharedPort(SharedPortOptions options, prometheus::Registry& registry,
                       Endpoints endpoints)
    : impl_(std::make_unique<Impl>(std::move(options), registry, std::move(endpoints))) {}

SharedPort::~SharedPort() { Close(); }

absl::StatusOr<uint16_t> SharedPort::Start() { return impl_->Start(); }

void SharedPort::DropHandshakes() { impl_->DropHandshakes(); }

void SharedPort::StopListening() { impl_->StopListening(); }

void SharedPort::Close() { impl_->Close(); }

}  // namespace millrace
