#include "formats/json/json_fields.h"

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

const Json* JsonFields::Find(std::string_view name) const { return FindField(object_, name); }

absl::StatusOr<const Json*> JsonFields::Get(std::string_view name) const {
  if (const Json* field = Find(name)) return field;
  return absl::NotFoundError(StrCat(before_, name, ": is missing"));
}

absl::StatusOr<int64_t> JsonFields::ToInt(std::string_view name, const Json& value, int64_t min,
                                          int64_t max) const {
  if (const std::optional<int64_t> number = AsInteger(value, min, max)) return *number;
  return Bad(name, StrCat("is ", Describe(value), ", must be an integer from ", min, " to ", max));
}

absl::StatusOr<int64_t> JsonFields::Int(std::string_view name, int64_t min, int64_t max) const {
  MILLRACE_ASSIGN_OR_RETURN(const Json* field, Get(name));
  return ToInt(name, *field, min, max);
}

absl::StatusOr<std::vector<int64_t>> JsonFields::Ints(std::string_view name, int64_t min,
                                                      int64_t max) const {
  MILLRACE_ASSIGN_OR_RETURN(const Json* field, Get(name));
  std::vector<int64_t> numbers;
  for (const Json& item : field->is_array() ? *field : Json::array({*field})) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t number, ToInt(name, item, min, max));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<double> JsonFields::Float(std::string_view name, double min, double max) const {
  MILLRACE_ASSIGN_OR_RETURN(const Json* field, Get(name));
  if (!field->is_number() || !(field->get<double>() >= min && field->get<double>() <= max)) {
    return Bad(name, StrCat("is ", Describe(*field), ", must be a number from ", min, " to ", max));
  }
  return field->get<double>();
}

absl::StatusOr<std::string_view> JsonFields::String(std::string_view name) const {
  MILLRACE_ASSIGN_OR_RETURN(const Json* field, Get(name));
  if (!field->is_string()) return Bad(name, StrCat("is ", Describe(*field), ", must be a string"));
  return field->get_ref<const std::string&>();
}

absl::StatusOr<std::vector<std::string>> JsonFields::Strings(std::string_view name) const {
  MILLRACE_ASSIGN_OR_RETURN(const Json* field, Get(name));
  std::vector<std::string> strings;
  if (field->is_array()) {
    for (const Json& item : *field) {
      if (item.is_string()) strings.push_back(item.get<std::string>());
    }
  }
  if (!field->is_array() || strings.size() != field->size()) {
    return Bad(name, StrCat("is ", Describe(*field), ", must be a list of strings"));
  }
  return strings;
}

absl::StatusOr<bool> JsonFields::BoolOr(std::string_view name, bool otherwise) const {
  const Json* field = Find(name);
  if (field == nullptr) return otherwise;
  if (!field->is_boolean()) {
    return Bad(name, StrCat("is ", Describe(*field), ", must be true or false"));
  }
  return field->get<bool>();
}

absl::StatusOr<JsonFields> JsonFields::Object(std::string_view name) const {
  MILLRACE_ASSIGN_OR_RETURN(const Json* field, Get(name));
  if (!field->is_object()) return Bad(name, StrCat("is ", Describe(*field), ", must be an object"));
  return JsonFields(*field, StrCat(before_, name, "."));
}

absl::Status JsonFields::Refuse(std::string_view name, const Json& neutral) const {
  const Json* field = Find(name);
  if (field == nullptr || IsOneOf(*field, neutral)) return absl::OkStatus();
  std::vector<std::string> allowed;
  for (const Json& value : neutral) allowed.push_back(value.dump());
  return Unsupported(
      name, StrCat(Describe(*field), " is not supported",
                   allowed.empty() ? "" : StrCat(" (supported: ", JoinList(allowed), ")")));
}

absl::Status JsonFields::Bad(std::string_view name, std::string_view what) const {
  return absl::InvalidArgumentError(StrCat(before_, name, ": ", what));
}

absl::Status JsonFields::Unsupported(std::string_view name, std::string_view what) const {
  return absl::UnimplementedError(StrCat(before_, name, ": ", what));
}

}  // namespace millrace
