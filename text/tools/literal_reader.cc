#include "text/tools/literal_reader.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "text/tools/argument_type.h"
#include "text/tools/json_prefix.h"
#include "text/tools/xml_value.h"

namespace millrace {
namespace {

constexpr size_t kMaxDepth = 100;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 16;
}

std::string Hex4(uint32_t code) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text = "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) text += kHex[code >> shift & 15];
  return text;
}

bool IsJson(std::string_view text) {
  JsonPrefix json;
  return std::all_of(text.begin(), text.end(), [&](char c) { return json.Step(c); }) &&
         json.complete();
}

// Returns Python's spellings of numbers that JSON does not have as JSON; "" for any other text.
std::string NumberJson(std::string_view word) {
  std::string number(word.starts_with('+') ? word.substr(1) : word);
  const std::string_view sign = number.starts_with('-') ? "-" : "";
  number.erase(0, sign.size());
  if (number.empty()) return "";
  if (number.size() > 2 && number[0] == '0') {
    const char letter = static_cast<char>(number[1] | 0x20);
    const int bits = letter == 'x' ? 4 : letter == 'o' ? 3 : letter == 'b' ? 1 : 0;
    uint64_t value = 0;
    for (const char c : std::string_view(number).substr(bits == 0 ? number.size() : 2)) {
      if (HexDigit(c) >= 1 << bits || value >> (63 - bits) != 0) return "";
      value = value << bits | static_cast<uint64_t>(HexDigit(c));
    }
    if (bits != 0) return StrCat(sign, value);
  }
  // Underscores stand between digits.
  const auto digit = [&](size_t i) {
    return i < number.size() && number[i] >= '0' && number[i] <= '9';
  };
  for (size_t i = 1; i < number.size(); ++i) {
    if (number[i] == '_' && digit(i - 1) && digit(i + 1)) number.erase(i, 1);
  }
  if (number == ".") return "";
  if (number.starts_with('.')) number.insert(0, 1, '0');
  const size_t point = number.find('.');
  if (point != number.npos && !digit(point + 1)) number.insert(point + 1, 1, '0');
  number.insert(0, sign);
  return IsJson(number) ? number : "";
}

bool IsPrefix(std::string_view word) {
  constexpr std::string_view kLetters = "rRbBuUfF";
  return word.size() <= 2 && std::all_of(word.begin(), word.end(),
                                         [&](char c) { return kLetters.find(c) != kLetters.npos; });
}

}  // namespace

std::string_view LiteralQuote(ArgumentForm form) {
  if (form == ArgumentForm::kGemma) return "<|\"|>";
  return form == ArgumentForm::kFunctionGemma ? "<escape>" : "";
}

LiteralReader::LiteralReader(ArgumentForm form, OrderedJson parameters)
    : form_(form), parameters_(std::move(parameters)) {
  if (!parameters_.is_object()) return;
  const auto properties = parameters_.find("properties");
  if (properties == parameters_.end() || !properties->is_object()) return;
  for (const auto& [name, schema] : properties->items()) properties_.push_back(name);
}

JsonStep LiteralReader::Step(char c, std::string* out) {
  switch (state_) {
    case State::kOpen:
      levels_.push_back({python() ? ')' : '}', true, 0});
      *out += '{';
      state_ = State::kItem;
      return JsonStep::kMore;
    case State::kItem:
      return BeginItem(c, out);
    case State::kKey:
      return StepKey(c, out);
    case State::kColon:
      if (IsSpace(c)) return JsonStep::kMore;
      if (c != ':') return JsonStep::kBad;
      *out += ": ";
      state_ = State::kValue;
      return JsonStep::kMore;
    case State::kValue:
      return IsSpace(c) ? JsonStep::kMore : BeginValue(c, out);
    case State::kQuote:
      return StepQuote(c, out);
    case State::kQuotes:
      return StepQuotes(c, out);
    case State::kString:
      if (!python() && quote_ == '<') {
        StepGemmaString(c, out);
      } else {
        StepString(c, out);
      }
      return JsonStep::kMore;
    case State::kWord:
      return StepWord(c, out);
    case State::kNext:
      return StepNext(c, out);
  }
  return JsonStep::kBad;
}

