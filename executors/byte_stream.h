// Plain values in a row of bytes, as nodes send them to one another: they run the same program on
// the same kind of machine, so that a value's bytes are its own.
#ifndef MILLRACE_EXECUTORS_BYTE_STREAM_H_
#define MILLRACE_EXECUTORS_BYTE_STREAM_H_

#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"

namespace millrace {

template <typename Value>
void AppendValue(const Value& value, std::vector<char>& bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const char* const begin = reinterpret_cast<const char*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(value));
}

// Reads values in the order in which they were appended.
class ByteReader {
 public:
  explicit ByteReader(absl::Span<const char> bytes) : bytes_(bytes) {}

  // Returns false, and from then on, if there are not enough bytes.
  template <typename Value>
  [[nodiscard]] bool Read(Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    if (bytes_.size() < sizeof(value)) {
      bytes_ = {};
      return false;
    }
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return true;
  }

  size_t left() const { return bytes_.size(); }

 private:
  absl::Span<const char> bytes_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_BYTE_STREAM_H_
