// Regular expressions, as JSON schemas and users write them (ECMA-262's syntax and Python's, as far
// as they agree), into regular terms.
#ifndef MILLRACE_TEXT_GRAMMAR_REGEX_PARSER_H_
#define MILLRACE_TEXT_GRAMMAR_REGEX_PARSER_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/grammar/regular.h"

namespace millrace {

// Ranges of code points, ascending and apart.
using CodeSet = std::vector<std::pair<uint32_t, uint32_t>>;

CodeSet Union(CodeSet a, const CodeSet& b);
CodeSet Complement(const CodeSet& a);

// How characters are written: as UTF-8, or as the inside of a JSON string, where what must be
// escaped is (each character in one way but for the case of \u's digits).
enum class TextForm { kPlain, kJsonString };

// Returns the terms of a set of characters; surrogates are no characters.
Regular EncodeSet(RegularPool& pool, const CodeSet& set, TextForm form);
Regular EncodeLiteral(RegularPool& pool, std::string_view utf8, TextForm form);
Regular AnyText(RegularPool& pool, TextForm form);

// kWhole: the expression matches the whole text. kSearch: it matches somewhere in the text, as
// JSON schema's pattern does.
enum class RegexMode { kWhole, kSearch };

// InvalidArgument: the expression is malformed, nested deeper than `depth`, or uses what is not
// supported, which the message names (back references, \b, Unicode properties, look-behind,
// look-ahead within a repetition, anchors but at the outermost level, where a group at the text's
// start begins, and where a group or a look-ahead ends).
absl::StatusOr<Regular> ParseRegex(RegularPool& pool, std::string_view regex, TextForm form,
                                   RegexMode mode, int depth);

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_REGEX_PARSER_H_
