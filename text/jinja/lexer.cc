// The rules are those of Jinja's lexer:
// https://jinja.palletsprojects.com/en/stable/templates/#whitespace-control
#include "text/jinja/lexer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// The value of a digit of any base up to 16, or 16 for another character.
int DigitOf(char c) {
  if (IsDigit(c)) return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 16;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source)
      : source_(absl::StrReplaceAll(AbslView(source), {{"\r\n", "\n"}, {"\r", "\n"}})) {
    if (source_.ends_with("\n")) source_.pop_back();
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) MILLRACE_RETURN_IF_ERROR(LexTextAndTag());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(source_).substr(at_); }
  bool Sees(std::string_view text) const { return Rest().starts_with(text); }

  // The line of the present position, which only moves forward.
  int Line() {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(line_at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_), '\n'));
    line_at_ = at_;
    return line_;
  }

  absl::Status Error(std::string_view message) {
    return absl::InvalidArgumentError(StrCat("line ", Line(), ": ", message));
  }

  void Add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), Line()});
  }

  void SkipSpace() { at_ = source_.size() - StripSpace(Rest(), Side::kLeft).size(); }

  // Passes "+", "-" or nothing; 0 for nothing.
  char TakeSign() {
    return at_ < source_.size() && (source_[at_] == '+' || source_[at_] == '-') ? source_[at_++]
                                                                                : '\0';
  }

  // Passes the end of a tag, with what its sign and trim_blocks drop after it. False when it is not
  // here.
  bool TakeEnd(std::string_view end) {
    const char sign = Rest().empty() ? '\0' : Rest().front();
    const bool is_print = end == "}}";
    const size_t skip = sign == '-' || (sign == '+' && !is_print) ? 1 : 0;
    if (!Rest().substr(skip).starts_with(end)) return false;
    at_ += skip + end.size();
    if (sign == '-') {
      SkipSpace();
    } else if (skip == 0 && !is_print && Sees("\n")) {
      ++at_;
    }
    return true;
  }

  // Adds the text before a tag; the tag's sign and lstrip_blocks say what is cut from its end.
  void AddText(std::string_view text, char sign, bool is_print) {
    if (sign == '-') {
      text = StripSpace(text, Side::kRight);
    } else if (sign != '+' && !is_print) {
      const size_t begin = static_cast<size_t>(text.data() - source_.data());
      const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0.
      const bool at_line_start = line > 0 || begin == 0 || source_[begin - 1] == '\n';
      if (at_line_start && StripSpace(text.substr(line), Side::kLeft).empty()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) Add(TokenKind::kText, text);
  }

  absl::Status LexTextAndTag() {
    const size_t begin = at_;
    const size_t open = FindTag();
    if (open == std::string::npos) {
      Add(TokenKind::kText, Rest());
      at_ = source_.size();
      return absl::OkStatus();
    }
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    AddText(std::string_view(source_).substr(begin, open - begin), sign, kind == '{');
    at_ = open + 2;
    TakeSign();
    if (kind == '#') return SkipComment();
    if (kind == '%' && TakeRawBegin()) return LexRaw();
    Add(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kStatementBegin, "");
    return LexTag(kind == '{' ? "}}" : "%}");
  }

  // Returns where the next "{{", "{%" or "{#" begins.
  size_t FindTag() const {
    for (size_t open = source_.find('{', at_); open != std::string::npos;
         open = source_.find('{', open + 1)) {
      if (open + 1 < source_.size() &&
          std::string_view("{%#").find(source_[open + 1]) != std::string_view::npos)
        return open;
    }
    return std::string::npos;
  }

  absl::Status SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return Error("the comment has no end");
    // The sign of the end belongs to it, unless it is that of the begin ("{#-#}").
    const bool has_sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    at_ = has_sign ? end - 1 : end;
    TakeEnd("#}");
    return absl::OkStatus();
  }

  // "raw %}" after "{%".
  bool TakeRawBegin() {
    const size_t begin = at_;
    SkipSpace();
    if (Sees("raw")) {
      at_ += 3;
      SkipSpace();
      if (Sees("%}")) {
        at_ += 2;
        return true;
      }
      if (Sees("-%}")) return TakeEnd("%}");
    }
    at_ = begin;
    return false;
  }

  absl::Status LexRaw() {
    const size_t begin = at_;
    for (;;) {
      const size_t open = source_.find("{%", at_);
      if (open == std::string::npos) return Error("raw has no endraw");
      at_ = open + 2;
      const char sign = TakeSign();
      SkipSpace();
      if (!Sees("endraw")) {
        at_ = open + 2;
        continue;
      }
      at_ += 6;
      SkipSpace();
      if (!TakeEnd("%}")) continue;
      AddText(std::string_view(source_).substr(begin, open - begin), sign, false);
      return absl::OkStatus();
    }
  }

  absl::Status LexTag(std::string_view end) {
    std::string brackets;  // Closing ones that are awaited.
    for (;;) {
      SkipSpace();
      if (at_ >= source_.size()) return Error(StrCat("the template ends before a ", end));
      if (brackets.empty() && TakeEnd(end)) {
        Add(end == "}}" ? TokenKind::kPrintEnd : TokenKind::kStatementEnd, "");
        return absl::OkStatus();
      }
      const char c = source_[at_];
      if (IsDigit(c)) {
        LexNumber();
      } else if (IsNameStart(c)) {
        const auto not_name = [](char x) { return !IsNameStart(x) && !IsDigit(x); };
        const std::string_view rest = Rest();
        const auto stop = std::find_if(rest.begin(), rest.end(), not_name);
        Add(TokenKind::kName, rest.substr(0, static_cast<size_t>(stop - rest.begin())));
        at_ += tokens_.back().text.size();
      } else if (c == '\'' || c == '"') {
        MILLRACE_RETURN_IF_ERROR(LexString(c));
      } else {
        MILLRACE_RETURN_IF_ERROR(LexOperator(brackets));
      }
    }
  }

  absl::Status LexOperator(std::string& brackets) {
    const auto is_here = [this](std::string_view text) { return Sees(text); };
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators), is_here);
    if (found == std::end(kOperators)) {
      const size_t size = NextCodePoint(Rest()).size;
      return Error(StrCat("unexpected character ", Repr(Rest().substr(0, size))));
    }
    if (*found == "(" || *found == "[" || *found == "{") {
      brackets += *found == "(" ? ')' : *found == "[" ? ']' : '}';
    } else if (*found == ")" || *found == "]" || *found == "}") {
      if (brackets.empty() || brackets.back() != found->front()) {
        return Error(StrCat("unexpected '", *found, "'"));
      }
      brackets.pop_back();
    }
    Add(TokenKind::kOperator, *found);
    at_ += found->size();
    return absl::OkStatus();
  }

  // Returns the end of the digits of `base` from `at` on, with single underscores between them.
  size_t Digits(size_t at, int base) const {
    const auto is_digit = [&](size_t i) {
      return i < source_.size() && DigitOf(source_[i]) < base;
    };
    while (is_digit(at) || (at < source_.size() && source_[at] == '_' && is_digit(at + 1))) ++at;
    return at;
  }

  // Returns the end of a float at the present position, or this position where there is none.
  size_t FloatEnd() const {
    const auto sees = [this](size_t at, std::string_view any) {
      return at < source_.size() && any.find(source_[at]) != any.npos;
    };
    const auto digit_at = [this](size_t at) { return at < source_.size() && IsDigit(source_[at]); };
    size_t end = Digits(at_, 10);
    // After a dot a number is an index, which has no fraction.
    bool is_float = false;
    if (at_ > 0 && source_[at_ - 1] == '.') return at_;
    if (sees(end, ".") && digit_at(end + 1)) {
      end = Digits(end + 1, 10);
      is_float = true;
    }
    const size_t exponent = end + (sees(end + 1, "+-") ? 2 : 1);
    if (sees(end, "eE") && digit_at(exponent)) {
      end = Digits(exponent, 10);
      is_float = true;
    }
    return is_float ? end : at_;
  }

  // Returns the end of an integer at the present position. One that begins with 0 is 0, or has a
  // prefix: 0b, 0o or 0x.
  size_t IntegerEnd() const {
    if (source_[at_] != '0') return Digits(at_, 10);
    for (const auto& [prefix, base] : {std::pair('b', 2), {'o', 8}, {'x', 16}}) {
      if (at_ + 1 >= source_.size() || (source_[at_ + 1] | 0x20) != prefix) continue;
      const size_t end = Digits(at_ + 2, base);
      if (end > at_ + 2) return end;
    }
    return Digits(at_, 1);
  }

  void LexNumber() {
    size_t end = FloatEnd();
    const bool is_float = end > at_;
    if (!is_float) end = IntegerEnd();
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
    at_ = end;
  }

  absl::Status LexString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("a string has no end");
    const auto text = Unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    if (!text) return Error("a string has an invalid escape");
    Add(TokenKind::kString, *text);
    at_ = end + 1;
    return absl::OkStatus();
  }

  // Resolves Python's escapes; an unknown one stays as it is. Nothing when one is malformed.
  static std::optional<std::string> Unescape(std::string_view text);

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  size_t line_at_ = 0;
  std::vector<Token> tokens_;
};

