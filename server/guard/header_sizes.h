// Computes how large a coded header block (HPACK, RFC 7541) becomes when it is decoded, without
// decoding it.
#ifndef MILLRACE_SERVER_GUARD_HEADER_SIZES_H_
#define MILLRACE_SERVER_GUARD_HEADER_SIZES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "server/guard/http2.h"

namespace millrace {

// Follows one direction of a connection: the blocks must be given in order, each once. Keeps the
// sizes of the dynamic table's entries and none of their text.
class HeaderSizes {
 public:
  // Sets the largest dynamic table that the decoder has announced.
  void SetTableLimit(uint32_t bytes) { table_limit_ = bytes; }

  // Returns the size of the block's list of fields: names, values and 32 bytes for each field.
  // Returns nullopt for a block that no decoder accepts. Stops with a size above `most` as soon as
  // it is reached; the connection must then end.
  std::optional<uint64_t> Add(http2::Bytes block, uint64_t most);

  size_t table_bytes() const { return table_bytes_; }

 private:
  struct Entry {
    uint32_t name;
    uint32_t value;
    uint64_t bytes() const { return uint64_t{name} + value + 32; }
  };

  std::optional<Entry> Find(uint64_t index) const;
  void Insert(const Entry& entry);
  void Evict(uint64_t to_bytes);

  std::deque<Entry> table_;  // the newest first
  uint64_t table_bytes_ = 0;
  uint64_t table_size_ = 4096;   // as the encoder has chosen
  uint64_t table_limit_ = 4096;  // what it may choose
};

// Returns the decoded length of a Huffman-coded string; nullopt if its code is not valid.
std::optional<uint64_t> HuffmanLength(http2::Bytes coded);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_HEADER_SIZES_H_
