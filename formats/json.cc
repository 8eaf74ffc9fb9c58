#include "formats/json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace millrace {
namespace {

// Builds the value as the parser walks the text, and stops it at the first thing out of bounds. The
// parser keeps its own stack on the heap, so depth costs no call stack.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Stop("binary values are not JSON"); }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) {
      return Stop(StrCat("the key \"", Printable(name), "\" comes twice in one object"));
    }
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    std::string_view what = error.what();
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    return Stop(Printable(what, 200));
  }

  absl::StatusOr<Json> Take() {
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    return std::move(root_);
  }

 private:
  bool Stop(std::string why) {
    error_ = std::move(why);
    return false;
  }

  // The value's place in what has been built, or nullptr if there are too many.
  Json* Place(Json value) {
    if (++values_ > limits_.values) {
      Stop(StrCat("more than ", limits_.values, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool Add(Json value) { return Place(std::move(value)) != nullptr; }

  bool Open(Json container) {
    if (open_.size() == limits_.depth) {
      return Stop(StrCat("nested more than ", limits_.depth, " deep"));
    }
    Json* place = Place(std::move(container));
    if (place == nullptr) return false;
    // An open container is the last of its parent, which does not move before it is closed.
    open_.push_back(place);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  size_t values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

const Json* FindField(const Json& object, std::string_view name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<int64_t> AsInteger(const Json& value, int64_t min, int64_t max) {
  // Beyond int64_t a number is a float, or unsigned.
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  const auto number = value.get<int64_t>();
  return number < min || number > max ? std::nullopt : std::optional(number);
}

bool IsOneOf(const Json& value, const Json& values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::string Describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return value.empty() ? "{}" : "an object";
    case Json::value_t::array:
      return value.empty() ? "[]" : StrCat("a list of ", value.size());
    case Json::value_t::string:
      return StrCat("\"", Printable(value.get_ref<const std::string&>(), 64), "\"");
    default:
      return value.dump();
  }
}

}  // namespace millrace
