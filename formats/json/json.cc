#include "formats/json/json.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"

namespace millrace {
namespace {

bool IsInteger(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// The members of an OrderedJson's object: the vector beneath, whose emplace_back looks at no other
// key.
using Members = OrderedJson::object_t::Container;

// The members of one object by their keys. It has the keys' places alone, since members move.
class MemberIndex {
 public:
  // Returns the place of the member of that key, or the number of members if there is none. They
  // are those of the call before, and perhaps more behind them.
  size_t Find(const Members& members, std::string_view key) {
    constexpr size_t kFew = 8;  // are compared one by one
    if (members.size() <= kFew) {
      const auto has_key = [&](const auto& member) { return member.first == key; };
      return std::find_if(members.begin(), members.end(), has_key) - members.begin();
    }
    if (places_.empty()) places_ = Places(0, Hash{&members}, Equal{&members});
    while (places_.size() < members.size()) places_.insert(static_cast<uint32_t>(places_.size()));
    const auto found = places_.find(key);
    return found == places_.end() ? members.size() : *found;
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view key) const { return absl::HashOf(key); }
    size_t operator()(uint32_t place) const { return (*this)((*members)[place].first); }
    const Members* members;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t place, std::string_view key) const {
      return (*members)[place].first == key;
    }
    const Members* members;
  };
  using Places = absl::flat_hash_set<uint32_t, Hash, Equal>;

  Places places_{0, Hash{nullptr}, Equal{nullptr}};
};

// Says which numbers of an OrderedJson are kept as they are written.
enum class Kept { kNone, kLongIntegers, kAll };

// Builds the value as the parser walks the text, and stops it at the first thing out of bounds. The
// parser keeps its own stack on the heap, so depth costs no call stack.
template <typename Value>
class Builder : public nlohmann::json_sax<Value> {
 public:
  using Sax = nlohmann::json_sax<Value>;

