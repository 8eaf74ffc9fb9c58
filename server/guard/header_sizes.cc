#include "server/guard/header_sizes.h"

#include <array>
#include <string_view>

namespace millrace {
namespace {

constexpr int kLongestCode = 30;

// How many symbols have a code of each length (RFC 7541, appendix B). Codes of one length are
// consecutive numbers, and the shorter ones come first: the counts alone tell where a code ends.
constexpr std::array<uint32_t, kLongestCode + 1> kCodes = {0,  0,  0,  0, 0,  10, 26, 32, 6, 0, 5,
                                                           3,  2,  6,  2, 3,  0,  0,  0,  3, 8, 13,
                                                           26, 29, 12, 4, 15, 19, 29, 0,  4};

struct StaticEntry {
  uint8_t name;
  uint8_t value;
};

// The lengths of the static table's names and values (RFC 7541, appendix A), entry 1 first.
constexpr std::array<StaticEntry, 61> kStatic = {{
    {10, 0}, {7, 3},  {7, 4},  {5, 1},  {5, 11}, {7, 4},  {7, 5},   {7, 3},  {7, 3},
    {7, 3},  {7, 3},  {7, 3},  {7, 3},  {7, 3},  {14, 0}, {15, 13}, {15, 0}, {13, 0},
    {6, 0},  {27, 0}, {3, 0},  {5, 0},  {13, 0}, {13, 0}, {19, 0},  {16, 0}, {16, 0},
    {14, 0}, {16, 0}, {13, 0}, {12, 0}, {6, 0},  {4, 0},  {4, 0},   {6, 0},  {7, 0},
    {4, 0},  {4, 0},  {8, 0},  {17, 0}, {13, 0}, {8, 0},  {19, 0},  {13, 0}, {4, 0},
    {8, 0},  {12, 0}, {18, 0}, {19, 0}, {5, 0},  {7, 0},  {7, 0},   {11, 0}, {6, 0},
    {10, 0}, {25, 0}, {17, 0}, {10, 0}, {4, 0},  {3, 0},  {16, 0},
}};

// Reads from a block; once something was wrong, everything is 0.
class Reader {
 public:
  explicit Reader(http2::Bytes bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool AtEnd() const { return bytes_.empty() || !ok_; }
  uint8_t Peek() const { return bytes_.front(); }

  // An integer whose first byte has `prefix` bits for it (5.1).
  uint64_t Integer(int prefix) {
    const uint64_t most = (1U << prefix) - 1;
    uint64_t value = Byte() & most;
    if (value < most) return value;
    for (int shift = 0; shift <= 28; shift += 7) {
      const uint8_t byte = Byte();
      value += uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return Fail();
  }

  // The decoded length of a string (5.2).
  uint64_t String() {
    if (bytes_.empty()) return Fail();
    const bool huffman = (Peek() & 0x80) != 0;
    const uint64_t length = Integer(7);
    if (length > bytes_.size()) return Fail();
    const http2::Bytes text = bytes_.first(length);
    bytes_ = bytes_.subspan(length);
    if (!huffman) return length;
    const std::optional<uint64_t> decoded = HuffmanLength(text);
    return decoded ? *decoded : Fail();
  }

 private:
  uint8_t Byte() {
    if (bytes_.empty()) return static_cast<uint8_t>(Fail());
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  uint64_t Fail() {
    ok_ = false;
    bytes_ = {};
    return 0;
  }

  http2::Bytes bytes_;
  bool ok_ = true;
};

}  // namespace

std::optional<uint64_t> HuffmanLength(http2::Bytes coded) {
  uint64_t symbols = 0;
  uint32_t code = 0;   // the bits of the current symbol
  uint32_t first = 0;  // the first code of this length
  int length = 0;
  bool all_ones = true;
  for (const uint8_t byte : coded) {
    for (int bit = 7; bit >= 0; --bit) {
      const uint32_t one = byte >> bit & 1;
      code = code << 1 | one;
      first <<= 1;
      all_ones = all_ones && one == 1;
      if (++length > kLongestCode) return std::nullopt;
      if (code - first < kCodes[length]) {
        // The last code of all, 30 ones, is the end of string, which must not be coded.
        if (length == kLongestCode && all_ones) return std::nullopt;
        ++symbols;
        code = first = 0;
        length = 0;
        all_ones = true;
      } else {
        first += kCodes[length];
      }
    }
  }
  // The remainder is padding: the beginning of the end of string, and less than a byte.
  if (length > 7 || !all_ones) return std::nullopt;
  return symbols;
}

std::optional<HeaderSizes::Entry> HeaderSizes::Find(uint64_t index) const {
  if (index == 0) return std::nullopt;
  if (index <= kStatic.size()) return Entry{kStatic[index - 1].name, kStatic[index - 1].value};
  index -= kStatic.size() + 1;
  if (index >= table_.size()) return std::nullopt;
  return table_[index];
}

void HeaderSizes::Evict(uint64_t to_bytes) {
  while (table_bytes_ > to_bytes) {
    table_bytes_ -= table_.back().bytes();
    table_.pop_back();
  }
}

void HeaderSizes::Insert(const Entry& entry) {
  if (entry.bytes() > table_size_) return Evict(0);  // 4.4: it empties the table
  Evict(table_size_ - entry.bytes());
  table_.push_front(entry);
  table_bytes_ += entry.bytes();
}

std::optional<uint64_t> HeaderSizes::Add(http2::Bytes block, uint64_t most) {
  Reader reader(block);
  uint64_t total = 0;
  while (!reader.AtEnd() && total <= most) {
    const uint8_t kind = reader.Peek();
    if ((kind & 0x80) != 0) {  // an indexed field
      const std::optional<Entry> entry = Find(reader.Integer(7));
      if (!entry) return std::nullopt;
      total += entry->bytes();
      continue;
    }
    if ((kind & 0xe0) == 0x20) {  // a new size of the table
      const uint64_t size = reader.Integer(5);
      if (!reader.ok() || total > 0 || size > table_limit_) return std::nullopt;
      table_size_ = size;
      Evict(size);
      continue;
    }
    const bool indexed = (kind & 0xc0) == 0x40;  // a literal, to be put into the table or not
    const uint64_t index = reader.Integer(indexed ? 6 : 4);
    Entry entry{};
    if (index > 0) {
      const std::optional<Entry> named = Find(index);
      if (!named) return std::nullopt;
      entry.name = named->name;
    } else {
      entry.name = static_cast<uint32_t>(reader.String());
    }
    entry.value = static_cast<uint32_t>(reader.String());
    if (!reader.ok()) return std::nullopt;
    total += entry.bytes();
    if (indexed) Insert(entry);
  }
  if (!reader.ok()) return std::nullopt;
  return total;
}

}  // namespace millrace
