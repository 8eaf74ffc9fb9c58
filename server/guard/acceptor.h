// Accepts the connections of an endpoint, and spreads them over its threads.
#ifndef MILLRACE_SERVER_GUARD_ACCEPTOR_H_
#define MILLRACE_SERVER_GUARD_ACCEPTOR_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "server/guard/listen.h"

namespace millrace {

// Destroy it when the threads have ended, and before the contexts.
class Acceptor {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  // Takes a connection, which lives on the context of this index. Called on the first one's thread.
  using OnSocket = std::function<void(Socket socket, size_t context)>;

  // `contexts` are run by one thread each; what is logged is of `component`.
  Acceptor(std::vector<boost::asio::io_context*> contexts, LogComponent component,
           OnSocket on_socket);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Listens, and returns the port; errors are ListenOn's. Call before the threads run.
  absl::StatusOr<uint16_t> Listen(const ListenAt& at);

  // Takes a connection that was accepted elsewhere, from which nothing has been read. Thread-safe.
  void Adopt(int fd);

  // Drops new handshakes (DropNewHandshakes). Thread-safe.
  void DropHandshakes();

  // Accepts and adopts no more. Call on the first context's thread.
  void Close();

 private:
  struct Listener {
    explicit Listener(boost::asio::ip::tcp::acceptor taken)
        : acceptor(std::move(taken)), retry(acceptor.get_executor()) {}
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer retry;
  };

  void Accept(Listener& listener);
  size_t Next() { return next_++ % contexts_.size(); }

  const std::vector<boost::asio::io_context*> contexts_;
  const Logger log_;
  const OnSocket on_socket_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  size_t next_ = 0;
  bool closed_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_ACCEPTOR_H_
