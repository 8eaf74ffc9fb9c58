// JSON out of a hostile file or request.
#ifndef MILLRACE_FORMATS_JSON_H_
#define MILLRACE_FORMATS_JSON_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

using Json = nlohmann::json;

struct JsonLimits {
  size_t depth = 32;
  size_t values = 1 << 20;  // numbers, strings, lists, …: 16 bytes each at least
};

// One JSON text, all of it. INVALID_ARGUMENT, saying what is wrong but not of which text: not JSON
// or not UTF-8, beyond the limits, or an object with a key twice (of which readers would choose
// different ones).
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits);

// A value for a message: short, printable, and whole only if it is a small scalar.
std::string Describe(const Json& value);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_JSON_H_
