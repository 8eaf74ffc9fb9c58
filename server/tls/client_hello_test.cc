#include "server/tls/client_hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>

namespace millrace {
namespace {

using State = ClientHello::State;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

ClientHello Read(std::string_view bytes) {
  return ReadClientHello({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

// Returns what OpenSSL's client sends first. `alpn`: each protocol after its length.
std::string OpenSslHello(std::string_view alpn) {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  SSL* const ssl = SSL_new(context);
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), out);
  SSL_set_connect_state(ssl);
  SSL_set_alpn_protos(ssl, reinterpret_cast<const uint8_t*>(alpn.data()),
                      static_cast<unsigned>(alpn.size()));
  SSL_do_handshake(ssl);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(out, &data);
  std::string hello(data, static_cast<size_t>(size));
  SSL_free(ssl);
  SSL_CTX_free(context);
  return hello;
}

// Returns the message in records of at most `size` bytes.
std::string InRecords(std::string_view message, size_t size) {
  std::string out;
  while (!message.empty()) {
    const std::string_view part = message.substr(0, size);
    out += std::string("\x16\x03\x01", 3);
    out += static_cast<char>(part.size() >> 8);
    out += static_cast<char>(part.size());
    out += part;
    message.remove_prefix(part.size());
  }
  return out;
}

std::string Message(uint8_t type, size_t length) {
  std::string out(1, static_cast<char>(type));
  for (const int shift : {16, 8, 0}) out += static_cast<char>(length >> shift);
  return out + std::string(length, '\0');
}

const std::string kHello = OpenSslHello("\x02h2\x08http/1.1");

TEST(ClientHelloTest, NamesTheProtocolsThatAClientOffers) {
  EXPECT_EQ(Read(kHello).state, State::kWhole);
  EXPECT_EQ(Read(kHello).size, kHello.size());
  EXPECT_THAT(Read(kHello).protocols, ElementsAre("h2", "http/1.1"));
  EXPECT_EQ(Read(kHello + "what follows").size, kHello.size());
  EXPECT_THAT(Read(OpenSslHello("")).protocols, IsEmpty());
}

TEST(ClientHelloTest, EveryBeginningIsIncompleteAndSaysHowMuchItNeeds) {
  for (size_t size = 0; size < kHello.size(); ++size) {
    const ClientHello hello = Read(std::string_view(kHello).substr(0, size));
    ASSERT_EQ(hello.state, State::kIncomplete) << size;
    EXPECT_EQ(hello.size, size < 5 ? 5 : kHello.size());
  }
}

TEST(ClientHelloTest, TakesOneInManyRecords) {
  const std::string_view message = std::string_view(kHello).substr(5);
  for (const size_t size : {1u, 3u, 7u, 100u}) {
    const std::string records = InRecords(message, size);
    EXPECT_THAT(Read(records).protocols, ElementsAre("h2", "http/1.1")) << size;
    for (size_t part = 0; part < records.size(); ++part) {
      const ClientHello hello = Read(std::string_view(records).substr(0, part));
      ASSERT_EQ(hello.state, State::kIncomplete);
      ASSERT_GT(hello.size, part);
      ASSERT_LE(hello.size, records.size());
    }
  }
}

TEST(ClientHelloTest, TakesUpTo16KiB) {
  const size_t most = (16 << 10) - 4;
  EXPECT_EQ(Read(InRecords(Message(1, most), 1 << 14)).state, State::kWhole);
  EXPECT_EQ(Read(InRecords(Message(1, most + 1), 1 << 14)).state, State::kBad);
  // The length that it says counts, not what has come.
  EXPECT_EQ(Read(InRecords(Message(1, 1 << 17), 4).substr(0, 9)).state, State::kBad);
  // Many small records are as long.
  EXPECT_EQ(Read(InRecords(Message(1, 5000), 1)).state, State::kBad);
}

TEST(ClientHelloTest, RefusesAllElse) {
  EXPECT_EQ(Read("GET / HTTP/1.1\r\n").state, State::kNotTls);
  EXPECT_EQ(Read(std::string("\x80\x2e\x01\x03\x01", 5)).state, State::kNotTls);
  EXPECT_EQ(Read(std::string(5, '\x16')).state, State::kBad);              // the version
  EXPECT_EQ(Read(std::string("\x16\x03\x01\0\0", 5)).state, State::kBad);  // an empty record
  EXPECT_EQ(Read(InRecords(Message(2, 10), 100)).state, State::kBad);      // another message
  // An alert between the records of a hello.
  EXPECT_EQ(
      Read(InRecords(Message(1, 10), 8).substr(0, 13) + std::string("\x15\x03\x01\0\x02", 5)).state,
      State::kBad);
}

TEST(ClientHelloTest, BrokenExtensionsOfferNothing) {
  for (size_t at = 5 + 4 + 34; at < kHello.size(); ++at) {
    std::string broken = kHello;
    broken[at] = '\xff';
    const ClientHello hello = Read(broken);
    EXPECT_EQ(hello.state, State::kWhole);
    EXPECT_LE(hello.protocols.size(), 2u);
  }
}

}  // namespace
}  // namespace millrace
