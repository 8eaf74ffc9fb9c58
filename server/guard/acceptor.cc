#include "server/guard/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "base/status.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Tcp = net::ip::tcp;

constexpr std::chrono::milliseconds kRetry(100);

Tcp ProtocolOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return address.ss_family == AF_INET6 ? Tcp::v6() : Tcp::v4();
}

}  // namespace

Acceptor::Acceptor(std::vector<net::io_context*> contexts, LogComponent component,
                   OnSocket on_socket)
    : contexts_(std::move(contexts)), log_(component), on_socket_(std::move(on_socket)) {}

absl::StatusOr<uint16_t> Acceptor::Listen(const ListenAt& at) {
  MILLRACE_ASSIGN_OR_RETURN(auto acceptors, ListenOn(*contexts_.front(), at));
  for (Tcp::acceptor& acceptor : acceptors) {
    listeners_.push_back(std::make_unique<Listener>(std::move(acceptor)));
  }
  for (const auto& listener : listeners_) Accept(*listener);
  return listeners_.front()->acceptor.local_endpoint().port();
}

void Acceptor::Accept(Listener& listener) {
  if (closed_) return;
  const size_t next = Next();
  listener.acceptor.async_accept(
      *contexts_[next], [this, &listener, next](const error_code& error, Tcp::socket socket) {
        if (closed_ || error == net::error::operation_aborted) return;
        if (!error) {
          on_socket_(std::move(socket), next);
          return Accept(listener);
        }
        // No file descriptor is free, most likely: wait for connections to end.
        log_.Warning("cannot accept a connection: ", error.message());
        listener.retry.expires_after(kRetry);
        listener.retry.async_wait([this, &listener](const error_code& cancelled) {
          if (!cancelled) Accept(listener);
        });
      });
}

void Acceptor::Adopt(int fd) {
  net::post(*contexts_.front(), [this, fd] {
    const size_t next = Next();
    Tcp::socket socket(*contexts_[next]);
    error_code error = net::error::shut_down;
    if (!closed_) socket.assign(ProtocolOf(fd), fd, error);
    if (error) {
      close(fd);
    } else {
      on_socket_(std::move(socket), next);
    }
  });
}

void Acceptor::DropHandshakes() {
  for (const auto& listener : listeners_) DropNewHandshakes(listener->acceptor);
}

void Acceptor::Close() {
  closed_ = true;
  for (const auto& listener : listeners_) {
    error_code ignored;
    listener->acceptor.close(ignored);
    listener->retry.cancel();
  }
}

}  // namespace millrace
