// The field of a request that an error is about.
#ifndef MILLRACE_ENGINE_REQUEST_ERROR_FIELD_H_
#define MILLRACE_ENGINE_REQUEST_ERROR_FIELD_H_

#include <string>
#include <string_view>

namespace millrace {

// Returns the field that an error's message begins with: "messages[0].role" of "messages[0].role is
// …", "guided_json" of "guided_json: …". Empty if the message begins otherwise.
std::string LeadingField(std::string_view message);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_ERROR_FIELD_H_
