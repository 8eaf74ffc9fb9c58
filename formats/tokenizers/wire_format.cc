#include "formats/tokenizers/wire_format.h"

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

absl::Status WireReader::Damaged(std::string_view what) const {
  return absl::InvalidArgumentError(
      StrCat("byte ", position_, " of ", message_.size(), ": ", what));
}

absl::StatusOr<uint64_t> WireReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (position_ == message_.size()) return Damaged("the message ends inside a number");
    const auto byte = static_cast<uint8_t>(message_[position_++]);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return Damaged("a number has over ten bytes");
}

absl::StatusOr<std::string_view> WireReader::Take(uint64_t size) {
  if (size > message_.size() - position_) {
    return Damaged(StrCat("a field has ", size, " bytes, more than are left"));
  }
  const std::string_view bytes = message_.substr(position_, size);
  position_ += size;
  return bytes;
}

absl::StatusOr<uint64_t> WireReader::Fixed(size_t size) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view bytes, Take(size));
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

absl::StatusOr<std::optional<WireField>> WireReader::Next() {
  if (position_ == message_.size()) return std::nullopt;
  MILLRACE_ASSIGN_OR_RETURN(const uint64_t key, Varint());
  if (key >> 3 == 0 || key >> 32 != 0) return Damaged("a field's number is out of range");
  WireField field{.number = static_cast<uint32_t>(key >> 3)};
  switch (key & 7) {
    case 0: {
      MILLRACE_ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    case 1: {
      field.type = WireField::Type::kFixed64;
      MILLRACE_ASSIGN_OR_RETURN(field.value, Fixed(8));
      return field;
    }
    case 2: {
      field.type = WireField::Type::kBytes;
      MILLRACE_ASSIGN_OR_RETURN(const uint64_t size, Varint());
      MILLRACE_ASSIGN_OR_RETURN(field.bytes, Take(size));
      return field;
    }
    case 5: {
      field.type = WireField::Type::kFixed32;
      MILLRACE_ASSIGN_OR_RETURN(field.value, Fixed(4));
      return field;
    }
    default:
      return Damaged(StrCat("a field of wire type ", key & 7));
  }
}

}  // namespace millrace
