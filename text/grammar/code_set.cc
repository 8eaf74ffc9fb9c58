// Sets of characters, and their bytes.
#include <algorithm>
#include <string>

#include "text/grammar/regex_parser.h"

namespace millrace {
namespace {

constexpr uint32_t kLast = 0x10ffff;

int Utf8Size(uint32_t code) { return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4; }

std::vector<int> Utf8(uint32_t code) {
  switch (Utf8Size(code)) {
    case 1:
      return {static_cast<int>(code)};
    case 2:
      return {static_cast<int>(0xc0 | code >> 6), static_cast<int>(0x80 | (code & 63))};
    case 3:
      return {static_cast<int>(0xe0 | code >> 12), static_cast<int>(0x80 | (code >> 6 & 63)),
              static_cast<int>(0x80 | (code & 63))};
    default:
      return {static_cast<int>(0xf0 | code >> 18), static_cast<int>(0x80 | (code >> 12 & 63)),
              static_cast<int>(0x80 | (code >> 6 & 63)), static_cast<int>(0x80 | (code & 63))};
  }
}

// Appends the terms of the sequences of bytes from `low` to `high`, which have the same length.
Regular ByteSequences(RegularPool& pool, const std::vector<int>& low, const std::vector<int>& high,
                      size_t at) {
  const int first = low[at], last = high[at];
  if (at + 1 == low.size()) return pool.Set(ByteRange(first, last));
  if (first == last) {
    return pool.Concat(pool.Set(ByteRange(first, first)), ByteSequences(pool, low, high, at + 1));
  }
  std::vector<int> least(low.size(), 0x80), most(low.size(), 0xbf);
  const auto whole = [&](const std::vector<int>& v, const std::vector<int>& bound) {
    return std::equal(v.begin() + at + 1, v.end(), bound.begin() + at + 1);
  };
  std::vector<Regular> parts;
  int middle_first = first, middle_last = last;
  if (!whole(low, least)) {
    parts.push_back(
        pool.Concat(pool.Set(ByteRange(first, first)), ByteSequences(pool, low, most, at + 1)));
    ++middle_first;
  }
  if (!whole(high, most)) {
    parts.push_back(
        pool.Concat(pool.Set(ByteRange(last, last)), ByteSequences(pool, least, high, at + 1)));
    --middle_last;
  }
  if (middle_first <= middle_last) {
    parts.push_back(pool.Concat(pool.Set(ByteRange(middle_first, middle_last)),
                                ByteSequences(pool, least, most, at + 1)));
  }
  return pool.Alt(parts);
}

Regular EncodeUtf8(RegularPool& pool, uint32_t first, uint32_t last) {
  std::vector<Regular> parts;
  constexpr std::pair<uint32_t, uint32_t> kPieces[] = {
      {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, kLast}};
  for (const auto& [low, high] : kPieces) {
    const uint32_t a = std::max(first, low), b = std::min(last, high);
    if (a <= b) parts.push_back(ByteSequences(pool, Utf8(a), Utf8(b), 0));
  }
  return pool.Alt(parts);
}

Regular HexDigit(RegularPool& pool, uint32_t digit) {
  ByteSet set;
  set.set("0123456789abcdef"[digit]);
  set.set("0123456789ABCDEF"[digit]);
  return pool.Set(set);
}

// The escape of a character that a JSON string does not hold as it is.
Regular Escape(RegularPool& pool, uint32_t code) {
  constexpr std::string_view kCodes = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  if (const size_t at = kCodes.find(static_cast<char>(code)); at != kCodes.npos) {
    return pool.Literal(std::string("\\") + kLetters[at]);
  }
  return pool.Concat({pool.Literal("\\u00"), HexDigit(pool, code >> 4), HexDigit(pool, code & 15)});
}

bool IsEscaped(uint32_t code) { return code < 0x20 || code == '"' || code == '\\'; }

}  // namespace

CodeSet Union(CodeSet a, const CodeSet& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  CodeSet merged;
  for (const auto& [first, last] : a) {
    if (!merged.empty() && first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, last);
    } else {
      merged.emplace_back(first, last);
    }
  }
  return merged;
}

CodeSet Complement(const CodeSet& a) {
  CodeSet result;
  uint32_t next = 0;
  for (const auto& [first, last] : a) {
    if (first > next) result.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) result.emplace_back(next, kLast);
  return result;
}

Regular EncodeSet(RegularPool& pool, const CodeSet& set, TextForm form) {
  std::vector<Regular> parts;
  for (const auto& [first, last] : set) {
    if (form == TextForm::kPlain) {
      parts.push_back(EncodeUtf8(pool, first, last));
      continue;
    }
    for (uint32_t code = first; code <= std::min<uint32_t>(last, '\\'); ++code) {
      if (IsEscaped(code)) parts.push_back(Escape(pool, code));
    }
    constexpr std::pair<uint32_t, uint32_t> kSafe[] = {
        {0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLast}};
    for (const auto& [low, high] : kSafe) {
      const uint32_t a = std::max(first, low), b = std::min(last, high);
      if (a <= b) parts.push_back(EncodeUtf8(pool, a, b));
    }
  }
  return pool.Alt(parts);
}

Regular EncodeLiteral(RegularPool& pool, std::string_view utf8, TextForm form) {
  if (form == TextForm::kPlain) return pool.Literal(utf8);
  Regular result = kEmptyText;
  for (size_t i = utf8.size(); i-- > 0;) {
    const auto byte = static_cast<uint8_t>(utf8[i]);
    const Regular one = IsEscaped(byte) ? Escape(pool, byte) : pool.Set(ByteRange(byte, byte));
    result = pool.Concat(one, result);
  }
  return result;
}

Regular AnyText(RegularPool& pool, TextForm form) {
  return pool.Repeat(EncodeSet(pool, {{0, kLast}}, form), 0);
}

}  // namespace millrace
