// JSON whose numbers keep their digits, however many they are, and the reading of its values.
#ifndef MILLRACE_FORMATS_JSON_EXACT_JSON_H_
#define MILLRACE_FORMATS_JSON_EXACT_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/json/json.h"

namespace millrace {

// Parses as ParseOrdered does, but keeps an integer of more than 64 bits, which would be rounded,
// as a binary value of its digits, which no JSON text is read as. Such a value is for readers that
// ask KeptNumber; its own dump() is no number.
absl::StatusOr<OrderedJson> ParseExact(std::string_view text, const JsonLimits& limits);

// Parses as ParseExact does, and keeps a number with a fraction or an exponent in the same way if
// its double would be written differently: 1.50, 1e3, more digits than a double has. (-0 is 0.)
absl::StatusOr<OrderedJson> ParseAsWritten(std::string_view text, const JsonLimits& limits);

// Returns a number that ParseExact or ParseAsWritten has kept, as it was written; "" for any other
// value. The text belongs to the value.
std::string_view KeptNumber(const OrderedJson& value);

// Returns whether the value is a number, kept or not.
bool IsNumber(const OrderedJson& value);
// Returns the nearest double of a number.
double NumberOf(const OrderedJson& value);

using OrderedMember = OrderedJson::object_t::value_type;  // a key and its value
// Returns the members of an object by their keys, in ascending order. They belong to the object.
std::vector<const OrderedMember*> SortedMembers(const OrderedJson& object);

// These do what their namesakes in json.h do for a Json.
std::optional<int64_t> AsInteger(const OrderedJson& value, int64_t min, int64_t max);
bool IsOneOf(const OrderedJson& value, const OrderedJson& values);
std::string Describe(const OrderedJson& value);

// Returns whether two values are the same, in whatever order their members come and however their
// fractions are written.
bool SameValue(const OrderedJson& a, const OrderedJson& b);

// Returns a value as JSON text, kept numbers as they were written.
std::string DumpExact(const OrderedJson& value);

// Returns the text of a string as it is, and DumpExact of any other value.
std::string TextOrJson(const OrderedJson& value);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_JSON_EXACT_JSON_H_
