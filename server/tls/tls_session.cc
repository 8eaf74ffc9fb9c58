#include "server/tls/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/strings.h"
#include "server/tls/client_hello.h"
#include "server/tls/x509_text.h"

namespace millrace {
namespace {

namespace errors = boost::asio::error;

// In a row. What they find instead are key updates, which a client needs to send once in 2^24
// records of data, and attempts to renegotiate. One such read costs up to a millisecond.
constexpr int kMostBarrenReads = 8;

// ---- OpenSSL's way to the socket. Its own one may raise SIGPIPE, and counts nothing. ----

TlsSession::Io& IoOf(BIO* bio) { return *static_cast<TlsSession::Io*>(BIO_get_data(bio)); }

bool IsTransient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int BioRead(BIO* bio, char* data, int size) {
  TlsSession::Io& io = IoOf(bio);
  BIO_clear_retry_flags(bio);
  if (const size_t left = io.first.size() - io.first_read; left > 0) {
    const size_t taken = std::min(left, static_cast<size_t>(size));
    std::memcpy(data, io.first.data() + io.first_read, taken);
    io.first_read += taken;
    if (taken == left) {
      io.first = std::vector<uint8_t>();
      io.first_read = 0;
    }
    return static_cast<int>(taken);
  }
  const ssize_t read = recv(io.socket, data, static_cast<size_t>(size), 0);
  if (read < 0 && IsTransient(errno)) {
    io.drained = true;
    BIO_set_retry_read(bio);
  }
  return static_cast<int>(read);
}

int BioWrite(BIO* bio, const char* data, int size) {
  TlsSession::Io& io = IoOf(bio);
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(io.socket, data, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent > 0) io.sent += static_cast<uint64_t>(sent);
  if (sent < 0 && IsTransient(errno)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

long BioControl(BIO*, int command, long, void*) {  // NOLINT(google-runtime-int): OpenSSL's type
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_read(made, BioRead);
    BIO_meth_set_write(made, BioWrite);
    BIO_meth_set_ctrl(made, BioControl);
    return made;
  }();
  return method;
}

}  // namespace

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, TlsProtocol protocol, int socket,
                       HelloBudget& hellos)
    : context_(std::move(context)), protocol_(protocol), hellos_(hellos), io_{.socket = socket} {}

TlsSession::~TlsSession() { SSL_free(ssl_); }

// Gives back the memory of the handshake: an endpoint keeps the connection for a while, so that the
// client can read why. OpenSSL has sent its alert by then.
void TlsSession::Fail(TransportFailure failure, std::string text) {
  failure_ = failure;
  failure_text_ = std::move(text);
  SSL_free(std::exchange(ssl_, nullptr));
  io_.first = std::vector<uint8_t>();
  hello_.reset();
}

// ---- The handshake ----

// Reads no byte beyond the message. One that comes whole, as nearly all do, is read on the stack.
bool TlsSession::TakeHello() {
  if (has_hello_ || failure_ != TransportFailure::kNone) return has_hello_;
  std::array<uint8_t, ClientHello::kMostBytes> bytes;
  size_t size = 0;
  if (hello_ != nullptr) {
    size = hello_->CopyTo(bytes);
    if (size == 0) return FailCrowded();
  }
  while (true) {
    const ClientHello hello = ReadClientHello({bytes.data(), size});
    switch (hello.state) {
      case ClientHello::State::kWhole:
        io_.first.assign(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
        hello_.reset();
        return has_hello_ = true;
      case ClientHello::State::kNotTls:
        Fail(TransportFailure::kPlaintext, "what came is not TLS");
        return false;
      case ClientHello::State::kBad:
        Fail(TransportFailure::kHandshake, "the client's first message is broken or too long");
        return false;
      case ClientHello::State::kIncomplete:
        break;
    }
    const ssize_t read = recv(io_.socket, bytes.data() + size, hello.size - size, 0);
    if (read < 0 && IsTransient(errno)) return KeepHello({bytes.data(), size});
    if (read <= 0) {
      Fail(TransportFailure::kHandshake, "the client closed the connection");
      return false;
    }
    size += static_cast<size_t>(read);
  }
}

bool TlsSession::KeepHello(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return false;
  if (hello_ == nullptr) hello_ = std::make_unique<HelloBudget::Hello>(hellos_);
  return hello_->Keep(bytes) ? false : FailCrowded();
}

bool TlsSession::FailCrowded() {
  Fail(TransportFailure::kHandshake, "too many clients have sent a part of their first message");
  return false;
}

bool TlsSession::MakeSsl() {
  ssl_ = SSL_new(context_->get());
  BIO* const bio = BIO_new(SocketMethod());
  if (ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return false;
  }
  BIO_set_data(bio, &io_);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, &protocol_);
  SSL_set_accept_state(ssl_);
  return true;
}

void TlsSession::Handshake() {
  wants_write_ = false;
  if (ssl_ == nullptr && !MakeSsl()) {
    return Fail(TransportFailure::kHandshake, "the memory is short");
  }
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  if (done == 1) {
    established_ = true;
    has_more_ = true;  // the client's first data may have come with its last message
    NoteClient();
    return;
  }
  switch (SSL_get_error(ssl_, done)) {
    case SSL_ERROR_WANT_READ:
      return;
    case SSL_ERROR_WANT_WRITE:
      wants_write_ = true;
      return;
    default:
      FailHandshake();
  }
}

// The handshake has failed if the certificate is not one of the authorities'.
void TlsSession::NoteClient() {
  const X509* const certificate = SSL_get0_peer_certificate(ssl_);
  if (certificate == nullptr || SSL_get_verify_result(ssl_) != X509_V_OK) return;
  client_name_ = NameOf(*certificate);
  client_identities_ = std::make_shared<std::vector<std::string>>(IdentitiesOf(*certificate));
}

void TlsSession::FailHandshake() {
  const auto error = ERR_peek_error();
  const int reason = ERR_GET_REASON(error);
  const auto verified = SSL_get_verify_result(ssl_);
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && verified != X509_V_OK) {
    return Fail(TransportFailure::kClientCertificate, X509_verify_cert_error_string(verified));
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return Fail(TransportFailure::kClientCertificate, "the client showed no certificate");
  }
  Fail(TransportFailure::kHandshake,
       error == 0 ? "the client closed the connection" : TakeOpenSslError());
}

