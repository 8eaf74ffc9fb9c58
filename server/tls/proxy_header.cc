#include "server/tls/proxy_header.h"

#include <algorithm>
#include <array>

namespace millrace {
namespace {

namespace ip = boost::asio::ip;

constexpr std::array<uint8_t, 12> kSignature = {0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D,
                                                0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A};
constexpr size_t kFixedBytes = 16;  // the signature, the command, the family, the length
constexpr uint8_t kLocal = 0x20;    // version 2, and the command
constexpr uint8_t kProxy = 0x21;
constexpr uint8_t kTcp4 = 0x11;
constexpr uint8_t kTcp6 = 0x21;

uint16_t Number(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }

template <typename Address>
Address AddressAt(const uint8_t* at) {
  typename Address::bytes_type bytes;
  std::copy_n(at, bytes.size(), bytes.begin());
  return Address(bytes);
}

ProxyHeader Bad() { return {.state = ProxyHeader::State::kBad}; }

}  // namespace

ProxyHeader ReadProxyHeader(std::span<const uint8_t> bytes) {
  const size_t begin = std::min(bytes.size(), kSignature.size());
  if (!std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(begin),
                  kSignature.begin())) {
    return Bad();
  }
  if (bytes.size() < kFixedBytes) return {.size = kFixedBytes};
  const uint8_t command = bytes[12];
  const uint8_t family = bytes[13];
  const size_t length = Number(&bytes[14]);
  if ((command != kLocal && command != kProxy) || length > ProxyHeader::kMostBytes - kFixedBytes) {
    return Bad();
  }
  if (bytes.size() < kFixedBytes + length) return {.size = kFixedBytes + length};
  ProxyHeader header = {.state = ProxyHeader::State::kWhole, .size = kFixedBytes + length};
  if (command == kLocal) return header;
  // Source address, destination address, source port, destination port.
  const uint8_t* const addresses = bytes.data() + kFixedBytes;
  if (family == kTcp4) {
    if (length < 12) return Bad();
    header.source = {AddressAt<ip::address_v4>(addresses), Number(addresses + 8)};
  } else if (family == kTcp6) {
    if (length < 36) return Bad();
    header.source = {AddressAt<ip::address_v6>(addresses), Number(addresses + 32)};
  }
  return header;
}

}  // namespace millrace
