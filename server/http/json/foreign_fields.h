// What fields of other servers are called here.
#ifndef MILLRACE_SERVER_HTTP_JSON_FOREIGN_FIELDS_H_
#define MILLRACE_SERVER_HTTP_JSON_FOREIGN_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Returns what to write in the place of a field that llama.cpp, Ollama or TGI has, as the end of a
// refusal: "; did you mean repetition_penalty?". Empty if the name is none of theirs. `known` are
// the fields that the request may have.
std::string HintOfForeignField(std::string_view name, const std::vector<std::string>& known);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_JSON_FOREIGN_FIELDS_H_