// ---- Data ----

size_t TlsSession::Read(void* data, size_t size, error_code& error) {
  error = {};
  wants_write_ = false;
  has_more_ = true;
  size_t total = 0;
  while (total < size) {
    ERR_clear_error();
    io_.drained = false;
    size_t read = 0;
    const int done = SSL_read_ex(ssl_, static_cast<char*>(data) + total, size - total, &read);
    if (done == 1) {
      total += read;
      barren_ = 0;
      continue;
    }
    const int why = SSL_get_error(ssl_, done);
    if (why == SSL_ERROR_WANT_READ && !io_.drained) {
      if (++barren_ <= kMostBarrenReads) continue;
      error = errors::connection_aborted;
    } else if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
      wants_write_ = why == SSL_ERROR_WANT_WRITE;
      has_more_ = false;
      if (total == 0) error = errors::would_block;
    } else if (total == 0) {
      error = why == SSL_ERROR_ZERO_RETURN ? error_code(errors::eof)
                                           : error_code(errors::connection_reset);
    }
    break;
  }
  return total;
}

size_t TlsSession::Write(const void* data, size_t size, error_code& error) {
  error = {};
  if (size == 0) return 0;
  ERR_clear_error();
  size_t written = 0;
  const int done = SSL_write_ex(ssl_, data, size, &written);
  if (done == 1) return written;
  error = SSL_get_error(ssl_, done) == SSL_ERROR_WANT_WRITE ? error_code(errors::would_block)
                                                            : error_code(errors::connection_reset);
  return 0;
}

void TlsSession::SendCloseNotify() {
  ERR_clear_error();
  SSL_shutdown(ssl_);  // where the socket is full it is left out, and the client sees the end alone
}

}  // namespace millrace
