// Reading of a JSON object's fields by name, for the configs that come with a model.
#ifndef MILLRACE_FORMATS_JSON_JSON_FIELDS_H_
#define MILLRACE_FORMATS_JSON_JSON_FIELDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/json/json.h"

namespace millrace {

// A field that is null counts as absent. Getters return NOT_FOUND for an absent field and
// INVALID_ARGUMENT for a value of another type or outside of [min, max], both ends included;
// messages name the field with what stands before it: "config.json: rope_scaling.factor: ...".
class JsonFields {
 public:
  // `object` outlives this. `before`: "config.json: " or "config.json: rope_scaling.".
  JsonFields(const Json& object, std::string before)
      : object_(object), before_(std::move(before)) {}

  const Json* Find(std::string_view name) const;  // nullptr when absent

  absl::StatusOr<int64_t> Int(std::string_view name, int64_t min, int64_t max) const;
  absl::StatusOr<double> Float(std::string_view name, double min, double max) const;
  absl::StatusOr<std::string_view> String(std::string_view name) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view name) const;
  // Reads a list of integers; a single integer is a list of one.
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view name, int64_t min, int64_t max) const;
  absl::StatusOr<bool> BoolOr(std::string_view name, bool otherwise) const;
  absl::StatusOr<JsonFields> Object(std::string_view name) const;

  // Refuses a field with UNIMPLEMENTED unless it is absent or has one of the values of `neutral`, a
  // JSON list, which change nothing.
  absl::Status Refuse(std::string_view name, const Json& neutral) const;

  // Errors about a field.
  absl::Status Bad(std::string_view name, std::string_view what) const;
  absl::Status Unsupported(std::string_view name, std::string_view what) const;

  const Json& object() const { return object_; }
  // Returns the fields of another object, which outlives them, under the name of this one.
  JsonFields With(const Json& object) const { return JsonFields(object, before_); }

 private:
  absl::StatusOr<const Json*> Get(std::string_view name) const;
  absl::StatusOr<int64_t> ToInt(std::string_view name, const Json& value, int64_t min,
                                int64_t max) const;

  const Json& object_;
  std::string before_;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_JSON_JSON_FIELDS_H_
