// The filters, tests, methods and functions that a template may call: a fixed set, known by name
// when it is parsed.
#ifndef MILLRACE_TEXT_JINJA_BUILTIN_H_
#define MILLRACE_TEXT_JINJA_BUILTIN_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

struct Parameter {
  std::string_view name;
  bool required = false;
  Value otherwise = {};  // When it is not given.
};

// The state of one rendering that a call may use.
struct CallContext {
  Budget& budget;
  absl::Time now;
  absl::TimeZone zone;
};

// `self` is what the filter, test or method is applied to, undefined for a function; `args` has one
// for each parameter, and if it is variadic a tuple and a dict of the arguments that are left.
using Implementation = absl::StatusOr<Value> (*)(CallContext& context, const Value& self,
                                                 absl::Span<const Value> args);

struct Builtin {
  std::string_view name;
  std::vector<Parameter> parameters;
  Implementation run;
  bool variadic = false;
};

// Look a name up in the tables; return null for a name that they lack.
const Builtin* FindFilter(std::string_view name);
// Parts of FindFilter's table.
const Builtin* FindLayoutFilter(std::string_view name);
const Builtin* FindListFilter(std::string_view name);
const Builtin* FindOrderFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindFunction(std::string_view name);
// Returns the method of a value of that type.
const Builtin* FindMethod(const Value& object, std::string_view name);

// Returns the method as a value that can be called; nothing if there is none. What would change a
// dict or a list is undefined, as in Jinja's sandbox.
std::optional<Value> GetMethod(const Value& object, const String& name);

// For implementations: results and arguments with their checks.

// Returns a string, if it is not too long.
absl::StatusOr<Value> MakeText(Budget& budget, std::string text);
absl::StatusOr<Value> MakeTexts(Budget& budget, const std::vector<std::string_view>& texts);
// Returns the (key, value) tuples of a dict.
absl::StatusOr<Value> DictItems(Budget& budget, const Dict& dict, ListKind kind = ListKind::kList);
// Replaces the first `count` occurrences, or all if negative; an empty `from` is between any two
// characters and at both ends.
absl::StatusOr<Value> ReplaceText(Budget& budget, std::string_view text, std::string_view from,
                                  std::string_view to, int64_t count);
absl::StatusOr<Value> StripText(Budget& budget, std::string_view text, const Value& characters,
                                Side side);
// Adds `fill`, which is one character, until the text has `width` characters: on the left, on the
// right, or on both sides as Python's str.center() does.
absl::StatusOr<Value> PadText(Budget& budget, std::string_view text, int64_t width,
                              std::string_view fill, Side side);
// Returns the item at a path such as "function.name" or "0.text". `otherwise`, unless it is
// undefined or none, stands for every part that is missing.
absl::StatusOr<Value> GetPath(Budget& budget, const Value& object, const Value& path,
                              const Value& otherwise);
// Errors name the argument.
absl::StatusOr<std::string_view> StringArgument(std::string_view name, const Value& value);
absl::StatusOr<int64_t> IntegerArgument(std::string_view name, const Value& value);
// Returns an error if a named argument is left, for a variadic builtin that takes none.
absl::Status CheckUnnamed(const Value& named_rest);

// Returns the first of a table with that name, or null.
inline const Builtin* FindIn(absl::Span<const Builtin> table, std::string_view name) {
  const auto* found =
      std::find_if(table.begin(), table.end(), [name](const Builtin& b) { return b.name == name; });
  return found == table.end() ? nullptr : found;
}

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_BUILTIN_H_
