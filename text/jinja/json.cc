#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

template <typename Json>
absl::StatusOr<Value> Convert(const Budget& budget, const Json& json, int depth) {
  if (depth > budget.limits().max_depth) {
    return absl::InvalidArgumentError(
        StrCat("JSON is nested deeper than ", budget.limits().max_depth, " levels"));
  }
  switch (json.type()) {
    case Json::value_t::null:
      return Value(None());
    case Json::value_t::boolean:
      return Value(json.template get<bool>());
    case Json::value_t::number_float:
      return Value(json.template get<double>());
    case Json::value_t::number_unsigned:
      if (json.template get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
        return Value(json.template get<uint64_t>());
      }
      [[fallthrough]];
    case Json::value_t::number_integer:
      return Value(json.template get<int64_t>());
    case Json::value_t::string:
      return Value(json.template get_ref<const std::string&>());
    case Json::value_t::binary:
      if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
        if (KeptNumber(json).find_first_of(".eE") != std::string_view::npos) {
          return Value(NumberOf(json));
        }
        return Value(Value::LongInteger{std::make_shared<const std::string>(KeptNumber(json))});
      }
      [[fallthrough]];
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& element : json) {
        MILLRACE_ASSIGN_OR_RETURN(Value item, Convert(budget, element, depth + 1));
        items.push_back(std::move(item));
      }
      return MakeList(budget, std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;  // Its keys differ already.
      for (const auto& [key, element] : json.items()) {
        MILLRACE_ASSIGN_OR_RETURN(Value item, Convert(budget, element, depth + 1));
        const int item_depth = item.list() != nullptr   ? item.list()->depth
                               : item.dict() != nullptr ? item.dict()->depth
                                                        : 0;
        dict.depth = std::max(dict.depth, item_depth + 1);
        dict.items.emplace_back(key, std::move(item));
      }
      return Value(std::make_shared<const Dict>(std::move(dict)));
    }
    default:
      return absl::InvalidArgumentError("binary data has no place in a template");
  }
}

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  absl::Status Write(const Value& value) {
    MILLRACE_RETURN_IF_ERROR(budget_.Spend(1));
    if (const std::string* text = value.string()) {
      MILLRACE_RETURN_IF_ERROR(budget_.SpendText(text->size()));
      return Append(JsonString(*text, style_.ascii));
    }
    if (value.list() != nullptr) return WriteList(*value.list());
    if (value.dict() != nullptr) return WriteDict(*value.dict());
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, Scalar(value));
    return Append(text);
  }

  std::string Take() { return std::move(text_); }

 private:
  static absl::StatusOr<std::string> Scalar(const Value& value) {
    if (value.Is<None>()) return std::string("null");
    if (const bool* flag = value.Get<bool>()) return std::string(*flag ? "true" : "false");
    if (const int64_t* integer = value.Get<int64_t>()) return StrCat(*integer);
    if (const uint64_t* integer = value.Get<uint64_t>()) return StrCat(*integer);
    if (const auto* integer = value.Get<Value::LongInteger>()) return *integer->digits;
    if (const double* real = value.Get<double>()) {
      if (std::isnan(*real)) return std::string("NaN");
      if (std::isinf(*real)) return std::string(*real < 0 ? "-Infinity" : "Infinity");
      return FloatText(*real);
    }
    return TypeError("write as JSON", value);
  }

  absl::Status Append(std::string_view text) {
    text_.append(text);
    MILLRACE_RETURN_IF_ERROR(budget_.SpendText(text.size()));
    return text_.size() <= budget_.limits().max_output_bytes ? absl::OkStatus()
                                                             : budget_.SpendText(text_.size());
  }

  // Appends the white space before an item, or after the last one.
  absl::Status Break(bool after_item) {
    if (after_item) MILLRACE_RETURN_IF_ERROR(Append(style_.item_separator));
    return NewLine();
  }
  absl::Status NewLine() {
    if (!style_.indent) return absl::OkStatus();
    MILLRACE_RETURN_IF_ERROR(Append("\n"));
    for (int i = 0; i < level_; ++i) MILLRACE_RETURN_IF_ERROR(Append(*style_.indent));
    return absl::OkStatus();
  }

  absl::Status WriteList(const List& list) {
    if (list.items.empty()) return Append("[]");
    MILLRACE_RETURN_IF_ERROR(Append("["));
    ++level_;
    for (const Value& item : list.items) {
      MILLRACE_RETURN_IF_ERROR(Break(&item != &list.items.front()));
      MILLRACE_RETURN_IF_ERROR(Write(item));
    }
    --level_;
    MILLRACE_RETURN_IF_ERROR(NewLine());
    return Append("]");
  }

  absl::Status WriteDict(const Dict& dict) {
    if (dict.items.empty()) return Append("{}");
    MILLRACE_ASSIGN_OR_RETURN(const auto items, InOrder(dict));
    MILLRACE_RETURN_IF_ERROR(Append("{"));
    ++level_;
    for (const auto* item : items) {
      MILLRACE_RETURN_IF_ERROR(Break(item != items.front()));
      MILLRACE_RETURN_IF_ERROR(WriteKey(item->first));
      MILLRACE_RETURN_IF_ERROR(Append(style_.key_separator));
      MILLRACE_RETURN_IF_ERROR(Write(item->second));
    }
    --level_;
    MILLRACE_RETURN_IF_ERROR(NewLine());
    return Append("}");
  }

  absl::Status WriteKey(const Value& key) {
    if (key.string() != nullptr) return Write(key);
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, Scalar(key));
    return Append(StrCat("\"", text, "\""));
  }

  absl::StatusOr<std::vector<const std::pair<Value, Value>*>> InOrder(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    MILLRACE_RETURN_IF_ERROR(budget_.Spend(items.size()));
    if (!style_.sort_keys) return items;
    for (const auto* item : items) {
      if (item->first.string() == nullptr) return TypeError("sort by", item->first);
    }
    std::sort(items.begin(), items.end(),
              [](const auto* a, const auto* b) { return *a->first.string() < *b->first.string(); });
    return items;
  }

  Budget& budget_;
  const JsonStyle& style_;
  std::string text_;
  int level_ = 0;
};

}  // namespace

template <typename Json>
absl::StatusOr<Value> FromJson(const Budget& budget, const Json& json) {
  return Convert(budget, json, 1);
}
template absl::StatusOr<Value> FromJson(const Budget&, const nlohmann::json&);
template absl::StatusOr<Value> FromJson(const Budget&, const nlohmann::ordered_json&);

absl::StatusOr<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style) {
  JsonWriter writer(budget, style);
  MILLRACE_RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace millrace::jinja