// Passes up to `most` digits of `base` and returns the number; nothing when there are fewer than
// `least`.
std::optional<int32_t> TakeCode(std::string_view& text, size_t least, size_t most, int32_t base) {
  int32_t code = 0;
  size_t count = 0;
  for (; count < most && count < text.size(); ++count) {
    const int32_t digit = DigitOf(text[count]);
    if (digit >= base) break;
    if (code > 0x10FFFF) return std::nullopt;
    code = code * base + digit;
  }
  const bool is_scalar = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  if (count < least || !is_scalar) return std::nullopt;
  text.remove_prefix(count);
  return code;
}

std::optional<std::string> Lexer::Unescape(std::string_view text) {
  static constexpr std::string_view kLetters = "\\'\"abfnrtv";
  static constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  std::string result;
  while (!text.empty()) {
    const size_t backslash = std::min(text.find('\\'), text.size());
    result.append(text.substr(0, backslash));
    text.remove_prefix(backslash);
    if (text.empty()) break;
    const char letter = text[1];  // The lexer passed both characters together.
    const size_t known = kLetters.find(letter);
    const bool is_octal = letter >= '0' && letter <= '7';
    if (known != kLetters.npos) {
      result += kMeanings[known];
      text.remove_prefix(2);
    } else if (letter == '\n') {
      text.remove_prefix(2);
    } else if (is_octal || letter == 'x' || letter == 'u' || letter == 'U') {
      text.remove_prefix(is_octal ? 1 : 2);
      const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      const auto code = is_octal ? TakeCode(text, 1, 3, 8) : TakeCode(text, digits, digits, 16);
      if (!code) return std::nullopt;
      AppendCodePoint(*code, result);
    } else if (letter == 'N') {
      return std::nullopt;  // A character's name.
    } else {
      result += '\\';
      text.remove_prefix(1);
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace millrace::jinja
