#include "engine/request/trace.h"

#include <algorithm>
#include <cstring>

#include "base/random_bits.h"

namespace millrace {
namespace {

constexpr size_t kMaxStateBytes = 512;  // that the standard asks to be passed on

// The standard takes lower case alone.
std::optional<uint8_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

// Returns whether `text` is the hexadecimal form of as many bytes.
template <size_t n>
bool ReadHex(std::string_view text, std::array<uint8_t, n>& bytes) {
  if (text.size() != 2 * n) return false;
  for (size_t i = 0; i < n; ++i) {
    const auto high = HexDigit(text[2 * i]);
    const auto low = HexDigit(text[2 * i + 1]);
    if (!high || !low) return false;
    bytes[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return true;
}

template <size_t n>
bool IsZero(const std::array<uint8_t, n>& id) {
  return std::all_of(id.begin(), id.end(), [](uint8_t byte) { return byte == 0; });
}

template <size_t n>
std::array<uint8_t, n> RandomId() {
  static_assert(n % sizeof(uint64_t) == 0);
  std::array<uint8_t, n> id;
  do {
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
      const uint64_t part = RandomBits();
      std::memcpy(id.data() + i, &part, sizeof(part));
    }
  } while (IsZero(id));  // which stands for none
  return id;
}

}  // namespace

// version "-" trace id "-" span id "-" flags, and in versions to come "-" and more.
std::optional<TraceContext> ParseTraceContext(std::string_view parent, std::string_view state) {
  constexpr size_t kLength = 55;
  if (parent.size() < kLength || parent[2] != '-' || parent[35] != '-' || parent[52] != '-') {
    return std::nullopt;
  }
  TraceContext context;
  std::array<uint8_t, 1> version{};
  std::array<uint8_t, 1> flags{};
  if (!ReadHex(parent.substr(0, 2), version) || version[0] == 0xff ||
      !ReadHex(parent.substr(3, 32), context.trace_id) ||
      !ReadHex(parent.substr(36, 16), context.span_id) || !ReadHex(parent.substr(53, 2), flags) ||
      IsZero(context.trace_id) || IsZero(context.span_id)) {
    return std::nullopt;
  }
  if (parent.size() > kLength && (version[0] == 0 || parent[kLength] != '-')) return std::nullopt;
  context.sampled = (flags[0] & 1) != 0;
  const bool fit = state.size() <= kMaxStateBytes &&
                   std::all_of(state.begin(), state.end(),
                               [](char c) { return (c >= ' ' && c < 0x7F) || c == '\t'; });
  if (fit) context.state = state;
  return context;
}

TraceId NewTraceId() { return RandomId<16>(); }

SpanId NewSpanId() { return RandomId<8>(); }

}  // namespace millrace
