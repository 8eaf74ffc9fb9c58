// The types that a tool's schema gives an argument.
#ifndef MILLRACE_TEXT_TOOLS_ARGUMENT_TYPE_H_
#define MILLRACE_TEXT_TOOLS_ARGUMENT_TYPE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"

namespace millrace {

struct ArgumentType {
  enum : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // a number that is no integer
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAny = 127,
  };
  uint8_t types = kAny;
  std::vector<std::string> texts;  // strings that an `enum` or a `const` lists

  bool any() const { return types == kAny; }
  bool has(uint8_t type) const { return (types & type) != 0; }
};

// Returns the type of the argument `key` of a tool with these parameters, a schema. Follows
// references within it, `anyOf`, `oneOf`, `allOf`, `enum`, `const` and `nullable`. Any: the schema
// does not say.
ArgumentType TypeOfArgument(const OrderedJson& parameters, std::string_view key);

// Returns whether the schema lists properties, and whether `key` is one of them.
bool ListsProperties(const OrderedJson& parameters);
bool HasProperty(const OrderedJson& parameters, std::string_view key);

// Returns the type of a value, which is one bit.
uint8_t TypeOfValue(const OrderedJson& value);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_ARGUMENT_TYPE_H_
