#include "server/grpc/take_fields.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace millrace {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void Take(const Message& from, const FieldDescriptor* field, float& to) {
  to = from.GetReflection()->GetFloat(from, field);
}

void Take(const Message& from, const FieldDescriptor* field, bool& to) {
  to = from.GetReflection()->GetBool(from, field);
}

void Take(const Message& from, const FieldDescriptor* field, int32_t& to) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    const uint32_t number = from.GetReflection()->GetUInt32(from, field);
    to = static_cast<int32_t>(std::min<uint32_t>(number, INT32_MAX));
  } else {
    to = from.GetReflection()->GetInt32(from, field);
  }
}

void Take(const Message& from, const FieldDescriptor* field, std::optional<int32_t>& to) {
  Take(from, field, to.emplace());
}

}  // namespace

void TakeFields(const Message& message, FieldProtocol protocol, RequestFields& request) {
  ForEachRequestField([&](const auto& row) {
    if ((row.protocols & protocol) == 0) return;
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(row.name);
    if (field == nullptr) return;  // another message of the request has it
    const bool always =
        field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL && !field->has_presence();
    if (!always && !message.GetReflection()->HasField(message, field)) return;
    Take(message, field, request.*row.member);
    row.DropNeutral(request);
  });
}

}  // namespace millrace
