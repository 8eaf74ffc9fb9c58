// A client of TLS for tests.
#ifndef MILLRACE_SERVER_TLS_CLIENT_TEST_UTIL_H_
#define MILLRACE_SERVER_TLS_CLIENT_TEST_UTIL_H_

#include <openssl/ssl.h>

#include <string>
#include <string_view>

#include "server/tls/certificates_test_util.h"

namespace millrace {

// Blocks, 20 s at most.
class TestClient {
 public:
  // Connects to the port on 127.0.0.1.
  explicit TestClient(int port);
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;
  ~TestClient();

  // Offers protocols by ALPN, each after its length.
  void Offer(std::string_view protocols);
  void Show(const TestCertificate& certificate);
  // For what a test sets besides, before the handshake.
  SSL_CTX* context() { return context_; }

  // Returns "" or what went wrong.
  std::string Handshake();
  // Sends the first message in two parts, the second one when the server, which is in this process,
  // has read the first, of `part` bytes.
  std::string HandshakeInParts(size_t part);
  SSL* ssl() { return ssl_; }
  std::string Chosen() const;  // of what was offered
  std::string NameOfServer() const;

  void Send(std::string_view bytes);
  // Reads `size` bytes. If the connection ends before, "|" and how it did follow those that came.
  std::string Read(size_t size);

  // Without TLS.
  void SendRaw(std::string_view bytes) const;
  // Reads to the connection's end, however it ends.
  std::string ReadRaw() const;
  void End() const;

 private:
  std::string Outcome(int done) const;

  const int fd_;
  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_CLIENT_TEST_UTIL_H_
