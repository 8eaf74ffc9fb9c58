// The arguments of calls that write each of them as an element: what a schema of an object says of
// them, keyword by keyword.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_ELEMENT_OBJECTS_H_
#define MILLRACE_ENGINE_CONSTRAINTS_ELEMENT_OBJECTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

// One form that the arguments may have. `anyOf` and `oneOf` make several of a schema.
struct ElementObject {
  nlohmann::ordered_json properties = nlohmann::ordered_json::object();
  bool lists = false;  // it has `properties`, and no others are allowed
  std::optional<nlohmann::ordered_json> additional;  // additionalProperties
  std::set<std::string, std::less<>> required;
  size_t least = 0;
  size_t most = SIZE_MAX;
  std::map<std::string, std::set<std::string, std::less<>>> dependent;  // dependentRequired

  // Returns whether each set of the properties that has the required ones will do.
  bool IsPlain() const;
  // Returns whether the object may have exactly these properties.
  bool Allows(const std::set<std::string, std::less<>>& keys) const;
};

// The most properties that may be left out of an object that is not plain: each set of them is a
// form of its own.
inline constexpr size_t kMostOptional = 6;
// The most properties of an object that is not plain: each is nested in the one before it.
inline constexpr size_t kMostListed = 20;

// Returns the forms that a tool's parameters allow. `lenient`: what is not enforced is passed over;
// otherwise it is InvalidArgument, which names the keyword.
absl::StatusOr<std::vector<ElementObject>> ElementObjects(const nlohmann::ordered_json& parameters,
                                                          bool lenient);

// Returns the schema of one property as one of its own: what it refers to within the parameters
// comes with it.
nlohmann::ordered_json PropertySchema(const nlohmann::ordered_json& parameters,
                                      const nlohmann::ordered_json& schema);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_ELEMENT_OBJECTS_H_
