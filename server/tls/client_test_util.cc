#include "server/tls/client_test_util.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "server/tls/unread_test_util.h"
#include "server/tls/x509_text.h"

namespace millrace {

TestClient::TestClient(int port)
    : fd_(socket(AF_INET, SOCK_STREAM, 0)), context_(SSL_CTX_new(TLS_client_method())) {
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const timeval longest = {.tv_sec = 20};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof(longest));
}

TestClient::~TestClient() {
  SSL_free(ssl_);
  SSL_CTX_free(context_);
  close(fd_);
}

void TestClient::Offer(std::string_view protocols) {
  SSL_CTX_set_alpn_protos(context_, reinterpret_cast<const unsigned char*>(protocols.data()),
                          static_cast<unsigned>(protocols.size()));
}

void TestClient::Show(const TestCertificate& certificate) {
  SSL_CTX_use_certificate(context_, certificate.certificate.get());
  SSL_CTX_use_PrivateKey(context_, certificate.key.get());
}

std::string TestClient::Handshake() {
  ssl_ = SSL_new(context_);
  SSL_set_fd(ssl_, fd_);
  return Outcome(SSL_connect(ssl_));
}

std::string TestClient::HandshakeInParts(size_t part) {
  ssl_ = SSL_new(context_);
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), out);
  SSL_connect(ssl_);  // it has nothing to read yet
  char* bytes = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(out, &bytes));
  const std::string hello(bytes, size);
  SendRaw(hello.substr(0, part));
  EXPECT_TRUE(WaitUntilRead(fd_));
  SendRaw(hello.substr(part));
  SSL_set_fd(ssl_, fd_);
  return Outcome(SSL_connect(ssl_));
}

std::string TestClient::Chosen() const {
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_, &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

std::string TestClient::NameOfServer() const { return NameOf(*SSL_get0_peer_certificate(ssl_)); }

void TestClient::Send(std::string_view bytes) {
  EXPECT_EQ(SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())),
            static_cast<int>(bytes.size()));
}

std::string TestClient::Read(size_t size) {
  std::string text(size, '\0');
  size_t total = 0;
  while (total < size) {
    const int got = SSL_read(ssl_, text.data() + total, static_cast<int>(size - total));
    if (got <= 0) {
      text.resize(total);
      return text + "|" + Outcome(got);
    }
    total += static_cast<size_t>(got);
  }
  return text;
}

void TestClient::SendRaw(std::string_view bytes) const {
  EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

std::string TestClient::ReadRaw() const {
  std::string all;
  std::array<char, 4096> some;
  ssize_t got = 0;
  while ((got = recv(fd_, some.data(), some.size(), 0)) > 0) {
    all.append(some.data(), static_cast<size_t>(got));
  }
  EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "the connection did not end";
  return all;
}

void TestClient::End() const { shutdown(fd_, SHUT_WR); }

std::string TestClient::Outcome(int done) const {
  if (done > 0) return "";
  switch (SSL_get_error(ssl_, done)) {
    case SSL_ERROR_ZERO_RETURN:
      return "closed";
    case SSL_ERROR_SYSCALL:
      return "broken";
    default:
      return TakeOpenSslError();
  }
}

}  // namespace millrace
