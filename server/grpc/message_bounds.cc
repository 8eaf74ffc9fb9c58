#include "server/grpc/message_bounds.h"

#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// As deep as Protobuf itself parses.
constexpr int kMaxDepth = 100;
// The allocator and the pointer in its list add this much to an object.
constexpr size_t kObjectBytes = 32;
// A std::string, and what it allocates beyond its text.
constexpr size_t kTextBytes = 64;
// The first element of a list brings this much with it.
constexpr size_t kListBytes = 48;
// An unknown field, which is kept in a list that grows by doubling.
constexpr size_t kUnknownBytes = 32;

size_t ElementBytes(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return 1;
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_ENUM:
      return 4;
    default:
      return 8;
  }
}

WireFormatLite::WireType WireTypeOf(const FieldDescriptor& field) {
  return WireFormatLite::WireTypeForFieldType(
      static_cast<WireFormatLite::FieldType>(int{field.type()}));
}

absl::Status Malformed() { return absl::DataLossError("no protobuf"); }

}  // namespace

MessageBounds::MessageBounds(const Descriptor* type) : root_(ShapeOf(type)) {}

const MessageBounds::Shape* MessageBounds::ShapeOf(const Descriptor* type) {
  std::unique_ptr<Shape>& made = shapes_[type];
  if (made != nullptr) return made.get();
  made = std::make_unique<Shape>();
  Shape* const shape = made.get();
  shape->bytes =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->SpaceUsedLong();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    const auto number = static_cast<size_t>(field->number());
    if (field->is_repeated()) shape->bytes += kListBytes;
    shape->fields.resize(std::max(shape->fields.size(), number + 1));
    shape->fields[number] = {
        .descriptor = field,
        .message = field->message_type() == nullptr ? nullptr : ShapeOf(field->message_type()),
        .element_bytes = ElementBytes(*field)};
  }
  return shape;
}

class MessageBounds::Walk {
 public:
  Walk(CodedInputStream& input, const MessageLimits& limits) : input_(input), limits_(limits) {}

  absl::Status Message(const Shape& shape, int depth) {
    if (depth > kMaxDepth) return Malformed();
    MILLRACE_RETURN_IF_ERROR(Add(shape.bytes, nullptr));
    while (const uint32_t tag = input_.ReadTag()) {
      const auto number = static_cast<size_t>(WireFormatLite::GetTagFieldNumber(tag));
      const auto wire = WireFormatLite::GetTagWireType(tag);
      if (number == 0) return Malformed();
      const Field field = number < shape.fields.size() ? shape.fields[number] : Field{};
      MILLRACE_RETURN_IF_ERROR(wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED
                                   ? Delimited(field, depth)
                                   : Number(field, wire));
    }
    return input_.ConsumedEntireMessage() ? absl::OkStatus() : Malformed();
  }

  size_t bytes() const { return bytes_; }

 private:
  absl::Status Number(const Field& field, WireFormatLite::WireType wire) {
    if (!SkipNumber(wire)) return Malformed();
    if (field.descriptor == nullptr || WireTypeOf(*field.descriptor) != wire) {
      return AddPart(kUnknownBytes, field.descriptor);
    }
    // A list grows by doubling.
    return field.descriptor->is_repeated() ? Add(2 * field.element_bytes, field.descriptor)
                                           : absl::OkStatus();
  }

  absl::Status Delimited(const Field& field, int depth) {
    uint32_t size = 0;
    if (!input_.ReadVarint32(&size) || size > INT32_MAX) return Malformed();
    const FieldDescriptor* const known = field.descriptor;
    if (known != nullptr && field.message != nullptr) {
      MILLRACE_RETURN_IF_ERROR(AddPart(0, known));
      return Inside(size, [&] { return Message(*field.message, depth + 1); });
    }
    if (known != nullptr && known->is_packable()) {
      return Inside(size, [&] { return Numbers(field); });
    }
    if (!input_.Skip(static_cast<int>(size))) return Malformed();
    if (known != nullptr && WireTypeOf(*known) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!known->is_repeated()) return Add(kTextBytes + size, known);
      return AddPart(kTextBytes + size, known);
    }
    return AddPart(kUnknownBytes + kTextBytes + size, known);
  }

  // Walks the next `size` bytes.
  template <typename Content>
  absl::Status Inside(uint32_t size, Content content) {
    const int left = input_.BytesUntilLimit();
    if (left >= 0 && size > static_cast<uint32_t>(left)) return Malformed();
    const CodedInputStream::Limit outer = input_.PushLimit(static_cast<int>(size));
    absl::Status status = content();
    if (status.ok() && input_.BytesUntilLimit() != 0) status = Malformed();
    input_.PopLimit(outer);
    return status;
  }

  // A list in one piece.
  absl::Status Numbers(const Field& field) {
    const WireFormatLite::WireType wire = WireTypeOf(*field.descriptor);
    while (input_.BytesUntilLimit() > 0) {
      if (!SkipNumber(wire)) return Malformed();
      MILLRACE_RETURN_IF_ERROR(Add(2 * field.element_bytes, field.descriptor));
    }
    return absl::OkStatus();
  }

  bool SkipNumber(WireFormatLite::WireType wire) {
    uint64_t ignored = 0;
    switch (wire) {
      case WireFormatLite::WIRETYPE_VARINT:
        return input_.ReadVarint64(&ignored);
      case WireFormatLite::WIRETYPE_FIXED64:
        return input_.Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32:
        return input_.Skip(4);
      default:
        return false;  // groups, which no message here has
    }
  }

  absl::Status AddPart(size_t bytes, const FieldDescriptor* field) {
    if (++parts_ > limits_.parts) {
      return absl::InvalidArgumentError(StrCat(
          NameOf(field), ": it makes more than ", limits_.parts,
          " submessages, texts of lists and unknown fields of the message; allowed: as many"));
    }
    return Add(bytes + kObjectBytes, field);
  }

  absl::Status Add(size_t bytes, const FieldDescriptor* field) {
    bytes_ += bytes;
    if (bytes_ <= limits_.bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(NameOf(field),
                                             ": with it the message takes more than ",
                                             limits_.bytes, " bytes of memory; allowed: as many"));
  }

  static std::string NameOf(const FieldDescriptor* field) {
    return field == nullptr ? "unknown fields" : field->name();
  }

  CodedInputStream& input_;
  const MessageLimits& limits_;
  size_t parts_ = 0;
  size_t bytes_ = 0;
};

absl::StatusOr<size_t> MessageBounds::Measure(CodedInputStream& input,
                                              const MessageLimits& limits) const {
  Walk walk(input, limits);
  MILLRACE_RETURN_IF_ERROR(walk.Message(*root_, 0));
  return walk.bytes();
}

}  // namespace millrace
