// Values from and to JSON.
#ifndef MILLRACE_TEXT_JINJA_JSON_H_
#define MILLRACE_TEXT_JINJA_JSON_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

// Objects keep the order in which `Json` (nlohmann::json or nlohmann::ordered_json) visits them.
// Errors: nested too deep for the limits, binary data that is no integer of ParseExact's.
template <typename Json>
absl::StatusOr<Value> FromJson(const Budget& budget, const Json& json);

// The choices of Python's json.dumps().
struct JsonStyle {
  bool ascii = false;
  std::optional<std::string> indent;  // One line if absent.
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;  // Strings alone can be sorted.
};
absl::StatusOr<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_JSON_H_
