#include "text/grammar/regex_parser.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr uint32_t kLast = 0x10ffff;
constexpr uint32_t kMostRepeats = 100000;

const CodeSet kDigits = {{'0', '9'}};
const CodeSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodeSet kSpace = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                        {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodeSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Parser {
 public:
  Parser(RegularPool& pool, std::string_view text, TextForm form, int depth)
      : pool_(pool), text_(text), form_(form), depth_(depth) {}

  absl::StatusOr<Regular> Parse(RegexMode mode) {
    MILLRACE_ASSIGN_OR_RETURN(const Regular result, Branches(mode));
    if (!AtEnd()) return Bad("an unmatched )");
    return result;
  }

 private:
  struct Look {
    size_t at;  // before this item
    Regular what;
    bool negative;
  };

  bool AtEnd() const { return at_ == text_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  absl::Status Bad(std::string_view what) const {
    return absl::InvalidArgumentError(StrCat("the regular expression \"", Printable(text_, 80),
                                             "\" has ", what, " at byte ", at_));
  }

  // Branches at the outermost level, where anchors and look-around may stand; up to a ) or the end.
  absl::StatusOr<Regular> Branches(RegexMode mode) {
    std::vector<Regular> branches;
    do {
      MILLRACE_ASSIGN_OR_RETURN(const Regular branch, Branch(mode));
      branches.push_back(branch);
    } while (Take("|"));
    return pool_.Alt(branches);
  }

  absl::StatusOr<Regular> Branch(RegexMode mode) {
    const Regular any = AnyText(pool_, form_);
    bool from_start = mode == RegexMode::kWhole, to_end = mode == RegexMode::kWhole;
    while (Take("^") || Take("\\A")) from_start = true;
    std::vector<Regular> items;
    std::vector<Look> looks;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (Take("$") || Take("\\Z") || Take("\\z")) {
        if (!AtEnd() && Peek() != '|' && Peek() != ')' && Peek() != '$') {
          return Bad("a $ that is not at its end, which is not supported");
        }
        to_end = true;
        continue;
      }
      if (text_.substr(at_, 3) == "(?=" || text_.substr(at_, 3) == "(?!") {
        const bool negative = text_[at_ + 2] == '!';
        at_ += 3;
        MILLRACE_RETURN_IF_ERROR(Enter());
        MILLRACE_ASSIGN_OR_RETURN(const Regular what, LookBranches());
        looks.push_back({items.size(), what, negative});
        continue;
      }
      MILLRACE_ASSIGN_OR_RETURN(const Regular item, Item());
      items.push_back(item);
    }
    // From the end, as a look-ahead concerns all that follows it.
    Regular result = to_end ? kEmptyText : any;
    for (size_t i = items.size() + 1; i-- > 0;) {
      if (i < items.size()) result = pool_.Concat(items[i], result);
      for (const Look& look : looks) {
        if (look.at != i) continue;
        result = pool_.And({result, look.negative ? pool_.Not(look.what) : look.what});
      }
    }
    return from_start ? result : pool_.Concat(any, result);
  }

  // The inside of a look-ahead: what the remaining text begins with.
  absl::StatusOr<Regular> LookBranches() {
    std::vector<Regular> branches;
    do {
      MILLRACE_ASSIGN_OR_RETURN(const Regular body, Sequence());
      const bool to_end = Take("$");
      branches.push_back(to_end ? body : pool_.Concat(body, AnyText(pool_, form_)));
    } while (Take("|"));
    MILLRACE_RETURN_IF_ERROR(Leave());
    return pool_.Alt(branches);
  }

  absl::Status Enter() {
    if (++level_ > depth_) {
      return absl::InvalidArgumentError(
          StrCat("a regular expression is nested more than ", depth_, " deep"));
    }
    return absl::OkStatus();
  }
  absl::Status Leave() {
    --level_;
    return Take(")") ? absl::OkStatus() : Bad("a group without its )");
  }

  absl::StatusOr<Regular> Alternatives() {
    std::vector<Regular> branches;
    do {
      MILLRACE_ASSIGN_OR_RETURN(const Regular branch, Sequence());
      branches.push_back(branch);
    } while (Take("|"));
    return pool_.Alt(branches);
  }

  absl::StatusOr<Regular> Sequence() {
    std::vector<Regular> items;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (Peek() == '$' && (Peek(1) == ')' || Peek(1) == '|') && level_ == 1) break;
      MILLRACE_ASSIGN_OR_RETURN(const Regular item, Item());
      items.push_back(item);
    }
    return pool_.Concat(items);
  }

  absl::StatusOr<Regular> Item() {
    MILLRACE_ASSIGN_OR_RETURN(Regular atom, Atom());
    for (bool again = true; again;) {
      MILLRACE_ASSIGN_OR_RETURN(again, Quantify(atom));
    }
    return atom;
  }

  absl::StatusOr<bool> Quantify(Regular& atom) {
    uint32_t min = 0, max = kUnbounded;
    if (Take("?")) {
      max = 1;
    } else if (Take("+")) {
      min = 1;
    } else if (!Take("*")) {
      if (Peek() != '{') return false;
      if (!TakeCounts(&min, &max)) return false;
      if (max < min) return Bad("a repetition whose most is below its least");
      if (min > kMostRepeats || (max != kUnbounded && max > kMostRepeats)) {
        return Bad(StrCat("a repetition of more than ", kMostRepeats));
      }
    }
    // Lazy or not, the language is the same. Possessive ones are another matter.
    if (!Take("?") && Peek() == '+') return Bad("a possessive quantifier, which is not supported");
    atom = pool_.Repeat(atom, min, max);
    return true;
  }

  // {2}, {2,}, {2,5}, {,5}; anything else is text.
  bool TakeCounts(uint32_t* min, uint32_t* max) {
    size_t at = at_ + 1;
    const auto number = [&]() -> std::optional<uint32_t> {
      const size_t begin = at;
      uint64_t value = 0;
      while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') {
        value = std::min<uint64_t>(value * 10 + text_[at++] - '0', kMostRepeats + 1);
      }
      return at == begin ? std::nullopt : std::optional(static_cast<uint32_t>(value));
    };
    const std::optional<uint32_t> least = number();
    std::optional<uint32_t> most = least;
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      most = number();
      if (!least && !most) return false;
      if (!most) most = kUnbounded;
    } else if (!least) {
      return false;
    }
    if (at >= text_.size() || text_[at] != '}') return false;
    at_ = at + 1;
    *min = least.value_or(0);
    *max = *most;
    return true;
  }

  absl::StatusOr<Regular> Atom() {
    switch (Peek()) {
      case '(':
        return Group();
      case '[': {
        MILLRACE_ASSIGN_OR_RETURN(const CodeSet set, Bracket());
        return EncodeSet(pool_, set, form_);
      }
      case '.':
        ++at_;
        return EncodeSet(pool_, Complement(kLineEnds), form_);
      case '^':
      case '$':
        return Bad("an anchor inside of it, which is not supported");
      case '*':
      case '+':
      case '?':
        return Bad("a quantifier with nothing before it");
      case '\\': {
        MILLRACE_ASSIGN_OR_RETURN(const CodeSet set, EscapedSet(false));
        return EncodeSet(pool_, set, form_);
      }
      default: {
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t code, Character());
        return EncodeSet(pool_, {{code, code}}, form_);
      }
    }
  }

  absl::StatusOr<Regular> Group() {
    ++at_;
    if (Take("?")) {
      if (Take("P<") || (Peek() == '<' && Peek(1) != '=' && Peek(1) != '!' && Take("<"))) {
        const size_t end = text_.find('>', at_);
        if (end == text_.npos) return Bad("a group name without its >");
        at_ = end + 1;
      } else if (!Take(":")) {
        return Bad("a look-around inside of it or a flag, which is not supported");
      }
    }
    MILLRACE_RETURN_IF_ERROR(Enter());
    const int level = std::exchange(level_, level_ + 1);  // a $ is no look-ahead's here
    MILLRACE_ASSIGN_OR_RETURN(const Regular inside, Alternatives());
    level_ = level;
    MILLRACE_RETURN_IF_ERROR(Leave());
    return inside;
  }

  absl::StatusOr<uint32_t> Character() {
    const auto lead = static_cast<uint8_t>(text_[at_]);
    const int size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (at_ + size > text_.size() || (lead >= 0x80 && lead < 0xc2)) {
      return Bad("bytes that are not UTF-8");
    }
    uint32_t code = size == 1 ? lead : lead & (0x7f >> size);
    for (int i = 1; i < size; ++i) {
      code = code << 6 | (static_cast<uint8_t>(text_[at_ + i]) & 63);
    }
    at_ += size;
    return code;
  }

  absl::StatusOr<uint32_t> Hex(int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = Peek();
      const int value = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (value < 0) return Bad("an escape that is not of hexadecimal digits");
      code = code * 16 + value;
    }
    return code;
  }

  // Reads an escape: a class, or a character as a set of one.
  absl::StatusOr<CodeSet> EscapedSet(bool in_bracket) {
    ++at_;
    if (AtEnd()) return Bad("a \\ at its end");
    const char c = text_[at_++];
    const auto one = [](uint32_t code) { return CodeSet{{code, code}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return Complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return Complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return Complement(kSpace);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'a':
        return Bad("\\a, which is not supported");
      case 'b':
        if (in_bracket) return one('\b');
        return Bad("the word boundary \\b, which is not supported");
      case 'c': {
        const char letter = Peek();
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))) {
          return Bad("\\c without a letter");
        }
        ++at_;
        return one(letter & 31);
      }
      case 'x': {
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t code, Hex(2));
        return one(code);
      }
      case 'u':
        return UnicodeEscape();
      default:
        break;
    }
    if ((c >= '1' && c <= '9') || c == 'k') return Bad("a back reference, which is not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      return Bad(StrCat("\\", std::string(1, c), ", which is not supported"));
    }
    --at_;
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t code, Character());
    return one(code);
  }

  absl::StatusOr<CodeSet> UnicodeEscape() {
    uint32_t code = 0;
    if (Take("{")) {
      const size_t end = text_.find('}', at_);
      if (end == text_.npos || end == at_ || end - at_ > 6) return Bad("a malformed \\u{}");
      MILLRACE_ASSIGN_OR_RETURN(code, Hex(static_cast<int>(end - at_)));
      ++at_;
    } else {
      MILLRACE_ASSIGN_OR_RETURN(code, Hex(4));
      if (code >= 0xd800 && code < 0xdc00 && Take("\\u")) {
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t low, Hex(4));
        if (low < 0xdc00 || low > 0xdfff) return Bad("half a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      }
    }
    if (code > kLast) return Bad("a code point beyond Unicode");
    return CodeSet{{code, code}};
  }

  absl::StatusOr<CodeSet> Bracket() {
    ++at_;
    const bool negative = Take("^");
    CodeSet set;
    for (bool first = true; first || Peek() != ']'; first = false) {
      if (AtEnd()) return Bad("a [ without its ]");
      if (first && Peek() == ']' && !(text_.find(']', at_ + 1) != text_.npos)) break;
      if (first && Peek() == ']') break;  // ECMA-262: [] is no character, [^] any
      if (Peek() == '[' && Peek(1) == ':') return Bad("a POSIX class, which is not supported");
      MILLRACE_ASSIGN_OR_RETURN(CodeSet low, BracketAtom());
      if (Peek() == '-' && Peek(1) != ']' && Peek(1) != '\0') {
        ++at_;
        MILLRACE_ASSIGN_OR_RETURN(const CodeSet high, BracketAtom());
        const bool single = low.size() == 1 && low[0].first == low[0].second && high.size() == 1 &&
                            high[0].first == high[0].second;
        if (!single) return Bad("a range whose end is a class");
        if (high[0].first < low[0].first) return Bad("a range whose end is below its begin");
        low[0].second = high[0].second;
      }
      set.insert(set.end(), low.begin(), low.end());
    }
    ++at_;
    set = Union(std::move(set), {});
    return negative ? Complement(set) : set;
  }

  absl::StatusOr<CodeSet> BracketAtom() {
    if (AtEnd()) return Bad("a [ without its ]");
    if (Peek() == '\\') return EscapedSet(true);
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t code, Character());
    return CodeSet{{code, code}};
  }

  RegularPool& pool_;
  const std::string_view text_;
  const TextForm form_;
  const int depth_;
  size_t at_ = 0;
  int level_ = 0;
};

}  // namespace

absl::StatusOr<Regular> ParseRegex(RegularPool& pool, std::string_view regex, TextForm form,
                                   RegexMode mode, int depth) {
  constexpr size_t kMostBytes = 64 << 10;
  if (regex.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        StrCat("a regular expression has ", regex.size(), " bytes; allowed: at most ", kMostBytes));
  }
  return Parser(pool, regex, form, depth).Parse(mode);
}

}  // namespace millrace
