// A client's connection: a socket, with or without TLS on it.
#ifndef MILLRACE_SERVER_TLS_TRANSPORT_H_
#define MILLRACE_SERVER_TLS_TRANSPORT_H_

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/address_range.h"
#include "base/clock.h"
#include "server/tls/tls_server.h"
#include "server/tls/tls_session.h"

namespace millrace {

// The rules for all connections of a listener.
struct TransportRules {
  TlsServer* tls = nullptr;  // null: the connections are plain; else it outlives them
  // Whose connections begin with a ProxyHeader. Those of others are the clients' own.
  std::vector<AddressRange> proxies;

  bool IsProxy(const boost::asio::ip::address& address) const;
};

// Has the functions of Asio's sockets under their names, non-blocking ones only, and does what a
// socket does: read_some returns fewer bytes than asked for only if there are no more for now.
//
// A connection of one of the proxies begins with its header, and one with TLS, after that, with the
// handshake. Until they are done read_some would block; async_wait(wait_read) goes on with them,
// with the handshake on the threads of the TlsServer, and calls back after each step. If one fails,
// the next read_some returns an error, and failure() says why. From then on, and after shutdown,
// reads and writes are those of the socket: for a last word to a client that does not speak TLS,
// and to read and discard its data.
class Transport {
 public:
  using error_code = boost::system::error_code;
  using Socket = boost::asio::ip::tcp::socket;
  static constexpr auto wait_read = Socket::wait_read;
  static constexpr auto wait_write = Socket::wait_write;

  // `rules` outlive it.
  Transport(Socket socket, const TransportRules& rules, TlsProtocol protocol);
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport();

  // Sets the socket's options and begins. Call first. It learns here which certificate is shown.
  void Start();

  template <typename Buffer>
  size_t read_some(const Buffer& buffer, error_code& error) {
    if (direct_) return socket_.read_some(buffer, error);
    return ReadIndirect(boost::asio::mutable_buffer(buffer), error);
  }

  template <typename Buffer>
  size_t write_some(const Buffer& buffer, error_code& error) {
    if (!direct_) return WriteTls(boost::asio::const_buffer(buffer), error);
    const size_t written = socket_.write_some(buffer, error);
    sent_ += written;
    return written;
  }

  // `handler` keeps this alive. One wait for each direction at a time.
  template <typename Handler>
  void async_wait(Socket::wait_type what, Handler handler) {
    if (direct_ || what == wait_write) return socket_.async_wait(what, std::move(handler));
    WaitIndirect(std::move(handler));
  }

  // Says that no more will be written.
  void shutdown(Socket::shutdown_type what, error_code& error);
  void close(error_code& error);

  // The client's address, as the proxy's header says it if there is one.
  const Socket::endpoint_type& peer() const { return peer_; }
  bool is_proxied() const { return is_proxied_; }
  Socket::executor_type get_executor() { return socket_.get_executor(); }
  int native_handle() { return socket_.native_handle(); }
  size_t available(error_code& error) const { return socket_.available(error); }

  // Returns whether the proxy's header or the handshake is still under way. Nothing can be written
  // until they are done.
  bool is_beginning() const { return awaits_header_ || is_shaking_; }
  // Returns whether this handshake, or its first message, has taken long while there are too many:
  // then close it.
  bool gives_way(SteadyTime now) const;
  TransportFailure failure() const;
  std::string_view failure_text() const;
  // Returns the name in the client's certificate; empty without one.
  std::string_view client_name() const;
  // Returns all names that the client's certificate stands for; null without one.
  std::shared_ptr<const std::vector<std::string>> client_identities() const;
  // Bytes that were written to the socket, TLS's own among them.
  uint64_t sent() const { return sent_ + (session_ ? session_->sent() : 0); }

 private:
  using Handler = std::function<void(const error_code&)>;

  size_t ReadIndirect(boost::asio::mutable_buffer buffer, error_code& error);
  size_t WriteTls(boost::asio::const_buffer buffer, error_code& error);
  void WaitIndirect(Handler handler);
  void ReadHeader();
  bool BeginShaking();
  void EndShaking();
  void Step(Handler handler);

  Socket socket_;
  const TransportRules& rules_;
  const TlsProtocol protocol_;
  std::optional<TlsSession> session_;
  Socket::endpoint_type peer_;
  bool is_proxied_ = false;
  std::vector<uint8_t> header_;  // of the proxy, as far as it has come
  bool awaits_header_;
  bool has_bad_header_ = false;
  bool is_shaking_;                // the handshake is not done
  bool direct_;                    // reads and writes are the socket's
  std::optional<size_t> counted_;  // by TlsServer, as a hello of so many bytes, since:
  SteadyTime counted_since_;
  bool stepping_ = false;  // a thread of the TlsServer has the session and the socket
  bool closed_ = false;
  uint64_t sent_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_TRANSPORT_H_