// ---- Keys and brackets ----

void LiteralReader::Separate(std::string* out) {
  if (levels_.back().members++ > 0) *out += ", ";
}

void LiteralReader::AddKey(std::string_view key, std::string* out) {
  Separate(out);
  if (in_arguments()) key_ = key;
  *out += StrCat(Quoted(key), ": ");
}

bool LiteralReader::Push(char c, std::string* out) {
  const bool keyed = c == '{';
  if (levels_.size() == kMaxDepth) return false;
  levels_.push_back({c == '(' ? ')' : keyed ? '}' : ']', keyed, 0});
  *out += keyed ? '{' : '[';
  state_ = State::kItem;
  return true;
}

JsonStep LiteralReader::Close(char c, std::string* out) {
  if (c != levels_.back().close) return JsonStep::kBad;
  *out += levels_.back().keyed ? '}' : ']';
  levels_.pop_back();
  state_ = State::kNext;
  return levels_.empty() ? JsonStep::kEnd : JsonStep::kMore;
}

JsonStep LiteralReader::BeginItem(char c, std::string* out) {
  if (IsSpace(c) || c == ',') return JsonStep::kMore;
  if (c == levels_.back().close) return Close(c, out);
  if (!levels_.back().keyed) {
    Separate(out);
    state_ = State::kValue;
    return BeginValue(c, out);
  }
  const bool opens = c == '"' || c == '\'' || (!python() && c == '<');
  if (python() && in_arguments() && (opens || c == '[' || c == '{' || c == '(')) {
    if (levels_.back().members >= properties_.size()) return JsonStep::kBad;
    AddKey(properties_[levels_.back().members], out);
    state_ = State::kValue;
    return BeginValue(c, out);
  }
  is_key_ = opens;
  if (in_arguments()) key_.clear();
  if (opens) return BeginValue(c, out);
  text_ = c;
  state_ = State::kKey;
  return JsonStep::kMore;
}

JsonStep LiteralReader::StepKey(char c, std::string* out) {
  const bool argument = python() && in_arguments();
  if (c == (argument ? '=' : ':')) {
    AddKey(Trim(text_), out);
    state_ = State::kValue;
    return JsonStep::kMore;
  }
  const bool quoted = (c == '"' || c == '\'') && IsPrefix(text_);
  if (argument && (c == ',' || c == ')' || quoted)) {
    // It is a value without a name.
    if (levels_.back().members >= properties_.size()) return JsonStep::kBad;
    AddKey(properties_[levels_.back().members], out);
    state_ = State::kWord;
    return StepWord(c, out);
  }
  text_ += c;
  return c == ',' || c == levels_.back().close ? JsonStep::kBad : JsonStep::kMore;
}

// ---- Values ----

JsonStep LiteralReader::BeginValue(char c, std::string* out) {
  text_.clear();
  depth_ = 0;
  if (c == '[' || c == '{' || (c == '(' && python())) {
    return Push(c, out) ? JsonStep::kMore : JsonStep::kBad;
  }
  if (is_key_) Separate(out);
  if (c == '"' || c == '\'') {
    *out += '"';
    raw_ = false;
    BeginString(c);
    return JsonStep::kMore;
  }
  if (!python() && c == '<') {
    text_ = c;
    state_ = State::kQuote;
    return JsonStep::kMore;
  }
  state_ = State::kWord;
  return StepWord(c, out);
}

JsonStep LiteralReader::StepQuote(char c, std::string* out) {
  text_ += c;
  if (text_ == LiteralQuote(form_)) {
    *out += '"';
    BeginString('<');
    state_ = State::kString;
    text_.clear();
    return JsonStep::kMore;
  }
  if (LiteralQuote(form_).starts_with(text_)) return JsonStep::kMore;
  if (is_key_) return JsonStep::kBad;
  text_.pop_back();
  state_ = State::kWord;
  return StepWord(c, out);
}

