// Reads the numbers and switches of a request to generate, by their rows.
#ifndef MILLRACE_SERVER_HTTP_JSON_REQUEST_FIELDS_READER_H_
#define MILLRACE_SERVER_HTTP_JSON_REQUEST_FIELDS_READER_H_

#include "engine/request/request_fields.h"
#include "server/http/json/json_reader.h"

namespace millrace {

// Reads those of the fields in engine/request/request_fields.h that the protocol has. Their types
// are checked here, their ranges by ValidateRequest.
void ReadRequestFields(FieldReader& fields, FieldProtocol protocol, RequestFields& request);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_JSON_REQUEST_FIELDS_READER_H_
