#include "server/http/json/json_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "server/http/json/api_error.h"
#include "server/http/json/foreign_fields.h"

namespace millrace {
namespace {

// Schemas are nested deeper than anything else that comes.
constexpr JsonLimits kBodyLimits{.depth = 128};

constexpr Logger kLog(LogComponent::kHttp);

// Edits (insert, delete, replace) that turn `a` into `b`; both are short.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string_view Nearest(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 64;
  std::string_view nearest;
  size_t least = 3;
  if (name.size() > kLongest) return nearest;
  for (std::string_view candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < least && distance * 2 < candidate.size()) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace

namespace {

// Returns what `parse` makes of a body, its error as one of the API.
absl::StatusOr<OrderedJson> Parse(std::string_view text, decltype(ParseOrdered) parse) {
  if (text.empty())
    return FieldError("", "invalid_json", "the body is empty; a JSON object is due");
  absl::StatusOr<OrderedJson> json = parse(text, kBodyLimits);
  if (json.ok()) return json;
  return FieldError("", "invalid_json", StrCat("the body: ", std::string(json.status().message())));
}

}  // namespace

absl::StatusOr<OrderedJson> ParseBody(std::string_view text) { return Parse(text, ParseOrdered); }

absl::StatusOr<OrderedJson> ParseBodyAsWritten(std::string_view text) {
  return Parse(text, ParseAsWritten);
}

namespace {
thread_local FieldTrace* current_trace = nullptr;
}  // namespace

FieldTrace::FieldTrace() { current_trace = this; }
FieldTrace::~FieldTrace() { current_trace = nullptr; }

// "messages[3].", "role" → "messages[].role"
void FieldTrace::Add(std::string_view path, std::string_view name) {
  std::string full;
  bool in_brackets = false;
  for (const char c : path) {
    in_brackets = c == '[' || (in_brackets && c != ']');
    if (!in_brackets || c == '[') full += c;
  }
  names_.insert(StrCat(full, name));
}

std::optional<int32_t> AsInt32(const OrderedJson& value) {
  if (value.is_number_float() || value.is_binary()) {
    const double number = NumberOf(value);
    const bool fits = number >= INT32_MIN && number <= INT32_MAX && number == std::trunc(number);
    return fits ? std::optional(static_cast<int32_t>(number)) : std::nullopt;
  }
  const std::optional<int64_t> number = AsInteger(value, INT32_MIN, INT32_MAX);
  return number ? std::optional(static_cast<int32_t>(*number)) : std::nullopt;
}

FieldReader::FieldReader(const OrderedJson& object, std::string path, UnknownFields unknown)
    : path_(std::move(path)), unknown_fields_(unknown) {
  if (object.is_object()) {
    members_ = SortedMembers(object);
  } else {
    std::string name = path_.empty() ? "the body" : path_.substr(0, path_.size() - 1);
    Fail(FieldError(path_.empty() ? "" : name, "invalid_type",
                    StrCat(name, " is ", Describe(object), "; allowed: an object")));
  }
}

const OrderedJson* FieldReader::FindMember(std::string_view name) const {
  const auto found = std::lower_bound(
      members_.begin(), members_.end(), name,
      [](const OrderedMember* member, std::string_view key) { return member->first < key; });
  const bool there =
      found != members_.end() && (*found)->first == name && !(*found)->second.is_null();
  return there ? &(*found)->second : nullptr;
}

const OrderedJson* FieldReader::Find(std::string_view name) {
  known_.emplace_back(name);
  if (current_trace != nullptr) current_trace->Add(path_, name);
  return ok() ? FindMember(name) : nullptr;
}

void FieldReader::Read(std::string_view name, bool& value) {
  const OrderedJson* field = Find(name);
  if (field == nullptr) return;
  if (!field->is_boolean()) return FailValue(name, *field, "true or false");
  value = field->get<bool>();
}

void FieldReader::Read(std::string_view name, int32_t& value) {
  const OrderedJson* field = Find(name);
  if (field == nullptr) return;
  const std::optional<int32_t> number = AsInt32(*field);
  if (!number) return FailValue(name, *field, "an integer of 32 bits");
  value = *number;
}

void FieldReader::Read(std::string_view name, std::optional<int32_t>& value) {
  int32_t number = 0;
  Read(name, number);
  if (ok() && FindMember(name) != nullptr) value = number;
}

void FieldReader::Read(std::string_view name, float& value) {
  const OrderedJson* field = Find(name);
  if (field == nullptr) return;
  if (!IsNumber(*field) ||
      std::abs(NumberOf(*field)) > static_cast<double>(std::numeric_limits<float>::max())) {
    return FailValue(name, *field, "a number");
  }
  value = static_cast<float>(NumberOf(*field));
}

void FieldReader::Read(std::string_view name, std::string& value) {
  const OrderedJson* field = Find(name);
  if (field == nullptr) return;
  if (!field->is_string()) return FailValue(name, *field, "a string");
  value = field->get_ref<const std::string&>();
}

void FieldReader::Read(std::string_view name, std::vector<int32_t>& value) {
  const OrderedJson* field = Find(name);
  if (field == nullptr) return;
  if (!field->is_array()) return FailValue(name, *field, "a list of integers");
  std::vector<int32_t> numbers;
  numbers.reserve(field->size());
  for (const OrderedJson& item : *field) {
    const std::optional<int32_t> number = AsInt32(item);
    if (!number) {
      return FailValue(StrCat(name, "[", numbers.size(), "]"), item, "an integer of 32 bits");
    }
    numbers.push_back(*number);
  }
  value = std::move(numbers);
}

void FieldReader::Refuse(std::string_view name, const OrderedJson& neutral) {
  const OrderedJson* field = Find(name);
  if (field == nullptr || IsOneOf(*field, neutral)) return;
  std::string allowed;
  for (const OrderedJson& value : neutral) {
    allowed += StrCat(allowed.empty() ? " or be " : ", ", value.dump());
  }
  Fail(name, "unsupported_parameter",
       StrCat(path_, name, " is ", Describe(*field),
              ", which this server does not support; it may be left out", allowed));
}

void FieldReader::Fail(std::string_view name, std::string_view code, std::string_view message) {
  if (ok()) status_ = FieldError(StrCat(path_, name), code, message);
}

void FieldReader::FailMissing(std::string_view name, std::string_view allowed) {
  Fail(name, "missing_required_parameter", StrCat(path_, name, " is missing; allowed: ", allowed));
}

void FieldReader::FailValue(std::string_view name, const OrderedJson& value,
                            std::string_view allowed) {
  Fail(name, "invalid_value", StrCat(path_, name, " is ", Describe(value), "; allowed: ", allowed));
}

void FieldReader::Fail(absl::Status status) {
  if (ok()) status_ = std::move(status);
}

absl::Status FieldReader::Finish() {
  if (!ok()) return status_;
  for (const OrderedMember* member : members_) {
    const std::string& name = member->first;
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    if (unknown_fields_ == UnknownFields::kIgnore) {
      kLog.Debug("ignoring the unknown field ", path_, Printable(name));
      continue;
    }
    std::string hint = path_.empty() ? HintOfForeignField(name, known_) : "";
    if (const std::string_view nearest = Nearest(name, known_); hint.empty() && !nearest.empty()) {
      hint = StrCat("; did you mean ", nearest, "?");
    }
    Fail(Printable(name), "unknown_parameter",
         StrCat(path_, Printable(name), " is not a known field", hint));
    break;
  }
  return status_;
}

}  // namespace millrace
