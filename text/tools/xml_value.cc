#include "text/tools/xml_value.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "text/tools/json_call.h"
#include "text/tools/python_value.h"

namespace millrace {
namespace {

// Returns what Python's constants are in JSON; "" for any other text.
std::string_view PythonConstant(std::string_view text, const ArgumentType& type) {
  if (type.has(ArgumentType::kBoolean)) {
    if (text == "True") return "true";
    if (text == "False") return "false";
  }
  // An optional string may well be the word.
  const bool null = type.any() || !type.has(ArgumentType::kString);
  return null && text == "None" ? "null" : "";
}

bool BeginsPythonConstant(std::string_view text, const ArgumentType& type) {
  const std::string_view trimmed = Trim(text);
  for (const std::string_view one : {"True", "False", "None"}) {
    if (one.starts_with(trimmed) && !PythonConstant(one, type).empty()) return true;
  }
  return false;
}

std::string_view WithoutNewlines(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// Returns a value's JSON text.
std::string JsonOf(std::string_view value, bool is_json, const ArgumentType& type) {
  const bool listed = std::find(type.texts.begin(), type.texts.end(), value) != type.texts.end();
  if (listed) return Quoted(value);
  const std::string_view trimmed = Trim(value);
  const bool may_be_text = type.has(ArgumentType::kString);
  if (is_json) {
    const bool allowed = !may_be_text || type.any();
    const auto json = ParseOrdered(trimmed, kCallJson);
    if (json.ok() && (allowed || type.has(TypeOfValue(*json)))) return std::string(trimmed);
    return Quoted(value);
  }
  if (const std::string_view constant = PythonConstant(trimmed, type); !constant.empty()) {
    return std::string(constant);
  }
  if (!may_be_text) {
    if (auto json = PythonValueToJson(trimmed); json.has_value()) return *std::move(json);
  }
  return Quoted(value);
}

}  // namespace

void AppendEscaped(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        *out += '\\';
        *out += c;
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) {
          *out += c;
        } else {
          *out += "\\u00";
          *out += kHex[c >> 4];
          *out += kHex[c & 15];
        }
    }
  }
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  AppendEscaped(text, &out);
  out += '"';
  return out;
}

void XmlValue::Begin(ArgumentType type) {
  *this = XmlValue();
  type_ = std::move(type);
}

// Returns whether text_ may still turn out to be something else than a string.
bool XmlValue::MayBeOther() const {
  if (!type_.has(ArgumentType::kString)) return true;
  const size_t begin = text_.find_first_not_of(" \n\t\r");
  if (begin == text_.npos) return type_.types != ArgumentType::kString;
  if (!is_json_) return BeginsPythonConstant(text_, type_);
  const char c = text_[begin];
  if (c == '{') return type_.has(ArgumentType::kObject);
  if (c == '[') return type_.has(ArgumentType::kArray);
  if (c == 't' || c == 'f') return type_.has(ArgumentType::kBoolean);
  if (c == 'n') return type_.has(ArgumentType::kNull);
  // Whoever may write JSON quotes strings, too.
  if (c == '"') return type_.types != ArgumentType::kString;
  return type_.has(ArgumentType::kInteger | ArgumentType::kFraction);
}

void XmlValue::Step(char c, std::string* out) {
  last_ = c;
  if (streams_) return StepText(c, out);
  text_ += c;
  is_json_ = is_json_ && json_.Step(c);
  if (!MayBeOther()) BeginText(out);
}

void XmlValue::BeginText(std::string* out) {
  streams_ = true;
  *out += '"';
  for (const char c : std::exchange(text_, std::string())) StepText(c, out);
}

void XmlValue::StepText(char c, std::string* out) {
  if (std::exchange(first_, false) && c == '\n') return;
  if (newline_) *out += "\\n";
  newline_ = c == '\n';
  if (!newline_) AppendEscaped(std::string_view(&c, 1), out);
}

void XmlValue::End(std::string* out) {
  if (streams_) {
    *out += '"';
  } else if (type_.types == ArgumentType::kString) {
    *out += Quoted(WithoutNewlines(text_));
  } else {
    *out += JsonOf(WithoutNewlines(text_), is_json_ && json_.complete(), type_);
  }
}

void XmlValue::Cut(std::string* out) {
  if (!streams_ && is_json_) {
    *out += Trim(text_);
  } else if (!streams_) {
    BeginText(out);
  }
}

}  // namespace millrace
