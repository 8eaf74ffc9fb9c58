#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace millrace {
namespace {

// Length of the leading run of ASCII, 8 bytes at a time: most text is nothing else.
size_t AsciiRun(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080) != 0) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Unit FirstUtf8Unit(std::string_view text) {
  const uint8_t lead = text[0];
  if (lead < 0x80) return {Utf8Unit::kCharacter, 1};
  const size_t size = lead >= 0xc2 && lead <= 0xdf   ? 2
                      : lead >= 0xe0 && lead <= 0xef ? 3
                      : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                     : 0;
  if (size == 0) return {Utf8Unit::kBroken, 1};
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {Utf8Unit::kCut, i};
    // The second byte's range keeps out overlong forms, surrogates and what is above U+10FFFF.
    uint8_t low = 0x80, high = 0xbf;
    if (i == 1) {
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    const uint8_t byte = text[i];
    if (byte < low || byte > high) return {Utf8Unit::kBroken, i};
  }
  return {Utf8Unit::kCharacter, size};
}

Utf8Character FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto rest = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3f); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const Utf8Unit unit = FirstUtf8Unit(text);
  if (unit.kind != Utf8Unit::kCharacter) return {0xfffd, 1};
  switch (unit.size) {
    case 2:
      return {static_cast<char32_t>(byte(0) & 0x1f) << 6 | rest(1), 2};
    case 3:
      return {static_cast<char32_t>(byte(0) & 0x0f) << 12 | rest(1) << 6 | rest(2), 3};
    default:
      return {static_cast<char32_t>(byte(0) & 0x07) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3),
              4};
  }
}

void AppendCharacter(char32_t code, std::string* out) {
  const auto push = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    push(code);
    return;
  }
  if (code < 0x800) {
    push(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      push(0xe0 | code >> 12);
    } else {
      push(0xf0 | code >> 18);
      push(0x80 | (code >> 12 & 0x3f));
    }
    push(0x80 | (code >> 6 & 0x3f));
  }
  push(0x80 | (code & 0x3f));
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while ((at += AsciiRun(text.substr(at))) < text.size()) {
    const Utf8Unit unit = FirstUtf8Unit(text.substr(at));
    if (unit.kind != Utf8Unit::kCharacter) return at;
    at += unit.size;
  }
  return std::string_view::npos;
}

size_t AppendWholeCharacters(std::string_view text, std::string* out) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = FirstUtf8Unit(text.substr(at));
    if (unit.kind == Utf8Unit::kCut) break;
    out->append(unit.kind == Utf8Unit::kCharacter ? text.substr(at, unit.size)
                                                  : kReplacementCharacter);
    at += unit.size;
  }
  return at;
}

}  // namespace millrace
