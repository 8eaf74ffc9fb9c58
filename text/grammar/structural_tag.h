// Structural tags, as vLLM and XGrammar take them: text in which some parts are held to schemas.
#ifndef MILLRACE_TEXT_GRAMMAR_STRUCTURAL_TAG_H_
#define MILLRACE_TEXT_GRAMMAR_STRUCTURAL_TAG_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_value.h"

namespace millrace {

// Returns the grammar of {"type": "structural_tag", "format": {…}}, or of the older
// {"type": "structural_tag", "structures": […], "triggers": […]}. `name` is the field that holds
// it. InvalidArgument: it is malformed, or asks for what is not supported; the message begins with
// the field.
absl::StatusOr<GrammarSpec> ReadStructuralTag(const JsonValue& tag, std::string_view name);
absl::StatusOr<GrammarSpec> ReadStructuralTag(std::string_view json, std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_STRUCTURAL_TAG_H_
