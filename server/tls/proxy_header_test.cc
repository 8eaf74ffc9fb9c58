#include "server/tls/proxy_header.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

using State = ProxyHeader::State;

std::string Header(char command, char family, const std::string& rest) {
  std::string out("\r\n\r\n\0\r\nQUIT\n", 12);
  out += command;
  out += family;
  out += static_cast<char>(rest.size() >> 8);
  out += static_cast<char>(rest.size());
  return out + rest;
}

ProxyHeader Read(const std::string& bytes) {
  return ReadProxyHeader({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

const std::string kIpv4("\1\2\3\4\x0A\0\0\1\x12\x34\0\x50", 12);
const std::string kIpv6 =
    std::string("\xFD", 1) + std::string(30, '\0') + "\1" + std::string("\x12\x34\0\x50", 4);

TEST(ProxyHeaderTest, SaysForWhomTheProxyConnects) {
  const ProxyHeader v4 = Read(Header(0x21, 0x11, kIpv4) + "GET / HTTP/1.1\r\n");
  EXPECT_EQ(v4.state, State::kWhole);
  EXPECT_EQ(v4.size, 28u);
  ASSERT_TRUE(v4.source.has_value());
  EXPECT_EQ(v4.source->address().to_string(), "1.2.3.4");
  EXPECT_EQ(v4.source->port(), 0x1234);
  const ProxyHeader v6 = Read(Header(0x21, 0x21, kIpv6 + "what follows"));
  EXPECT_EQ(v6.size, 64u);
  ASSERT_TRUE(v6.source.has_value());
  EXPECT_EQ(v6.source->address().to_string(), "fd00::");
}

TEST(ProxyHeaderTest, AProxyMaySpeakForItself) {
  for (const std::string& header :
       {Header(0x20, 0, ""), Header(0x20, 0x11, kIpv4), Header(0x21, 0, "unknown")}) {
    EXPECT_EQ(Read(header).state, State::kWhole);
    EXPECT_EQ(Read(header).size, header.size());
    EXPECT_FALSE(Read(header).source.has_value());
  }
}

TEST(ProxyHeaderTest, EveryBeginningIsIncomplete) {
  const std::string whole = Header(0x21, 0x21, kIpv6 + std::string(300, 'x'));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(Read(whole.substr(0, size)).state, State::kIncomplete) << size;
  }
  EXPECT_EQ(Read(whole).state, State::kWhole);
}

TEST(ProxyHeaderTest, RefusesAllElse) {
  for (const std::string& bad :
       {std::string("G"), std::string("PROXY TCP4 1.2.3.4 1.2.3.5 1 2\r\n"),
        std::string("\r\n\r\n\1"), Header(0x11, 0x11, kIpv4), Header(0x22, 0x11, kIpv4),
        Header(0x21, 0x11, kIpv4.substr(1)), Header(0x21, 0x21, kIpv6.substr(1)),
        Header(0x21, 0x11, std::string(2000, 'x'))}) {
    EXPECT_EQ(Read(bad).state, State::kBad);
  }
}

}  // namespace
}  // namespace millrace
