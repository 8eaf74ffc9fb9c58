// The server's side of TLS over one non-blocking socket.
#ifndef MILLRACE_SERVER_TLS_TLS_SESSION_H_
#define MILLRACE_SERVER_TLS_TLS_SESSION_H_

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/tls/hello_budget.h"
#include "server/tls/tls_context.h"

struct ssl_st;

namespace millrace {

// Why a connection's beginning failed.
enum class TransportFailure {
  kNone,
  kProxyHeader,        // of a proxy, whose header did not come
  kPlaintext,          // what came is not TLS
  kClientCertificate,  // missing, or not one of the authorities'
  kHandshake,  // no common version, cipher or protocol; a broken message; the client's alert
};

// Used by one thread at a time.
class TlsSession {
 public:
  using error_code = boost::system::error_code;

  // `hellos` outlives it.
  TlsSession(std::shared_ptr<const TlsContext> context, TlsProtocol protocol, int socket,
             HelloBudget& hellos);
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession();

  // Takes what has come of the client's first message, and returns whether Handshake can go on:
  // not before the message is whole, since what OpenSSL needs for it is a hundred times as much.
  // A message that can be none is a failure.
  bool TakeHello();
  // Returns the size of the message, until Handshake has read it.
  size_t hello_size() const { return io_.first.size(); }
  // Returns whether the message was incomplete for so long that its memory was given to others: the
  // connection is to be closed.
  bool gave_way() const { return hello_ != nullptr && hello_->gave_way(); }
  // Fails the handshake before it begins.
  void Refuse(std::string text) { Fail(TransportFailure::kHandshake, std::move(text)); }
  // Goes on with the handshake as far as what has come allows. Call after TakeHello.
  void Handshake();
  bool established() const { return established_; }
  TransportFailure failure() const { return failure_; }
  // Says why in a few words, for a log line.
  const std::string& failure_text() const { return failure_text_; }
  // Returns the name in the client's certificate (NameOf); empty if it showed none.
  const std::string& client_name() const { return client_name_; }
  // Returns the names that the client's certificate stands for (IdentitiesOf); null if it showed
  // none.
  const std::shared_ptr<const std::vector<std::string>>& client_identities() const {
    return client_identities_;
  }

  // Reads until `size` bytes are there or the socket has no more: then fewer, and if there is none
  // an error, would_block or the connection's end. Call once the handshake is done.
  size_t Read(void* data, size_t size, error_code& error);
  // Writes what the socket takes, or sets would_block: then the same bytes must be written again,
  // of which there may be more by then.
  size_t Write(const void* data, size_t size, error_code& error);
  // Says that no more will be written.
  void SendCloseNotify();

  // Returns whether a Read would find bytes, or the connection's end, that the socket no longer
  // has.
  bool has_more() const { return has_more_; }
  // Returns whether the last Handshake or Read waits for the socket to take bytes, not to have
  // some.
  bool wants_write() const { return wants_write_; }
  // Bytes that were written to the socket.
  uint64_t sent() const { return io_.sent; }

  // The state that OpenSSL's reads and writes share.
  struct Io {
    int socket = -1;
    uint64_t sent = 0;
    bool drained = false;             // the socket had nothing to read
    std::vector<uint8_t> first = {};  // the client's first message, which is read before the socket
    size_t first_read = 0;            // of it
  };

 private:
  void Fail(TransportFailure failure, std::string text);
  // Both return false: the message is not whole.
  bool KeepHello(std::span<const uint8_t> bytes);
  bool FailCrowded();
  bool MakeSsl();
  void NoteClient();
  void FailHandshake();

  const std::shared_ptr<const TlsContext> context_;
  TlsProtocol protocol_;
  HelloBudget& hellos_;
  std::unique_ptr<HelloBudget::Hello> hello_;  // while a part of the first message has come
  Io io_;
  ssl_st* ssl_ = nullptr;  // from the first Handshake on, unless it fails
  bool has_hello_ = false;
  bool established_ = false;
  bool has_more_ = false;
  bool wants_write_ = false;
  int barren_ = 0;  // reads in a row that found records, but no data in them
  TransportFailure failure_ = TransportFailure::kNone;
  std::string failure_text_;
  std::string client_name_;
  std::shared_ptr<const std::vector<std::string>> client_identities_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_TLS_SESSION_H_
