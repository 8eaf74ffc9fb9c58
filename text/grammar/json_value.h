// JSON as a schema is read: keys stay in their order, numbers as they are written.
#ifndef MILLRACE_TEXT_GRAMMAR_JSON_VALUE_H_
#define MILLRACE_TEXT_GRAMMAR_JSON_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"

namespace millrace {

struct JsonMember;

struct JsonValue {
  enum class Type { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };
  Type type = Type::kNull;
  std::string text;                 // of a string; a number as written
  std::vector<JsonValue> items;     // of an array
  std::vector<JsonMember> members;  // of an object

  bool is_object() const { return type == Type::kObject; }
  bool is_array() const { return type == Type::kArray; }
  bool is_string() const { return type == Type::kString; }
  bool is_number() const { return type == Type::kNumber; }
  bool is_bool() const { return type == Type::kTrue || type == Type::kFalse; }
  const JsonValue* Find(std::string_view key) const;
};

// A key of an object, and its value.
struct JsonMember {
  JsonMember(std::string key, JsonValue value) : first(std::move(key)), second(std::move(value)) {}
  std::string first;
  JsonValue second;
};

// InvalidArgument: the text is not JSON or not UTF-8, is nested deeper than `depth`, or has a key
// twice in one object.
absl::StatusOr<JsonValue> ParseOrderedJson(std::string_view text, int depth);

// A decimal number, exactly: digits before and after the point, none superfluous.
struct Decimal {
  bool negative = false;
  std::string whole;     // "0", "12"
  std::string fraction;  // "", "25"

  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_integer() const { return fraction.empty(); }
  std::string ToString() const;
};
// Nothing if the number has more than 400 digits when it is written out.
std::optional<Decimal> ParseDecimal(std::string_view number);
int Compare(const Decimal& a, const Decimal& b);  // below, at or above 0

// Returns a text that is the same for exactly those values that JSON schema calls equal: numbers by
// their value, objects in any order.
std::string EqualKey(const JsonValue& value);
absl::flat_hash_set<std::string> EqualKeys(const std::vector<JsonValue>& values);

// Returns a value as JSON, as json.dumps(ensure_ascii=False) writes it.
std::string ToJson(const JsonValue& value);
void AppendJsonString(std::string_view text, std::string* out);
size_t CountCharacters(std::string_view utf8);

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_JSON_VALUE_H_
