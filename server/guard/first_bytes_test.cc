#include "server/guard/first_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace millrace {
namespace {

using Protocol = FirstBytes::Protocol;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kProxy = std::string("\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", 16) +
                           std::string("\1\2\3\4\x0A\0\0\1\x12\x34\0\x50", 12);

FirstBytes Read(std::string_view bytes, bool proxied = false, bool tls = false) {
  return ReadFirstBytes({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, proxied,
                        tls);
}

std::string Sized(std::string_view bytes, size_t size_of_length) {
  std::string out;
  for (size_t i = size_of_length; i-- > 0;) out += static_cast<char>(bytes.size() >> (8 * i));
  return out + std::string(bytes);
}

// Returns a ClientHello. `alpn`: each protocol after its length; empty: no such extension.
std::string Hello(std::string_view alpn) {
  const std::string extensions =
      std::string("\0\x17\0\0", 4) +
      (alpn.empty() ? "" : std::string("\0\x10", 2) + Sized(Sized(alpn, 2), 2));
  const std::string body = "\x03\x03" + std::string(32, 'r') + Sized("session", 1) +
                           Sized("\x13\x01", 2) + Sized(std::string(1, '\0'), 1) +
                           Sized(extensions, 2);
  return std::string("\x16\x03\x01", 3) + Sized("\x01" + Sized(body, 3), 2);
}

TEST(FirstBytesTest, ThePrefaceIsHttp2) {
  EXPECT_EQ(Read(kPreface).protocol, Protocol::kHttp2);
  EXPECT_EQ(Read(kPreface.substr(0, 16)).protocol, Protocol::kHttp2);
  for (size_t size = 0; size < 16; ++size) {
    const FirstBytes first = Read(kPreface.substr(0, size));
    EXPECT_EQ(first.protocol, Protocol::kUnknown) << size;
    EXPECT_EQ(first.size, size + 1);
  }
}

TEST(FirstBytesTest, AllElseIsForHttp1) {
  for (const std::string_view first :
       {"G", "GET / HTTP/1.1\r\n", "PO", "PUT", "PRX", "PRI / HTTP/1.1\r\n", "PRI * HTTP/1.1\r\n",
        "pri * http/2.0\r\n", "\r\nGET", "\x16\x03\x01", "\xff", " "}) {
    EXPECT_EQ(Read(first).protocol, Protocol::kHttp1) << first;
  }
  EXPECT_EQ(Read(std::string(1, '\0')).protocol, Protocol::kHttp1);
}

TEST(FirstBytesTest, WithTlsTheProtocolsOfferedDecide) {
  const auto with_tls = [](std::string_view alpn) {
    return Read(Hello(alpn), false, true).protocol;
  };
  EXPECT_EQ(with_tls("\x02h2"), Protocol::kHttp2);
  EXPECT_EQ(with_tls("\x08grpc-exp\x02h2"), Protocol::kHttp2);
  EXPECT_EQ(with_tls("\x02h2\x08http/1.1"), Protocol::kHttp1);
  EXPECT_EQ(with_tls("\x08http/1.1"), Protocol::kHttp1);
  EXPECT_EQ(with_tls("\x06spdy/3"), Protocol::kHttp1);
  EXPECT_EQ(with_tls(""), Protocol::kHttp1);
}

TEST(FirstBytesTest, WithTlsAnIncompleteHelloWaits) {
  const std::string hello = Hello("\x02h2");
  for (size_t size = 0; size < hello.size(); ++size) {
    const FirstBytes first = Read(std::string_view(hello).substr(0, size), false, true);
    ASSERT_EQ(first.protocol, Protocol::kUnknown) << size;
    EXPECT_EQ(first.size, size < 5 ? 5 : hello.size());
  }
}

TEST(FirstBytesTest, WithoutTheTlsThatIsWantedTheEndpointOfTheProtocolSaysSo) {
  EXPECT_EQ(Read(kPreface, false, true).protocol, Protocol::kHttp2);
  EXPECT_EQ(Read("PRI", false, true).protocol, Protocol::kUnknown);
  EXPECT_EQ(Read("GET / HTTP/1.1\r\n", false, true).protocol, Protocol::kHttp1);
  EXPECT_EQ(Read(std::string(5, '\x16'), false, true).protocol, Protocol::kHttp1);
}

TEST(FirstBytesTest, AProxysHeaderComesFirst) {
  for (size_t size = 0; size < kProxy.size(); ++size) {
    const FirstBytes first = Read(std::string_view(kProxy).substr(0, size), true);
    ASSERT_EQ(first.protocol, Protocol::kUnknown) << size;
    EXPECT_GT(first.size, size);
    EXPECT_LE(first.size, kProxy.size());
  }
  EXPECT_EQ(Read(kProxy, true).size, kProxy.size() + 1);
  EXPECT_EQ(Read(kProxy + "PRI", true).size, kProxy.size() + 4);
  EXPECT_EQ(Read(kProxy + std::string(kPreface), true).protocol, Protocol::kHttp2);
  EXPECT_EQ(Read(kProxy + "GET", true).protocol, Protocol::kHttp1);
  EXPECT_EQ(Read(kProxy + Hello("\x02h2"), true, true).protocol, Protocol::kHttp2);
  EXPECT_EQ(Read(kPreface, true).protocol, Protocol::kHttp1);  // and no header
  EXPECT_EQ(Read(kProxy).protocol, Protocol::kHttp1);          // of one who is no proxy
}

}  // namespace
}  // namespace millrace
