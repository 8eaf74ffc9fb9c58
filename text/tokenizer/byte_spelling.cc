#include "text/tokenizer/byte_spelling.h"

#include <array>
#include <cstdint>

namespace millrace {
namespace {

constexpr bool PrintsInLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// The character of each byte; all of them are below U+0180.
constexpr auto kSpelling = [] {
  std::array<uint16_t, 256> characters{};
  uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    characters[byte] = PrintsInLatin1(byte) ? static_cast<uint16_t>(byte) : next++;
  return characters;
}();

// The byte by the character that spells it.
constexpr auto kSpelledByte = [] {
  std::array<int16_t, 0x180> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kSpelling[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

void AppendByteSpelling(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) {
    const uint16_t character = kSpelling[static_cast<uint8_t>(byte)];
    if (character < 0x80) {
      out->push_back(static_cast<char>(character));
    } else {
      out->push_back(static_cast<char>(0xc0 | character >> 6));
      out->push_back(static_cast<char>(0x80 | (character & 0x3f)));
    }
  }
}

bool AppendSpelledBytes(std::string_view spelling, std::string* out) {
  const size_t before = out->size();
  for (size_t i = 0; i < spelling.size(); ++i) {
    uint32_t character = static_cast<uint8_t>(spelling[i]);
    if (character >= 0x80) {  // two bytes of UTF-8 reach to U+07FF
      const uint32_t next = i + 1 < spelling.size() ? static_cast<uint8_t>(spelling[i + 1]) : 0;
      const bool two = character >= 0xc2 && character <= 0xdf && (next & 0xc0) == 0x80;
      character = two ? (character & 0x1f) << 6 | (next & 0x3f) : 0x10000;
      ++i;
    }
    if (character >= kSpelledByte.size() || kSpelledByte[character] < 0) {
      out->resize(before);
      return false;
    }
    out->push_back(static_cast<char>(kSpelledByte[character]));
  }
  return true;
}

}  // namespace millrace
