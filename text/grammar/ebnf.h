// Grammars in EBNF: llama.cpp's GBNF (`root ::= "a" [0-9]+`), and Lark's form (`start: "a"
// /[0-9]+/`).
#ifndef MILLRACE_TEXT_GRAMMAR_EBNF_H_
#define MILLRACE_TEXT_GRAMMAR_EBNF_H_

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/grammar/automaton.h"
#include "text/grammar/regex_parser.h"

namespace millrace {

// Adds the grammar; the form is told from its first rule. InvalidArgument names the line. A rule
// that begins with itself is turned into a repetition where it does so directly. `form` is how its
// texts are written. A terminal that may have texts beyond `within` is restricted to it; a
// text that several terminals write together need not be within.
absl::StatusOr<GrammarNode> CompileEbnf(GrammarBuilder& builder, std::string_view text,
                                        TextForm form = TextForm::kPlain,
                                        std::optional<Regular> within = std::nullopt);

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_EBNF_H_
