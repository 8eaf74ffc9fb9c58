// Reads protobuf's wire format without its library: the fields of one message, front to back.
#ifndef MILLRACE_FORMATS_TOKENIZERS_WIRE_FORMAT_H_
#define MILLRACE_FORMATS_TOKENIZERS_WIRE_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

struct WireField {
  enum class Type { kVarint, kFixed64, kBytes, kFixed32 };

  uint32_t number = 0;
  Type type = Type::kVarint;
  uint64_t value = 0;      // of numbers
  std::string_view bytes;  // of kBytes: a text or a message

  // Returns the number of a `float` field.
  float AsFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }
};

class WireReader {
 public:
  // Requires that `message` outlives the reader and the bytes of its fields.
  explicit WireReader(std::string_view message) : message_(message) {}

  // Returns the next field, or nothing at the end. INVALID_ARGUMENT, with the place, for a field
  // that ends behind the message, a number that is too long, and groups, which nothing writes.
  absl::StatusOr<std::optional<WireField>> Next();

 private:
  absl::Status Damaged(std::string_view what) const;
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<std::string_view> Take(uint64_t size);
  absl::StatusOr<uint64_t> Fixed(size_t size);

  const std::string_view message_;
  size_t position_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_WIRE_FORMAT_H_
