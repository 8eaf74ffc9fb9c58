// Negations of schemas, as schemas: not, if and oneOf are made of them.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/schema.h"

namespace millrace::schema {
namespace {

JsonValue Text(std::string_view text) {
  return {.type = JsonValue::Type::kString, .text = std::string(text)};
}
JsonValue List(std::vector<JsonValue> items) {
  return {.type = JsonValue::Type::kArray, .items = std::move(items)};
}
JsonValue Object(std::string_view keyword, JsonValue value) {
  JsonValue object{.type = JsonValue::Type::kObject};
  object.members.emplace_back(std::string(keyword), std::move(value));
  return object;
}
// The negation of a keyword that concerns values of one type alone.
JsonValue Typed(std::string_view type, std::string_view keyword, JsonValue value) {
  JsonValue object = Object("type", Text(type));
  object.members.emplace_back(std::string(keyword), std::move(value));
  return object;
}

}  // namespace

absl::StatusOr<const JsonValue*> Reader::NegationOfKeyword(const JsonValue& schema,
                                                           const std::string& keyword,
                                                           const JsonValue& value) {
  const auto count = [&](int64_t by) -> std::optional<JsonValue> {
    const auto decimal = ParseDecimal(value.text);
    if (!value.is_number() || !decimal || !decimal->is_integer() || decimal->whole.size() > 9) {
      return std::nullopt;
    }
    const int64_t number = std::stoll(decimal->whole) + by;
    if (number < 0) return JsonValue{.type = JsonValue::Type::kNull};
    return JsonValue{.type = JsonValue::Type::kNumber, .text = std::to_string(number)};
  };
  const auto counted = [&](std::string_view type, std::string_view other,
                           int64_t by) -> absl::StatusOr<const JsonValue*> {
    const std::optional<JsonValue> number = count(by);
    if (!number) return Refuse(schema, keyword, "it must be a count");
    if (number->type == JsonValue::Type::kNull) return Make("false");
    return Keep(Typed(type, other, *number));
  };
  if (keyword == "type") {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, TypesOf(*this, schema));
    return MakeTypes(kAnyType & ~types);
  }
  if (keyword == "const") return Keep(Object("\xffnotEnum", List({value})));
  if (keyword == "enum") return Keep(Object("\xffnotEnum", value));
  if (keyword == "minimum") return Keep(Typed("number", "exclusiveMaximum", value));
  if (keyword == "maximum") return Keep(Typed("number", "exclusiveMinimum", value));
  if (keyword == "exclusiveMinimum") return Keep(Typed("number", "maximum", value));
  if (keyword == "exclusiveMaximum") return Keep(Typed("number", "minimum", value));
  if (keyword == "minLength") return counted("string", "maxLength", -1);
  if (keyword == "maxLength") return counted("string", "minLength", 1);
  if (keyword == "minItems") return counted("array", "maxItems", -1);
  if (keyword == "maxItems") return counted("array", "minItems", 1);
  if (keyword == "minProperties") return counted("object", "maxProperties", -1);
  if (keyword == "maxProperties") return counted("object", "minProperties", 1);
  if (keyword == "pattern") return Keep(Typed("string", "\xffnotPattern", value));
  if (keyword == "required") {
    std::vector<JsonValue> absent;
    for (const JsonValue& name : value.items) {
      absent.push_back(
          Typed("object", "properties", Object(name.text, {.type = JsonValue::Type::kFalse})));
    }
    if (absent.empty()) return Make("false");
    return Keep(Object("anyOf", List(std::move(absent))));
  }
  if (keyword == "properties") {
    std::vector<JsonValue> wrong;
    for (const auto& [name, own] : value.members) {
      MILLRACE_ASSIGN_OR_RETURN(const JsonValue* negation, Negation(own));
      JsonValue one = Typed("object", "properties", Object(name, *negation));
      one.members.emplace_back("required", List({Text(name)}));
      wrong.push_back(std::move(one));
    }
    if (wrong.empty()) return Make("false");
    return Keep(Object("anyOf", List(std::move(wrong))));
  }
  if (keyword == "allOf" || keyword == "anyOf") {
    std::vector<JsonValue> negations;
    for (const JsonValue& one : value.items) {
      MILLRACE_ASSIGN_OR_RETURN(const JsonValue* negation, Negation(one));
      negations.push_back(*negation);
    }
    return Keep(Object(keyword == "allOf" ? "anyOf" : "allOf", List(std::move(negations))));
  }
  if (keyword == "not") return &value;
  if (keyword == "$ref" && value.is_string()) {
    MILLRACE_ASSIGN_OR_RETURN(const JsonValue* target, Resolve(schema, value.text));
    return Negation(*target);
  }
  return Refuse(schema, keyword, "its negation is not supported (within not, if or oneOf)");
}

absl::StatusOr<const JsonValue*> Reader::Negation(const JsonValue& schema) {
  if (schema.is_bool()) {
    return Make(schema.type == JsonValue::Type::kTrue ? "false" : "true");
  }
  if (!schema.is_object()) return Refuse(schema, "not", "it must be a schema");
  const auto [it, is_new] = negations_.try_emplace(&schema, nullptr);
  if (!is_new) {
    if (it->second == nullptr) return Refuse(schema, "not", "it concerns itself");
    return it->second;
  }
  constexpr int kMostWithin = 1000;
  if (negations_within_ == kMostWithin) {
    return Refuse(schema, "not", StrCat("it is more than ", kMostWithin, " schemas deep"));
  }
  ++negations_within_;
  const auto left = absl::MakeCleanup([this] { --negations_within_; });
  MILLRACE_RETURN_IF_ERROR(CheckKeywords(schema));
  std::vector<JsonValue> negations;
  for (const auto& [keyword, value] : schema.members) {
    // A keyword that annotates, or applies nothing by itself, has no negation.
    const JsonValue annotation = Object(keyword, value);
    static const char* const kSilent[] = {"title", "description", "default", "examples", "$comment",
                                          "$defs", "definitions", "$schema", "$anchor", "$id",
                                          "deprecated", "readOnly", "writeOnly",
                                          // The negation of `type` heeds it.
                                          "nullable"};
    if (std::find(std::begin(kSilent), std::end(kSilent), keyword) != std::end(kSilent)) continue;
    if (keyword == "if" || keyword == "then" || keyword == "else") {
      return Refuse(schema, keyword, "its negation is not supported (within not, if or oneOf)");
    }
    MILLRACE_ASSIGN_OR_RETURN(const JsonValue* negation, NegationOfKeyword(schema, keyword, value));
    negations.push_back(*negation);
  }
  const JsonValue* result =
      negations.empty() ? Make("false") : Keep(Object("anyOf", List(std::move(negations))));
  return negations_[&schema] = result;
}

}  // namespace millrace::schema
