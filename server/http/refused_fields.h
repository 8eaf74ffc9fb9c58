// The fields that other servers honour and this one refuses.
#ifndef MILLRACE_SERVER_HTTP_REFUSED_FIELDS_H_
#define MILLRACE_SERVER_HTTP_REFUSED_FIELDS_H_

#include "server/http/json_reader.h"

namespace millrace {

// Each refuses its fields, but for the values that change nothing.
void RefuseCompletionFields(FieldReader& fields);
void RefuseChatFields(FieldReader& fields);
void RefuseChatTokenizeFields(FieldReader& fields);
void RefuseEmbeddingFields(FieldReader& fields);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_REFUSED_FIELDS_H_
