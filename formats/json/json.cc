#include "formats/json/json.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"

namespace millrace {
namespace {

bool IsInteger(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Builds the value as the parser walks the text, and stops it at the first thing out of bounds. The
// parser keeps its own stack on the heap, so depth costs no call stack.
template <typename Value>
class Builder : public nlohmann::json_sax<Value> {
 public:
  using Sax = nlohmann::json_sax<Value>;

  explicit Builder(const JsonLimits& limits, bool exact = false) : limits_(limits), exact_(exact) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return Add(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return Add(value); }
  bool number_float(typename Sax::number_float_t value, const std::string& text) override {
    if (exact_ && IsInteger(text)) return Add(Value::binary({text.begin(), text.end()}));
    return Add(value);
  }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(typename Sax::binary_t&) override { return Stop("binary values are not JSON"); }

  bool start_object(size_t) override { return Start(Value::object()); }
  bool key(std::string& name) override {
    const auto [place, is_new] = open_.back().Member(name);
    if (!is_new && !limits_.repeats) {
      repeated_.push_back({place, std::move(*place), name, open_.size()});
    }
    member_ = place;
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Start(Value::array()); }
  bool end_array() override { return Close(); }

  bool parse_error(size_t, const std::string&, const typename Value::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    std::string_view what = error.what();
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    return Stop(Printable(what, 200));
  }

  absl::StatusOr<Value> Take() {
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    return std::move(root_);
  }

 private:
  // A container that has not ended.
  struct Open {
    Value* value;
    absl::flat_hash_map<std::string, size_t> places = {};  // of an OrderedJson's keys

    // Returns the member of that key, and whether it is new.
    std::pair<Value*, bool> Member(const std::string& name) {
      auto& object = value->template get_ref<typename Value::object_t&>();
      if constexpr (std::is_same_v<Value, OrderedJson>) {
        // The vector beneath, whose emplace_back looks at no other key.
        auto& members = static_cast<typename Value::object_t::Container&>(object);
        const auto [it, is_new] = places.try_emplace(name, members.size());
        if (is_new) members.emplace_back(name, nullptr);
        return {&members[it->second].second, is_new};
      } else {
        const auto [it, is_new] = object.try_emplace(name);
        return {&it->second, is_new};
      }
    }
  };

  bool Stop(std::string why) {
    error_ = std::move(why);
    return false;
  }

  // The value's place in what has been built, or nullptr if there are too many.
  Value* Place(Value value) {
    if (++values_ > limits_.values) {
      Stop(StrCat("more than ", limits_.values, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Value& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(*member_ = std::move(value));
  }

  bool Add(Value value) { return Place(std::move(value)) != nullptr && CheckRepeated(); }

  // Compares a value that is complete with that of the same key before it, if there was one.
  bool CheckRepeated() {
    if (repeated_.empty() || repeated_.back().depth != open_.size()) return true;
    const Repeated repeated = std::move(repeated_.back());
    repeated_.pop_back();
    return *repeated.place == repeated.before ||
           Stop(StrCat("the key \"", Printable(repeated.key),
                       "\" comes twice in one object, with different values"));
  }

  bool Start(Value container) {
    if (open_.size() == limits_.depth) {
      return Stop(StrCat("nested more than ", limits_.depth, " deep"));
    }
    Value* place = Place(std::move(container));
    if (place == nullptr) return false;
    // Its parent gets no other member, which could move it, before it is closed.
    open_.push_back({place});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return CheckRepeated();
  }

  // A key that came again, whose new value is being read.
  struct Repeated {
    Value* place;
    Value before;
    std::string key;
    size_t depth;  // of open containers, around the value
  };

  const JsonLimits limits_;
  const bool exact_;  // ParseExact's way
  Value root_;
  std::vector<Open> open_;
  std::vector<Repeated> repeated_;  // the innermost last
  Value* member_ = nullptr;         // of the innermost container, an object, whose value comes next
  size_t values_ = 0;
  std::string error_;
};

template <typename Value>
absl::StatusOr<Value> Parse(std::string_view text, const JsonLimits& limits) {
  Builder<Value> builder(limits);
  Value::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

// Returns whether an integer that KeptInteger finds is the value or within it.
bool KeepsIntegers(const OrderedJson& value) {
  return value.is_structured() ? std::any_of(value.begin(), value.end(), KeepsIntegers)
                               : value.is_binary();
}

// Appends what DumpExact returns.
void AppendExact(const OrderedJson& value, std::string* text) {
  if (value.is_binary()) {
    text->append(KeptInteger(value));
  } else if (value.is_array()) {
    *text += '[';
    for (const OrderedJson& item : value) {
      if (&item != &value.front()) *text += ',';
      AppendExact(item, text);
    }
    *text += ']';
  } else if (value.is_object()) {
    *text += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!std::exchange(first, false)) *text += ',';
      text->append(OrderedJson(key).dump()).append(1, ':');
      AppendExact(member, text);
    }
    *text += '}';
  } else {
    text->append(value.dump());
  }
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  return Parse<Json>(text, limits);
}

absl::StatusOr<OrderedJson> ParseOrdered(std::string_view text, const JsonLimits& limits) {
  return Parse<OrderedJson>(text, limits);
}

absl::StatusOr<OrderedJson> ParseExact(std::string_view text, const JsonLimits& limits) {
  Builder<OrderedJson> builder(limits, /*exact=*/true);
  OrderedJson::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

std::string_view KeptInteger(const OrderedJson& value) {
  if (!value.is_binary()) return "";
  const auto& digits = value.get_binary();
  return {reinterpret_cast<const char*>(digits.data()), digits.size()};
}

std::string DumpExact(const OrderedJson& value) {
  if (!KeepsIntegers(value)) return value.dump();
  std::string text;
  AppendExact(value, &text);
  return text;
}

std::string TextOrJson(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : DumpExact(value);
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
