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
  // A part of a sequence. A look-ahead concerns all that follows it, so that a group with one in it
  // stays a tree until what follows the group is known.
  struct Piece {
    enum class Kind { kTerm, kLook, kGroup };
    Kind kind = Kind::kTerm;
    Regular term = kEmptyText;  // of a look-ahead: what the remaining text is
    bool negative = false;
    bool optional = false;
    std::vector<std::vector<Piece>> branches;
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
    at_start_ = from_start;
    std::vector<Piece> pieces;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (Take("$") || Take("\\Z") || Take("\\z")) {
        if (!AtEnd() && Peek() != '|' && Peek() != ')' && Peek() != '$') {
          return Bad("a $ that is not at its end, which is not supported");
        }
        to_end = true;
        continue;
      }
      MILLRACE_ASSIGN_OR_RETURN(Piece piece, NextPiece());
      pieces.push_back(std::move(piece));
    }
    const Regular result = Resolve(pieces, to_end ? kEmptyText : any);
    return from_start ? result : pool_.Concat(any, result);
  }

  // Returns the texts of `pieces` with `rest` after them.
  Regular Resolve(const std::vector<Piece>& pieces, Regular rest) {
    for (size_t i = pieces.size(); i-- > 0;) {
      const Piece& piece = pieces[i];
      switch (piece.kind) {
        case Piece::Kind::kTerm:
          rest = pool_.Concat(piece.term, rest);
          break;
        case Piece::Kind::kLook:
          if (piece.term == kEmptyText && !piece.negative) {
            rest = pool_.Nullable(rest) ? kEmptyText : kNothing;
          } else {
            rest = pool_.And({rest, piece.negative ? pool_.Not(piece.term) : piece.term});
          }
          break;
        case Piece::Kind::kGroup: {
          std::vector<Regular> ways;
          for (const auto& branch : piece.branches) ways.push_back(Resolve(branch, rest));
          if (piece.optional) ways.push_back(rest);
          rest = pool_.Alt(ways);
          break;
        }
      }
    }
    return rest;
  }

  absl::StatusOr<Piece> NextPiece() {
    if (text_.substr(at_, 3) != "(?=" && text_.substr(at_, 3) != "(?!") {
      absl::StatusOr<Piece> item = Item();
      at_start_ = false;
      return item;
    }
    Piece look{.kind = Piece::Kind::kLook, .negative = text_[at_ + 2] == '!'};
    at_ += 3;
    MILLRACE_RETURN_IF_ERROR(Enter());
    MILLRACE_ASSIGN_OR_RETURN(look.term, LookBranches());
    return look;
  }

  // The inside of a look-ahead: what the remaining text begins with.
  absl::StatusOr<Regular> LookBranches() {
    std::vector<Regular> branches;
    do {
      MILLRACE_ASSIGN_OR_RETURN(const std::vector<Piece> body, Sequence());
      branches.push_back(Resolve(body, AnyText(pool_, form_)));
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

  // The parts of a group's branch, or of a look-ahead's, which may end with a $. Where it stands at
  // the text's start, it may begin with a ^.
  absl::StatusOr<std::vector<Piece>> Sequence() {
    const bool at_start = at_start_;
    std::vector<Piece> pieces;
    // The empty group keeps what the ^ is in from being repeated.
    while (at_start && Take("^")) pieces.push_back({.kind = Piece::Kind::kGroup, .branches = {{}}});
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (Peek() == '$' && (Peek(1) == ')' || Peek(1) == '|')) {
        ++at_;
        pieces.push_back({.kind = Piece::Kind::kLook});  // nothing remains
        continue;
      }
      MILLRACE_ASSIGN_OR_RETURN(Piece piece, NextPiece());
      pieces.push_back(std::move(piece));
    }
    at_start_ = at_start;
    return pieces;
  }

  absl::StatusOr<Piece> Item() {
    MILLRACE_ASSIGN_OR_RETURN(Piece piece, Atom());
    MILLRACE_ASSIGN_OR_RETURN(const bool quantified, Quantify(piece));
    if (!quantified) return piece;
    MILLRACE_ASSIGN_OR_RETURN(const bool again, Quantify(piece));
    if (again) return Bad("a quantifier behind another one; allowed: a group between them");
    return piece;
  }

  absl::StatusOr<bool> Quantify(Piece& piece) {
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
    if (piece.kind == Piece::Kind::kTerm) {
      piece.term = pool_.Repeat(piece.term, min, max);
      return true;
    }
    if (max != 1)
      return Bad("a look-ahead inside of a repetition, or an anchor, which is not supported");
    piece.optional = piece.optional || min == 0;
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

  absl::StatusOr<Piece> Atom() {
    if (Peek() == '(') return Group();
    MILLRACE_ASSIGN_OR_RETURN(const Regular term, CharacterTerm());
    return Piece{.term = term};
  }

  absl::StatusOr<Regular> CharacterTerm() {
    switch (Peek()) {
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

  absl::StatusOr<Piece> Group() {
    ++at_;
    if (Take("?")) {
      if (Take("P<") || (Peek() == '<' && Peek(1) != '=' && Peek(1) != '!' && Take("<"))) {
        const size_t end = text_.find('>', at_);
        if (end == text_.npos) return Bad("a group name without its >");
        at_ = end + 1;
      } else if (!Take(":")) {
        return Bad("a look-behind or a flag, which is not supported");
      }
    }
    MILLRACE_RETURN_IF_ERROR(Enter());
    Piece group{.kind = Piece::Kind::kGroup};
    bool looks = false;
    do {
      MILLRACE_ASSIGN_OR_RETURN(std::vector<Piece> branch, Sequence());
      for (const Piece& piece : branch) looks = looks || piece.kind != Piece::Kind::kTerm;
      group.branches.push_back(std::move(branch));
    } while (Take("|"));
    MILLRACE_RETURN_IF_ERROR(Leave());
    if (looks) return group;
    return Piece{.term = Resolve({group}, kEmptyText)};
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
  bool at_start_ = false;  // what comes next stands at the text's start for sure
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