JsonStep LiteralReader::StepWord(char c, std::string* out) {
  if (depth_ == 0 && (c == ',' || c == levels_.back().close)) {
    EndWord(out);
    return StepNext(c, out);
  }
  if (python() && !text_.empty() && (c == '"' || c == '\'') && IsPrefix(text_)) {
    raw_ = text_.find_first_of("rR") != text_.npos;
    *out += '"';
    BeginString(c);
    return JsonStep::kMore;
  }
  if (python()) {
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if (depth_ > 0 && (c == ')' || c == ']' || c == '}')) --depth_;
  }
  text_ += c;
  return JsonStep::kMore;
}

void LiteralReader::EndWord(std::string* out) {
  *out += WordJson(Trim(text_));
  text_.clear();
  state_ = State::kNext;
}

std::string LiteralReader::WordJson(std::string_view word) const {
  if (word.empty() || word == "None" || word == "null") return "null";
  const ArgumentType type = in_arguments() && parameters_.is_object()
                                ? TypeOfArgument(parameters_, key_)
                                : ArgumentType();
  const bool text_alone = (type.types & ~ArgumentType::kNull) == ArgumentType::kString;
  if (text_alone) return Quoted(word);
  if (word == "True") return "true";
  if (word == "False") return "false";
  if (IsJson(word)) return std::string(word);
  std::string number = NumberJson(word);
  return number.empty() ? Quoted(word) : number;
}

JsonStep LiteralReader::StepNext(char c, std::string* out) {
  if (IsSpace(c)) return JsonStep::kMore;
  if (unquoted_ && python() && (c == '"' || c == '\'')) {
    raw_ = false;
    BeginString(c);  // Strings behind each other are one.
    return JsonStep::kMore;
  }
  if (std::exchange(unquoted_, false)) *out += '"';
  if (c != ',') return Close(c, out);
  state_ = State::kItem;
  return JsonStep::kMore;
}

// ---- Strings ----

void LiteralReader::BeginString(char quote) {
  quote_ = quote;
  triple_ = escape_ = unquoted_ = false;
  digits_ = 0;
  quotes_ = python() ? 1 : 0;
  state_ = python() ? State::kQuotes : State::kString;
}

// Two quotation marks are an empty string, three begin a long one.
JsonStep LiteralReader::StepQuotes(char c, std::string* out) {
  if (c == quote_ && ++quotes_ < 3) return JsonStep::kMore;
  const bool empty = quotes_ == 2;
  triple_ = quotes_ == 3;
  quotes_ = 0;
  if (empty) {
    EndString(out);
    return Step(c, out);
  }
  state_ = State::kString;
  return triple_ ? JsonStep::kMore : Step(c, out);
}

void LiteralReader::EndString(std::string* out) {
  AddText("", out);
  if (is_key_) {
    *out += '"';
    is_key_ = false;
    state_ = State::kColon;
    return;
  }
  unquoted_ = true;
  state_ = State::kNext;
}

// Adds text to the string. Half a surrogate pair before it is no character.
void LiteralReader::AddText(std::string_view text, std::string* out) {
  if (std::exchange(lead_, 0) != 0) *out += "\\ufffd";
  AppendEscaped(text, out);
}

void LiteralReader::AddCode(uint32_t code, std::string* out) {
  const bool trail = code >= 0xdc00 && code < 0xe000;
  if (trail && lead_ != 0) {
    *out += Hex4(std::exchange(lead_, 0)) + Hex4(code);
    return;
  }
  AddText("", out);
  if (code >= 0xd800 && code < 0xdc00) {
    lead_ = code;
  } else if (trail || code > 0x10ffff) {
    *out += "\\ufffd";
  } else if (code > 0xffff) {
    *out += Hex4(0xd800 + ((code - 0x10000) >> 10)) + Hex4(0xdc00 + (code & 0x3ff));
  } else {
    *out += Hex4(code);
  }
}

void LiteralReader::StepString(char c, std::string* out) {
  if (digits_ > 0) return StepDigits(c, out);
  if (std::exchange(escape_, false)) return StepEscape(c, out);
  if (c == quote_) {
    if (!triple_ || ++quotes_ == 3) return EndString(out);
    return;
  }
  if (quotes_ > 0)
    AddText(std::string(static_cast<size_t>(std::exchange(quotes_, 0)), quote_), out);
  if (c == '\\') {
    escape_ = true;
  } else {
    AddText(std::string_view(&c, 1), out);
  }
}

