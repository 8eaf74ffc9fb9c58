#include "text/tools/json_mender.h"

#include <utility>

#include "text/tools/xml_value.h"

namespace millrace {
namespace {

bool IsWordByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

// Passes on text that is JSON here.
void JsonMender::Feed(std::string_view text, std::string* out) {
  for (const char c : text) broken_ = !json_.Step(c) || broken_;
  *out += text;
}

void JsonMender::Step(char c, std::string* out) {
  if (broken_) {
    *out += c;
    return;
  }
  if (json_.in_string()) return StepString(c, out);
  if (!word_.empty()) {
    if (IsWordByte(c)) {
      word_ += c;
      return;
    }
    EndWord(out);
    return Step(c, out);
  }
  const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
  if (!comma_.empty()) {
    if (space) {
      comma_ += c;
      return;
    }
    const std::string comma = std::exchange(comma_, std::string());
    Feed(c == '}' || c == ']' ? std::string_view(comma).substr(1) : comma, out);
  } else if (json_.wants_comma() && c == ',') {
    comma_ = c;
    return;
  }
  if (c == '"' || c == '\'') {
    quote_ = c;
    return Feed("\"", out);
  }
  const bool constant = json_.wants_value() && (c == 'T' || c == 'F' || c == 'N');
  if (constant || (json_.wants_key() && IsWordByte(c))) {
    word_ = c;
    return;
  }
  Feed(std::string_view(&c, 1), out);
}

void JsonMender::StepString(char c, std::string* out) {
  if (quote_ == '\'') {
    if (std::exchange(escape_, false)) {
      if (c == '\'') return Feed("'", out);
      Feed("\\", out);
    } else if (c == '\\') {
      escape_ = true;
      return;
    } else if (c == '\'') {
      return Feed("\"", out);
    } else if (c == '"') {
      return Feed("\\\"", out);
    }
  }
  if (json_.Step(c)) {
    *out += c;
    return;
  }
  if (json_.in_escape()) return Feed(std::string("\\") + c, out);  // it is a backslash
  std::string escaped;
  AppendEscaped(std::string_view(&c, 1), &escaped);
  Feed(escaped, out);
}

void JsonMender::EndWord(std::string* out) {
  const std::string word = std::exchange(word_, std::string());
  if (json_.wants_key()) return Feed(Quoted(word), out);
  if (word == "True") return Feed("true", out);
  if (word == "False") return Feed("false", out);
  Feed(word == "None" ? "null" : word, out);
}

void JsonMender::Finish(AnswerEnd end, std::string* out) {
  if (end == AnswerEnd::kCut || broken_ || !json_.begun()) return;
  if (!word_.empty()) EndWord(out);
  if (!broken_ && !json_.complete()) *out += json_.Completion();
}

}  // namespace millrace
