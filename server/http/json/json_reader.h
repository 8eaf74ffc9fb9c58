// JSON out of a hostile body: the reading of an object's fields by name.
#ifndef MILLRACE_SERVER_HTTP_JSON_JSON_READER_H_
#define MILLRACE_SERVER_HTTP_JSON_JSON_READER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/settings.h"
#include "formats/json/exact_json.h"

namespace millrace {

// Parses a body, nested at most 128 deep; a prompt of a million token ids fits. InvalidArgument
// as in formats/json/json.h, as an error of the API.
absl::StatusOr<OrderedJson> ParseBody(std::string_view text);
// The same, and keeps numbers as they are written (exact_json.h): for a body with schemas, tools or
// calls, which are passed on as text.
absl::StatusOr<OrderedJson> ParseBodyAsWritten(std::string_view text);

// Reads an object's fields. The first thing wrong is kept and everything after it is passed over,
// so that a parser is a list of calls; Finish says what it was. A field that is null counts as
// absent.
class FieldReader {
 public:
  // `path` comes before a field's name in messages and in `param`: "messages[3].", or nothing.
  // `object` outlives this.
  explicit FieldReader(const OrderedJson& object, std::string path = "",
                       UnknownFields unknown = UnknownFields::kRefuse);
  // A temporary is refused, a Json too, which would be converted into one: this would outlive it.
  explicit FieldReader(OrderedJson&& object, std::string path = "",
                       UnknownFields unknown = UnknownFields::kRefuse) = delete;

  // Read a field; each leaves `value` as it is if the field is absent.
  void Read(std::string_view name, bool& value);
  void Read(std::string_view name, int32_t& value);
  void Read(std::string_view name, std::optional<int32_t>& value);
  void Read(std::string_view name, float& value);
  void Read(std::string_view name, std::string& value);
  void Read(std::string_view name, std::vector<int32_t>& value);

  // Returns the field itself, for what has a shape of its own; nullptr if absent. The name counts
  // as known.
  const OrderedJson* Find(std::string_view name);

  // Refuses a field unless it has one of the values of `neutral`, a JSON list, which change
  // nothing.
  void Refuse(std::string_view name, const OrderedJson& neutral);

  // Notes an error found by the caller, about the field `name` ("" for the object itself).
  void Fail(std::string_view name, std::string_view code, std::string_view message);
  void FailMissing(std::string_view name, std::string_view allowed);
  // Records the error "<name> is <value>; allowed: <allowed>".
  void FailValue(std::string_view name, const OrderedJson& value, std::string_view allowed);
  void Fail(absl::Status status);

  bool ok() const { return status_.ok(); }
  UnknownFields unknown_fields() const { return unknown_fields_; }

  // Returns the first error, or with UnknownFields::kRefuse an error for a field that was not read,
  // with its name and perhaps the field that was meant.
  absl::Status Finish();

 private:
  // Returns the field, or nullptr if it is absent or null.
  const OrderedJson* FindMember(std::string_view name) const;

  // The members, sorted by key: a hostile object has a million members, and is searched for a
  // hundred fields.
  std::vector<const OrderedMember*> members_;
  const std::string path_;
  const UnknownFields unknown_fields_;
  std::vector<std::string> known_;  // names may be read out of the request
  absl::Status status_;
};

// Collects the names of all fields that readers on this thread look for while it lives, such as
// "messages[].role". Tests hold the description of the API to them.
class FieldTrace {
 public:
  FieldTrace();
  ~FieldTrace();
  FieldTrace(const FieldTrace&) = delete;
  FieldTrace& operator=(const FieldTrace&) = delete;

  const std::set<std::string>& names() const { return names_; }

 private:
  friend class FieldReader;
  void Add(std::string_view path, std::string_view name);

  std::set<std::string> names_;
};

// Returns an integer that fits `int32_t`, which may be written as 3.0: JSON has one kind of number,
// and some clients write all of them so. Nothing for anything else.
std::optional<int32_t> AsInt32(const OrderedJson& value);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_JSON_JSON_READER_H_