void LiteralReader::StepEscape(char c, std::string* out) {
  constexpr std::string_view kNames = "ntrbfva\\'\"";
  constexpr std::string_view kMeant = "\n\t\r\b\f\v\a\\'\"";
  if (raw_) return AddText(StrCat("\\", std::string_view(&c, 1)), out);
  if (c == '\n') return;  // The line goes on.
  if (const size_t at = kNames.find(c); at != kNames.npos)
    return AddText(kMeant.substr(at, 1), out);
  const bool octal = c >= '0' && c <= '7';
  if (octal || c == 'x' || c == 'u' || c == 'U') {
    base_ = octal ? 8 : 16;
    digits_ = octal ? 2 : c == 'x' ? 2 : c == 'u' ? 4 : 8;
    code_ = octal ? static_cast<uint32_t>(c - '0') : 0;
    return;
  }
  // Python leaves an escape that it does not know as it stands.
  AddText(StrCat("\\", std::string_view(&c, 1)), out);
}

void LiteralReader::StepDigits(char c, std::string* out) {
  const int digit = HexDigit(c);
  if (digit < base_) {
    code_ = code_ * static_cast<uint32_t>(base_) + static_cast<uint32_t>(digit);
    if (--digits_ == 0) AddCode(code_, out);
    return;
  }
  // An octal number may be shorter; what else lacks digits is what they say.
  digits_ = 0;
  AddCode(code_, out);
  StepString(c, out);
}

void LiteralReader::StepGemmaString(char c, std::string* out) {
  text_ += c;
  while (!text_.empty() && !LiteralQuote(form_).starts_with(text_)) {
    AddText(std::string_view(text_).substr(0, 1), out);
    text_.erase(0, 1);
  }
  if (text_ != LiteralQuote(form_)) return;
  text_.clear();
  EndString(out);
}

void LiteralReader::Finish(AnswerEnd end, std::string* out) {
  if (levels_.empty()) return;
  if (std::exchange(unquoted_, false)) *out += '"';
  if (end == AnswerEnd::kCut) {
    if (state_ == State::kWord && IsJson(Trim(text_))) *out += Trim(text_);
    return;
  }
  switch (state_) {
    case State::kQuotes:
    case State::kString:
      if (!python()) AddText(text_, out);
      *out += is_key_ ? "\": null" : "\"";
      break;
    case State::kColon:
      *out += ": null";
      break;
    case State::kQuote:
    case State::kWord:
    case State::kValue:
      if (is_key_) text_.clear();
      *out += is_key_ ? "\"\": null" : WordJson(Trim(text_));
      break;
    default:
      break;
  }
  for (; !levels_.empty(); levels_.pop_back()) *out += levels_.back().keyed ? '}' : ']';
}

// ---- Writing ----

std::string LiteralText(ArgumentForm form, const OrderedJson& value) {
  const bool gemma = form != ArgumentForm::kPython;
  const std::string_view comma = gemma ? "," : ", ";
  std::string text;
  if (value.is_object()) {
    if (gemma) return StrCat("{", ArgumentsText(form, value), "}");
    for (const auto& [key, member] : value.items()) {
      text += StrCat(text.empty() ? "" : comma, Quoted(key), ": ", LiteralText(form, member));
    }
    return StrCat("{", text, "}");
  }
  if (value.is_array()) {
    for (const OrderedJson& item : value) {
      text += StrCat(text.empty() ? "" : comma, LiteralText(form, item));
    }
    return StrCat("[", text, "]");
  }
  if (value.is_string()) {
    const std::string& string = value.get_ref<const std::string&>();
    return gemma ? StrCat(LiteralQuote(form), string, LiteralQuote(form)) : Quoted(string);
  }
  if (!gemma && value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!gemma && value.is_null()) return "None";
  return DumpExact(value);
}

std::string ArgumentsText(ArgumentForm form, const OrderedJson& object) {
  const bool gemma = form != ArgumentForm::kPython;
  std::string text;
  for (const auto& [key, value] : object.items()) {
    text += StrCat(text.empty() ? ""
                   : gemma      ? ","
                                : ", ",
                   key, gemma ? ":" : "=", LiteralText(form, value));
  }
  return text;
}

}  // namespace millrace
