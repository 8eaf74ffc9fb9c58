#include "text/tools/json_prefix.h"

namespace millrace {
namespace {

// Deeper values than this are taken for no JSON.
constexpr size_t kMaxDepth = 256;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool JsonPrefix::complete() const {
  return state_ == State::kDone || (open_.empty() && NumberMayEnd());
}

bool JsonPrefix::NumberMayEnd() const {
  return state_ == State::kZero || state_ == State::kDigits || state_ == State::kFraction ||
         state_ == State::kExponentDigits;
}

bool JsonPrefix::Begin(char c) {
  switch (c) {
    case '{':
    case '[':
      if (open_.size() == kMaxDepth) return false;
      open_ += c;
      state_ = c == '{' ? State::kFirstKey : State::kFirstValue;
      return true;
    case '"':
      key_ = false;
      state_ = State::kString;
      return true;
    case 't':
      word_ = "rue";
      break;
    case 'f':
      word_ = "alse";
      break;
    case 'n':
      word_ = "ull";
      break;
    case '-':
      state_ = State::kMinus;
      return true;
    default:
      if (!IsDigit(c)) return false;
      state_ = c == '0' ? State::kZero : State::kDigits;
      return true;
  }
  state_ = State::kWord;
  return true;
}

bool JsonPrefix::StepString(char c) {
  if (state_ == State::kHex) {
    const char lower = static_cast<char>(c | 0x20);
    if (!IsDigit(c) && (lower < 'a' || lower > 'f')) return false;
    if (--hex_ == 0) state_ = State::kString;
    return true;
  }
  if (state_ == State::kEscape) {
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    if (c == 'u') {
      hex_ = 4;
      state_ = State::kHex;
      return true;
    }
    if (kEscapes.find(c) == kEscapes.npos) return false;
    state_ = State::kString;
    return true;
  }
  if (static_cast<unsigned char>(c) < 0x20) return false;
  if (c == '\\') state_ = State::kEscape;
  if (c != '"') return true;
  if (key_) {
    state_ = State::kColon;
  } else {
    EndValue();
  }
  return true;
}

// Takes a byte that may be a part of a number. False: it is none.
bool JsonPrefix::StepNumber(char c) {
  const bool exponent = c == 'e' || c == 'E';
  switch (state_) {
    case State::kMinus:
      if (!IsDigit(c)) return false;
      state_ = c == '0' ? State::kZero : State::kDigits;
      return true;
    case State::kZero:
    case State::kDigits:
      if (IsDigit(c)) return state_ == State::kDigits;
      if (c != '.' && !exponent) return false;
      state_ = exponent ? State::kExponent : State::kPoint;
      return true;
    case State::kPoint:
    case State::kFraction:
      if (exponent && state_ == State::kFraction) {
        state_ = State::kExponent;
        return true;
      }
      if (!IsDigit(c)) return false;
      state_ = State::kFraction;
      return true;
    case State::kExponent:
      if (c == '+' || c == '-') {
        state_ = State::kExponentSign;
        return true;
      }
      [[fallthrough]];
    case State::kExponentSign:
    case State::kExponentDigits:
      if (!IsDigit(c)) return false;
      state_ = State::kExponentDigits;
      return true;
    default:
      return false;
  }
}

bool JsonPrefix::Step(char c) {
  switch (state_) {
    case State::kString:
    case State::kEscape:
    case State::kHex:
      return StepString(c);
    case State::kWord:
      if (c != *word_) return false;
      if (*++word_ == '\0') EndValue();
      return true;
    case State::kMinus:
    case State::kZero:
    case State::kDigits:
    case State::kPoint:
    case State::kFraction:
    case State::kExponent:
    case State::kExponentSign:
    case State::kExponentDigits:
      if (StepNumber(c)) return true;
      if (!NumberMayEnd() ||
          (!IsSpace(c) && (open_.empty() || (c != ',' && c != '}' && c != ']')))) {
        return false;
      }
      if (!IsSpace(c) && c != ',' && c != (open_.back() == '{' ? '}' : ']')) return false;
      EndValue();
      return Step(c);
    default:
      break;
  }
  if (IsSpace(c)) return true;
  const char closing = open_.empty() ? '\0' : open_.back() == '{' ? '}' : ']';
  const bool ends = c == closing && (state_ == State::kNext || state_ == State::kFirstKey ||
                                     state_ == State::kFirstValue);
  if (ends) {
    open_.pop_back();
    EndValue();
    return true;
  }
  switch (state_) {
    case State::kValue:
    case State::kFirstValue:
      return Begin(c);
    case State::kFirstKey:
    case State::kKey:
      if (c != '"') return false;
      key_ = true;
      state_ = State::kString;
      return true;
    case State::kColon:
      if (c != ':') return false;
      state_ = State::kValue;
      return true;
    case State::kNext:
      if (c != ',') return false;
      state_ = open_.back() == '{' ? State::kKey : State::kValue;
      return true;
    default:
      return false;
  }
}

std::string JsonPrefix::Completion() const {
  std::string text;
  switch (state_) {
    case State::kEscape:
      text = "\\\"";
      break;
    case State::kHex:
      text = std::string(hex_, '0') + "\"";
      break;
    case State::kString:
      text = "\"";
      break;
    case State::kWord:
      text = word_;
      break;
    case State::kMinus:
    case State::kPoint:
    case State::kExponent:
    case State::kExponentSign:
      text = "0";
      break;
    case State::kKey:
      text = "\"\": null";
      break;
    case State::kColon:
      text = ": null";
      break;
    case State::kValue:
      text = "null";
      break;
    default:
      break;
  }
  if (in_string() && key_) text += ": null";
  for (size_t i = open_.size(); i > 0; --i) text += open_[i - 1] == '{' ? '}' : ']';
  return text;
}

}  // namespace millrace
