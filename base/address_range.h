// Ranges of IP addresses, as "10.0.0.0/8".
#ifndef MILLRACE_BASE_ADDRESS_RANGE_H_
#define MILLRACE_BASE_ADDRESS_RANGE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

// An address as IPv6 has it; one of IPv4 is mapped (::ffff:1.2.3.4).
using AddressBytes = std::array<uint8_t, 16>;

struct AddressRange {
  AddressBytes first = {};
  int prefix_bits = 128;  // how many of `first` count

  bool Contains(const AddressBytes& address) const;
};

// Parses an address, or one with the bits that count after a slash, of which all others must be
// zero. Nothing if it is neither.
std::optional<AddressRange> ParseAddressRange(std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_BASE_ADDRESS_RANGE_H_
