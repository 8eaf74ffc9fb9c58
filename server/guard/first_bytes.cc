#include "server/guard/first_bytes.h"

#include <algorithm>
#include <string_view>

namespace millrace {
namespace {

using Bytes = std::span<const uint8_t>;
using Protocol = FirstBytes::Protocol;

constexpr std::string_view kFirstLine = "PRI * HTTP/2.0\r\n";

FirstBytes ReadPlain(Bytes bytes) {
  const size_t size = std::min(bytes.size(), kFirstLine.size());
  if (!std::equal(bytes.begin(), bytes.begin() + size, kFirstLine.begin())) {
    return {.protocol = Protocol::kHttp1};
  }
  if (size == kFirstLine.size()) return {.protocol = Protocol::kHttp2};
  // The next byte may tell: "P" begins POST as well.
  return {.size = size + 1};
}

FirstBytes ReadTls(Bytes bytes) {
  const ClientHello hello = ReadClientHello(bytes);
  switch (hello.state) {
    case ClientHello::State::kIncomplete:
      return {.size = hello.size};
    case ClientHello::State::kNotTls:
      return ReadPlain(bytes);
    case ClientHello::State::kBad:
      return {.protocol = Protocol::kHttp1};
    case ClientHello::State::kWhole:
      break;
  }
  const auto offers = [&hello](std::string_view name) {
    return std::find(hello.protocols.begin(), hello.protocols.end(), name) != hello.protocols.end();
  };
  const bool is_http2 = offers("h2") && !offers("http/1.1");
  return {.protocol = is_http2 ? Protocol::kHttp2 : Protocol::kHttp1};
}

}  // namespace

FirstBytes ReadFirstBytes(Bytes bytes, bool proxied, bool tls) {
  size_t begin = 0;
  if (proxied) {
    const ProxyHeader header = ReadProxyHeader(bytes);
    if (header.state == ProxyHeader::State::kIncomplete) return {.size = header.size};
    if (header.state == ProxyHeader::State::kBad) return {.protocol = Protocol::kHttp1};
    begin = header.size;
  }
  const Bytes rest = bytes.subspan(begin);
  FirstBytes judged = tls ? ReadTls(rest) : ReadPlain(rest);
  if (judged.protocol == Protocol::kUnknown) judged.size += begin;
  return judged;
}

}  // namespace millrace
