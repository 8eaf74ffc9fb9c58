#include "text/grammar/json_value.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

class Reader : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(int depth) : depth_(depth) {}

  bool null() override { return Add({}); }
  bool boolean(bool value) override {
    return Add({.type = value ? JsonValue::Type::kTrue : JsonValue::Type::kFalse});
  }
  bool number_integer(number_integer_t value) override { return Number(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Number(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return Number(text); }
  bool string(string_t& value) override {
    return Add({.type = JsonValue::Type::kString, .text = std::move(value)});
  }
  bool binary(binary_t&) override { return Stop("binary values are not JSON"); }
  bool start_object(size_t) override { return Open(JsonValue::Type::kObject); }
  bool start_array(size_t) override { return Open(JsonValue::Type::kArray); }
  bool end_array() override { return Close(); }
  bool end_object() override { return Close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      return Stop(StrCat("the key \"", Printable(name, 64), "\" comes twice in one object"));
    }
    open_.back()->members.emplace_back(std::move(name), JsonValue());
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    std::string_view what = error.what();
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    return Stop(Printable(what, 200));
  }

  absl::StatusOr<JsonValue> Take() {
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    return std::move(root_);
  }

 private:
  bool Stop(std::string why) {
    error_ = std::move(why);
    return false;
  }
  bool Number(std::string text) {
    return Add({.type = JsonValue::Type::kNumber, .text = std::move(text)});
  }
  JsonValue* Place(JsonValue value) {
    if (open_.empty()) return &(root_ = std::move(value));
    JsonValue& parent = *open_.back();
    if (parent.is_array()) return &parent.items.emplace_back(std::move(value));
    return &(parent.members.back().second = std::move(value));
  }
  bool Add(JsonValue value) {
    Place(std::move(value));
    return true;
  }
  bool Open(JsonValue::Type type) {
    if (open_.size() == static_cast<size_t>(depth_)) {
      return Stop(StrCat("nested more than ", depth_, " deep"));
    }
    open_.push_back(Place({.type = type}));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const int depth_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  std::vector<absl::flat_hash_set<std::string>> keys_;
  std::string error_;
};

std::string_view TrimZeros(std::string_view digits) {
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  return digits;
}

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

absl::StatusOr<JsonValue> ParseOrderedJson(std::string_view text, int depth) {
  Reader reader(depth);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.Take();
}

std::optional<Decimal> ParseDecimal(std::string_view number) {
  constexpr int64_t kMostDigits = 400;
  Decimal result;
  if (!number.empty() && number[0] == '-') {
    result.negative = true;
    number.remove_prefix(1);
  }
  int64_t exponent = 0;
  if (const size_t e = number.find_first_of("eE"); e != number.npos) {
    std::string_view text = number.substr(e + 1);
    const bool minus = !text.empty() && text[0] == '-';
    if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
    for (const char c : text) {
      exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 1 << 20);
    }
    if (minus) exponent = -exponent;
    number = number.substr(0, e);
  }
  const size_t point = number.find('.');
  std::string digits(number.substr(0, point));
  int64_t places = static_cast<int64_t>(digits.size());
  if (point != number.npos) digits += number.substr(point + 1);
  places += exponent;
  if (digits.find_first_not_of('0') == digits.npos) {
    return Decimal{.negative = false, .whole = "0", .fraction = ""};
  }
  if (places > kMostDigits || places < -kMostDigits ||
      digits.size() > static_cast<size_t>(kMostDigits)) {
    return std::nullopt;
  }
  if (places < 0) {
    digits.insert(0, static_cast<size_t>(-places), '0');
    places = 0;
  }
  if (static_cast<int64_t>(digits.size()) < places) digits.resize(places, '0');
  result.whole = std::string(TrimZeros(digits.substr(0, places)));
  if (result.whole.empty()) result.whole = "0";
  result.fraction = digits.substr(places);
  while (!result.fraction.empty() && result.fraction.back() == '0') result.fraction.pop_back();
  return result;
}

std::string Decimal::ToString() const {
  return StrCat(negative ? "-" : "", whole, fraction.empty() ? "" : ".", fraction);
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int result = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1)
                                                : a.whole.compare(b.whole);
  if (result == 0) result = a.fraction.compare(b.fraction);
  return a.negative ? -result : result;
}

std::string EqualKey(const JsonValue& value) {
  const auto text = [](std::string_view kind, std::string_view text) {
    return StrCat(kind, text.size(), ":", text);
  };
  switch (value.type) {
    case JsonValue::Type::kNumber: {
      const auto decimal = ParseDecimal(value.text);
      if (!decimal) return text("N", value.text);
      return text("n", decimal->is_zero() ? "0" : decimal->ToString());
    }
    case JsonValue::Type::kString:
      return text("s", value.text);
    case JsonValue::Type::kArray: {
      std::string key = "[";
      for (const JsonValue& item : value.items) key += EqualKey(item);
      return key + "]";
    }
    case JsonValue::Type::kObject: {
      std::map<std::string_view, const JsonValue*> members;
      for (const auto& [name, member] : value.members) members.emplace(name, &member);
      std::string key = "{";
      for (const auto& [name, member] : members) key += text("s", name) + EqualKey(*member);
      return key + "}";
    }
    default:
      return ToJson(value);
  }
}

absl::flat_hash_set<std::string> EqualKeys(const std::vector<JsonValue>& values) {
  absl::flat_hash_set<std::string> keys;
  for (const JsonValue& value : values) keys.insert(EqualKey(value));
  return keys;
}

void AppendJsonString(std::string_view text, std::string* out) {
  *out += Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToJson(const JsonValue& value) {
  std::string out;
  switch (value.type) {
    case JsonValue::Type::kNull:
      return "null";
    case JsonValue::Type::kFalse:
      return "false";
    case JsonValue::Type::kTrue:
      return "true";
    case JsonValue::Type::kNumber:
      return value.text;
    case JsonValue::Type::kString:
      AppendJsonString(value.text, &out);
      return out;
    case JsonValue::Type::kArray:
      for (const JsonValue& item : value.items) out += (out.empty() ? "" : ", ") + ToJson(item);
      return "[" + out + "]";
    case JsonValue::Type::kObject:
      for (const auto& [name, member] : value.members) {
        if (!out.empty()) out += ", ";
        AppendJsonString(name, &out);
        out += ": " + ToJson(member);
      }
      return "{" + out + "}";
  }
  return out;
}

size_t CountCharacters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace millrace