  explicit Builder(const JsonLimits& limits, Kept kept = Kept::kNone)
      : limits_(limits), kept_(kept) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return Add(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return Add(value); }
  bool number_float(typename Sax::number_float_t value, const std::string& text) override {
    const bool keep = kept_ != Kept::kNone &&
                      (IsInteger(text) || (kept_ == Kept::kAll && Value(value).dump() != text));
    return Add(keep ? Value::binary({text.begin(), text.end()}) : Value(value));
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
  // Makes place for more members. A vector would copy them with all that is in them: a member has a
  // constant key, whose move may throw.
  static void Grow(Members* members) {
    Members grown;
    grown.reserve(std::max<size_t>(4, 2 * members->size()));
    for (auto& [key, value] : *members) grown.emplace_back(key, std::move(value));
    members->swap(grown);
  }

  // A container that has not ended.
  struct Open {
    Value* value;
    MemberIndex index = {};  // of an OrderedJson

    // Returns the member of that key, and whether it is new.
    std::pair<Value*, bool> Member(const std::string& name) {
      auto& object = value->template get_ref<typename Value::object_t&>();
      if constexpr (std::is_same_v<Value, OrderedJson>) {
        Members& members = object;
        const size_t place = index.Find(members, name);
        const bool is_new = place == members.size();
        if (is_new) {
          if (members.size() == members.capacity()) Grow(&members);
          members.emplace_back(name, nullptr);
        }
        return {&members[place].second, is_new};
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
    return Same(*repeated.place, repeated.before) ||
           Stop(StrCat("the key \"", Printable(repeated.key),
                       "\" comes twice in one object, with different values"));
  }

  static bool Same(const Json& a, const Json& b) { return a == b; }
  static bool Same(const OrderedJson& a, const OrderedJson& b) { return SameValue(a, b); }

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
  const Kept kept_;
  Value root_;
  std::vector<Open> open_;
  std::vector<Repeated> repeated_;  // the innermost last
  Value* member_ = nullptr;         // of the innermost container, an object, whose value comes next
  size_t values_ = 0;
  std::string error_;
};

template <typename Value>
absl::StatusOr<Value> Parse(std::string_view text, const JsonLimits& limits,
                            Kept kept = Kept::kNone) {
  Builder<Value> builder(limits, kept);
  Value::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

// Returns whether a number that KeptNumber finds is the value or within it.
bool KeepsNumbers(const OrderedJson& value) {
  return value.is_structured() ? std::any_of(value.begin(), value.end(), KeepsNumbers)
                               : value.is_binary();
}

// Appends what DumpExact returns.
void AppendExact(const OrderedJson& value, std::string* text) {
  if (value.is_binary()) {
    text->append(KeptNumber(value));
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

template <typename Value>
std::optional<int64_t> IntegerWithin(const Value& value, int64_t min, int64_t max) {
  // Beyond int64_t a number is a float, or unsigned.
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.template get<uint64_t>() > INT64_MAX) return std::nullopt;
  const auto number = value.template get<int64_t>();
  return number < min || number > max ? std::nullopt : std::optional(number);
}

template <typename Value>
std::string ShortText(const Value& value) {
  switch (value.type()) {
    case Value::value_t::object:
      return value.empty() ? "{}" : "an object";
    case Value::value_t::array:
      return value.empty() ? "[]" : StrCat("a list of ", value.size());
    case Value::value_t::string:
      return StrCat("\"", Printable(value.template get_ref<const std::string&>(), 64), "\"");
    default:
      return value.dump();
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
  return Parse<OrderedJson>(text, limits, Kept::kLongIntegers);
}

absl::StatusOr<OrderedJson> ParseAsWritten(std::string_view text, const JsonLimits& limits) {
  return Parse<OrderedJson>(text, limits, Kept::kAll);
}

std::string_view KeptNumber(const OrderedJson& value) {
  if (!value.is_binary()) return "";
  const auto& digits = value.get_binary();
  return {reinterpret_cast<const char*>(digits.data()), digits.size()};
}

bool IsNumber(const OrderedJson& value) { return value.is_number() || value.is_binary(); }

double NumberOf(const OrderedJson& value) {
  if (!value.is_binary()) return value.get<double>();
  // The parser uses strtod as well.
  return std::strtod(std::string(KeptNumber(value)).c_str(), nullptr);
}

bool SameValue(const OrderedJson& a, const OrderedJson& b) {
  if (a.is_binary() || b.is_binary()) {
    if (!IsNumber(a) || !IsNumber(b)) return false;
    // Long integers that have the same double may differ.
    if (IsInteger(KeptNumber(a)) && IsInteger(KeptNumber(b))) return KeptNumber(a) == KeptNumber(b);
    return NumberOf(a) == NumberOf(b);
  }
  if (a.is_array() && b.is_array()) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameValue);
  }
  if (!a.is_object() || !b.is_object()) return a == b;
  const auto same_member = [](const OrderedMember* one, const OrderedMember* other) {
    return one->first == other->first && SameValue(one->second, other->second);
  };
  if (a.size() != b.size()) return false;
  const std::vector<const OrderedMember*> members = SortedMembers(a);
  return std::equal(members.begin(), members.end(), SortedMembers(b).begin(), same_member);
}

std::string DumpExact(const OrderedJson& value) {
  if (!KeepsNumbers(value)) return value.dump();
  std::string text;
  AppendExact(value, &text);
  return text;
}

std::string TextOrJson(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : DumpExact(value);
}

std::vector<const OrderedMember*> SortedMembers(const OrderedJson& object) {
  std::vector<const OrderedMember*> sorted;
  sorted.reserve(object.size());
  for (const OrderedMember& member : object.get_ref<const OrderedJson::object_t&>()) {
    sorted.push_back(&member);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const OrderedMember* a, const OrderedMember* b) { return a->first < b->first; });
  return sorted;
}

const Json* FindField(const Json& object, std::string_view name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<int64_t> AsInteger(const Json& value, int64_t min, int64_t max) {
  return IntegerWithin(value, min, max);
}

std::optional<int64_t> AsInteger(const OrderedJson& value, int64_t min, int64_t max) {
  return IntegerWithin(value, min, max);
}

bool IsOneOf(const Json& value, const Json& values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool IsOneOf(const OrderedJson& value, const OrderedJson& values) {
  return std::any_of(values.begin(), values.end(),
                     [&](const OrderedJson& one) { return SameValue(one, value); });
}

std::string Describe(const Json& value) { return ShortText(value); }

std::string Describe(const OrderedJson& value) {
  return value.is_binary() ? OrderedJson(NumberOf(value)).dump() : ShortText(value);
}

}  // namespace millrace
