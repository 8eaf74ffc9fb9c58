#include "text/tools/json_call.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace millrace {
namespace {

// Deeper arguments than this are taken for no call.
constexpr size_t kMaxDepth = 256;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool IsScalar(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.' || c == '_';
}

}  // namespace

bool DecodeJsonString(const std::string& text, std::string* value) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_string()) return false;
  *value = json.get<std::string>();
  return true;
}

JsonStep JsonExtent::Step(char c) {
  if (quote_ != '\0') {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == quote_) {
      quote_ = '\0';
      return open_.empty() ? JsonStep::kEnd : JsonStep::kMore;
    }
    return JsonStep::kMore;
  }
  const bool top = open_.empty();
  if (scalar_ && top) return IsScalar(c) ? JsonStep::kMore : JsonStep::kBefore;
  if (!std::exchange(begun_, true) && !(c == '{' || c == '[' || c == '"' || IsScalar(c))) {
    return JsonStep::kBad;
  }
  switch (c) {
    case '\'':
      if (top) return JsonStep::kBad;
      [[fallthrough]];
    case '"':
      quote_ = c;
      return JsonStep::kMore;
    case '{':
    case '[':
      open_ += c;
      return open_.size() > kMaxDepth ? JsonStep::kBad : JsonStep::kMore;
    case '}':
    case ']':
      if (top || open_.back() != (c == '}' ? '{' : '[')) return JsonStep::kBad;
      open_.pop_back();
      return open_.empty() ? JsonStep::kEnd : JsonStep::kMore;
    default:
      if (top) scalar_ = true;
      return IsScalar(c) || IsSpace(c) || c == ',' || c == ':' ? JsonStep::kMore : JsonStep::kBad;
  }
}

JsonStep JsonCallReader::Step(char c) {
  if (state_ == State::kInKey) {
    text_ += c;
    const JsonStep step = extent_.Step(c);
    if (step != JsonStep::kEnd) return step;
    std::string key;
    if (!DecodeJsonString(text_, &key)) return JsonStep::kBad;
    member_ = Member::kOther;
    state_ = State::kColon;
    if (keyed_) {
      if (has_name_ || key.empty()) return JsonStep::kBad;
      name_ = std::move(key);
      has_name_ = true;
      member_ = Member::kArguments;
      return JsonStep::kMore;
    }
    if ((key == "name" || key == "tool_name") && !has_name_) member_ = Member::kName;
    if ((key == "arguments" || key == "parameters") && !has_arguments_) {
      member_ = Member::kArguments;
    }
    return JsonStep::kMore;
  }
  if (state_ == State::kInValue) return StepInValue(c);
  if (IsSpace(c)) return JsonStep::kMore;
  switch (state_) {
    case State::kBegin:
      state_ = State::kKeyOrEnd;
      return c == '{' ? JsonStep::kMore : JsonStep::kBad;
    case State::kKeyOrEnd:
    case State::kKey:
      if (c == '}' && state_ == State::kKeyOrEnd) return JsonStep::kEnd;
      if (c != '"') return JsonStep::kBad;
      state_ = State::kInKey;
      text_ = c;
      extent_ = JsonExtent();
      return extent_.Step(c);
    case State::kColon:
      state_ = State::kValue;
      return c == ':' ? JsonStep::kMore : JsonStep::kBad;
    case State::kValue:
      state_ = State::kInValue;
      text_.clear();
      extent_ = JsonExtent();
      quoted_ = c == '"';
      return StepInValue(c);
    default:
      break;
  }
  if (c == '}') return JsonStep::kEnd;  // kNextOrEnd
  state_ = State::kKey;
  return c == ',' ? JsonStep::kMore : JsonStep::kBad;
}

JsonStep JsonCallReader::StepInValue(char c) {
  const JsonStep step = extent_.Step(c);
  if (step == JsonStep::kBad) return step;
  // An object is passed on as it comes; a string has JSON in it, and null stands for no arguments.
  const bool streamed = member_ == Member::kArguments && (has_arguments_ || c == '{' || c == '[');
  if (step != JsonStep::kBefore) {
    if (streamed && text_.empty()) {
      has_arguments_ = true;
      arguments_ += c;
    } else if (member_ != Member::kOther) {
      text_ += c;
    }
  }
  if (step == JsonStep::kMore) return step;
  state_ = State::kNextOrEnd;
  if (!EndValue()) return JsonStep::kBad;
  return step == JsonStep::kBefore ? Step(c) : JsonStep::kMore;
}

// Takes a value that was kept whole. False: it has the wrong type.
bool JsonCallReader::EndValue() {
  if (member_ == Member::kName) {
    has_name_ = DecodeJsonString(text_, &name_) && !name_.empty();
    return has_name_;
  }
  if (member_ == Member::kArguments && !has_arguments_) {
    std::string decoded = "{}";
    if (text_ != "null" && !(quoted_ && DecodeJsonString(text_, &decoded))) return false;
    has_arguments_ = true;
    arguments_ = decoded.empty() ? "{}" : std::move(decoded);
  }
  return true;
}

std::string JsonCallReader::TakeArguments() { return std::exchange(arguments_, std::string()); }

}  // namespace millrace
