// Takes the numbers and switches of a request to generate out of messages, by their rows.
#ifndef MILLRACE_SERVER_GRPC_TAKE_FIELDS_H_
#define MILLRACE_SERVER_GRPC_TAKE_FIELDS_H_

#include <google/protobuf/message.h>

#include "engine/request/request_fields.h"

namespace millrace {

// Takes the fields of `message` that engine/request/request_fields.h has for the protocol; ranges
// are ValidateRequest's. A field without presence counts as left out where it is 0, but a switch
// without presence always says something. An unsigned number that is too large for the request
// becomes the largest one.
void TakeFields(const google::protobuf::Message& message, FieldProtocol protocol,
                RequestFields& request);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_TAKE_FIELDS_H_
