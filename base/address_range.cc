#include "base/address_range.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr int kMappedBits = 96;  // before an address of IPv4

// Sets the bits after the first `bits` to zero.
AddressBytes Masked(AddressBytes address, int bits) {
  for (size_t i = 0; i < address.size(); ++i) {
    const int kept = std::clamp(bits - 8 * static_cast<int>(i), 0, 8);
    address[i] &= static_cast<uint8_t>(0xFF << (8 - kept));
  }
  return address;
}

}  // namespace

bool AddressRange::Contains(const AddressBytes& address) const {
  return Masked(address, prefix_bits) == first;
}

std::optional<AddressRange> ParseAddressRange(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string address(text.substr(0, slash));
  AddressRange range;
  int before = 0;
  if (inet_pton(AF_INET, address.c_str(), range.first.data() + kMappedBits / 8) == 1) {
    range.first[10] = range.first[11] = 0xFF;
    before = kMappedBits;
  } else if (inet_pton(AF_INET6, address.c_str(), range.first.data()) != 1) {
    return std::nullopt;
  }
  if (slash == text.npos) return range;
  const auto bits = ParseNumber<int>(text.substr(slash + 1));
  if (!bits || *bits < 0 || *bits > 128 - before) return std::nullopt;
  range.prefix_bits = before + *bits;
  if (Masked(range.first, range.prefix_bits) != range.first) return std::nullopt;
  return range;
}

}  // namespace millrace
