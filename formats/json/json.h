// JSON out of a hostile file or request: the parser, and the reading of single values, under
// JsonFields (model files) and FieldReader (bodies of requests), which differ in their errors.
#ifndef MILLRACE_FORMATS_JSON_JSON_H_
#define MILLRACE_FORMATS_JSON_JSON_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // an object's keys keep their order

struct JsonLimits {
  size_t depth = 32;
  size_t values = 1 << 20;  // numbers, strings, lists, …: 16 bytes each at least
  bool repeats = false;     // a key may come twice in an object with different values; the last one
                            // counts
};

// Parses a whole JSON text. INVALID_ARGUMENT, without the text's name, if it is not JSON or not
// UTF-8, exceeds the limits, or has an object with a key twice and different values (of which
// readers would choose different ones).
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits);

// The same. Takes linear time, where OrderedJson::parse compares each key of an object with all
// before it: a body of a million keys would take it hours.
absl::StatusOr<OrderedJson> ParseOrdered(std::string_view text, const JsonLimits& limits);

// Returns the field of an object, or nullptr if it is absent or null.
const Json* FindField(const Json& object, std::string_view name);

// Returns an integer in [min, max], however it is stored; nothing for anything else, 3.0 included.
std::optional<int64_t> AsInteger(const Json& value, int64_t min, int64_t max);

// Returns whether `value` is one of `values`, a JSON list.
bool IsOneOf(const Json& value, const Json& values);

// Returns a value as messages show it: short, printable, and whole only if it is a small scalar.
std::string Describe(const Json& value);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_JSON_JSON_H_
