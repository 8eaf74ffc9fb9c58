// JSON whose integers keep their digits, however many they are.
#ifndef MILLRACE_FORMATS_JSON_EXACT_JSON_H_
#define MILLRACE_FORMATS_JSON_EXACT_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "formats/json/json.h"

namespace millrace {

// Parses as ParseOrdered does, but keeps an integer of more than 64 bits, which would be rounded,
// as a binary value of its digits, which no JSON text is read as. Such a value is for readers that
// ask KeptInteger; its own dump() is no integer.
absl::StatusOr<OrderedJson> ParseExact(std::string_view text, const JsonLimits& limits);

// Returns the digits of an integer that ParseExact has kept so; "" for any other value. They belong
// to the value.
std::string_view KeptInteger(const OrderedJson& value);

// Returns a value of ParseExact as JSON text.
std::string DumpExact(const OrderedJson& value);

// Returns the text of a string as it is, and DumpExact of any other value.
std::string TextOrJson(const OrderedJson& value);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_JSON_EXACT_JSON_H_
