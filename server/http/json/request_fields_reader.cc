#include "server/http/json/request_fields_reader.h"

namespace millrace {

void ReadRequestFields(FieldReader& fields, FieldProtocol protocol, RequestFields& request) {
  ForEachRequestField([&](const auto& field) {
    if ((field.protocols & protocol) == 0) return;
    fields.Read(field.name, request.*field.member);
    field.DropNeutral(request);
  });
}

}  // namespace millrace
