// How large a message becomes in memory, seen on the wire before anything is made of it.
#ifndef MILLRACE_SERVER_GRPC_MESSAGE_BOUNDS_H_
#define MILLRACE_SERVER_GRPC_MESSAGE_BOUNDS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

struct MessageLimits {
  // Submessages, texts of lists and unknown fields, each of which becomes an object of its own: two
  // bytes on the wire may be a hundred in memory.
  size_t parts = 65'536;
  // Bytes that the message takes in memory.
  size_t bytes = size_t{64} << 20;
};

// The cost of each field of a type. Constant; thread-safe.
class MessageBounds {
 public:
  // `type` is a generated one, and so are those of its fields.
  explicit MessageBounds(const google::protobuf::Descriptor* type);

  // Walks a serialized message to its end, and returns about how many bytes the parsed one takes:
  // rather too many. DataLoss: it is no message; InvalidArgument: it is beyond a limit, and the
  // error names the field that is.
  absl::StatusOr<size_t> Measure(google::protobuf::io::CodedInputStream& input,
                                 const MessageLimits& limits) const;

 private:
  struct Shape;
  struct Field {
    const google::protobuf::FieldDescriptor* descriptor = nullptr;  // null: unknown
    const Shape* message = nullptr;                                 // of a field of messages
    size_t element_bytes = 0;                                       // of a number
  };
  struct Shape {
    std::vector<Field> fields;  // by number
    size_t bytes = 0;           // of an empty one
  };
  class Walk;

  const Shape* ShapeOf(const google::protobuf::Descriptor* type);

  std::unordered_map<const google::protobuf::Descriptor*, std::unique_ptr<Shape>> shapes_;
  const Shape* root_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_MESSAGE_BOUNDS_H_
