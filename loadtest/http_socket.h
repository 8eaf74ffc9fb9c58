// The socket of an HTTP connection, with or without TLS on it.
#ifndef MILLRACE_LOADTEST_HTTP_SOCKET_H_
#define MILLRACE_LOADTEST_HTTP_SOCKET_H_

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <utility>

#include "loadtest/tls.h"

namespace millrace {

// Used by one thread.
class HttpSocket {
 public:
  using Error = boost::system::error_code;
  using Tcp = boost::asio::ip::tcp;

  // `tls` is null for plain connections, else it outlives this.
  HttpSocket(boost::asio::io_context& io, HttpTls* tls) : socket_(io), tls_(tls) {}

  Tcp::socket& tcp() { return socket_; }

  // Connects, and does the handshake. tcp() is open.
  template <typename Handler>
  void async_connect(const Tcp::endpoint& to, Handler handler) {
    if (tls_ == nullptr) return socket_.async_connect(to, std::move(handler));
    stream_ = std::make_shared<Stream>(socket_, tls_->context());
    tls_->Prepare(*stream_);
    socket_.async_connect(to, [stream = stream_, handler = std::move(handler)](Error failed) {
      if (failed) return handler(failed);
      stream->async_handshake(boost::asio::ssl::stream_base::client,
                              [stream, handler](const Error& error) { handler(error); });
    });
  }

  // Writes all of the buffer.
  template <typename Handler>
  void async_write(boost::asio::const_buffer buffer, Handler handler) {
    if (tls_ == nullptr) return boost::asio::async_write(socket_, buffer, std::move(handler));
    boost::asio::async_write(*stream_, buffer,
                             [stream = stream_, handler = std::move(handler)](
                                 const Error& error, size_t bytes) { handler(error, bytes); });
  }

  template <typename Handler>
  void async_read_some(boost::asio::mutable_buffer buffer, Handler handler) {
    if (tls_ == nullptr) return socket_.async_read_some(buffer, std::move(handler));
    stream_->async_read_some(
        buffer, [stream = stream_, handler = std::move(handler)](const Error& error, size_t bytes) {
          // Many servers close without a word of TLS's: what HTTP says counts.
          const bool ended = error == boost::asio::ssl::error::stream_truncated;
          handler(ended ? Error(boost::asio::error::eof) : error, bytes);
        });
  }

 private:
  using Stream = boost::asio::ssl::stream<Tcp::socket&>;

  Tcp::socket socket_;
  HttpTls* const tls_;
  // Shared with what it does: an operation of a connection before this one may yet be called back.
  std::shared_ptr<Stream> stream_;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HTTP_SOCKET_H_
