#include "text/grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/regex_parser.h"

namespace millrace {
namespace {

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsName(char c, bool lark) {
  return IsNameStart(c) || (c >= '0' && c <= '9') || (c == '-' && !lark);
}
bool IsTerminal(std::string_view name) {
  return std::none_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

// Lark's common terminals.
constexpr std::pair<std::string_view, std::string_view> kCommon[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER",
     "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
};

class Parser {
 public:
  Parser(GrammarBuilder& builder, std::string_view text, TextForm form,
         std::optional<Regular> within)
      : builder_(builder), pool_(builder.regular()), text_(text), form_(form), within_(within) {
    lark_ = text.find("::=") == text.npos;
    assign_ = lark_ ? ":" : "::=";
  }

  absl::StatusOr<GrammarNode> Parse() {
    MILLRACE_RETURN_IF_ERROR(ReadIgnored());
    at_ = 0;
    for (Skip(); at_ < text_.size(); Skip()) {
      if (lark_ && Peek() == '%') {
        MILLRACE_RETURN_IF_ERROR(Directive());
      } else {
        MILLRACE_RETURN_IF_ERROR(ReadRule());
      }
    }
    const char* start = lark_ ? "start" : "root";
    const auto it = rules_.find(start);
    if (it == rules_.end() || !it->second.defined) {
      return absl::InvalidArgumentError(StrCat("there is no rule ", start, ", where it begins"));
    }
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined) {
        return absl::InvalidArgumentError(
            StrCat("the rule ", Printable(name, 64), " is used, but not defined"));
      }
    }
    const GrammarNode root = builder_.Rule(it->second.id);
    return ignore_ == kEmptyText ? root : builder_.Sequence({builder_.Term(ignore_), root});
  }

 private:
  struct Named {
    uint32_t id = 0;
    bool defined = false;
  };
  // One alternative: its items, and whether the rule at hand stands first.
  struct Items {
    std::vector<GrammarNode> nodes;
    bool begins_with_itself = false;
  };

  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  absl::Status Bad(std::string_view what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + std::min(at_, text_.size()), '\n');
    return absl::InvalidArgumentError(StrCat("the grammar has ", what, " in line ", line));
  }

  void Skip() {
    for (;;) {
      const char c = Peek();
      const bool comment = lark_ ? (c == '/' && Peek(1) == '/') || c == '#' : c == '#';
      if (comment) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (at_ < text_.size() && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
        ++at_;
      } else {
        return;
      }
    }
  }
  std::string_view Name() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsName(text_[at_], lark_)) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Whether a rule's head stands here: its name, Lark's priority, and the sign.
  bool AtHead() {
    const size_t begin = at_;
    if (lark_ && (Peek() == '?' || Peek() == '!')) ++at_;
    bool head = IsNameStart(Peek());
    if (head) {
      Name();
      if (lark_ && Peek() == '.') {
        ++at_;
        Name();
      }
      while (Peek() == ' ' || Peek() == '\t') ++at_;
      head = text_.substr(at_, assign_.size()) == assign_;
    }
    at_ = begin;
    return head;
  }

  Named& Rule(std::string_view name) {
    const auto it = rules_.find(name);
    if (it != rules_.end()) return it->second;
    return rules_.emplace(std::string(name), Named{builder_.AddRule(std::string(name))})
        .first->second;
  }

  // %ignore concerns all rules, so that it is read first.
  absl::Status ReadIgnored() {
    if (!lark_) return absl::OkStatus();
    std::vector<Regular> ignored;
    for (size_t at = text_.find("%ignore"); at != text_.npos; at = text_.find("%ignore", at_)) {
      at_ = at + 7;
      Skip();
      Regular term;
      if (IsNameStart(Peek())) {
        const std::string_view name = Name();
        const auto common = std::find_if(std::begin(kCommon), std::end(kCommon),
                                         [&](const auto& c) { return c.first == name; });
        if (common == std::end(kCommon)) {
          return Bad("an %ignore of a terminal that is not one of Lark's common ones");
        }
        MILLRACE_ASSIGN_OR_RETURN(term,
                                  ParseRegex(pool_, common->second, form_, RegexMode::kWhole, 16));
      } else {
        MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, LiteralOrRegex());
        const Regular* own = builder_.AsTerm(node);
        if (own == nullptr) return Bad("an %ignore of this kind, which is not supported");
        term = *own;
      }
      ignored.push_back(term);
    }
    if (!ignored.empty()) ignore_ = pool_.Repeat(pool_.Alt(ignored), 0);
    return absl::OkStatus();
  }

  absl::Status Directive() {
    if (Take("%ignore")) {
      at_ = std::min(text_.find('\n', at_), text_.size());
      return absl::OkStatus();
    }
    if (!Take("%import")) return Bad("a directive that is not supported");
    Skip();
    if (!Take("common.")) return Bad("an %import of something else than common");
    std::vector<std::string_view> names;
    if (Take("(")) {
      do {
        Skip();
        names.push_back(Name());
        Skip();
      } while (Take(","));
      if (!Take(")")) return Bad("an %import without its )");
    } else {
      names.push_back(Name());
    }
    for (const std::string_view name : names) {
      const auto common = std::find_if(std::begin(kCommon), std::end(kCommon),
                                       [&](const auto& c) { return c.first == name; });
      if (common == std::end(kCommon)) {
        return Bad(StrCat("an %import of ", Printable(name, 32), ", which is not supported"));
      }
      MILLRACE_ASSIGN_OR_RETURN(const Regular term,
                                ParseRegex(pool_, common->second, form_, RegexMode::kWhole, 16));
      std::string_view as = name;
      Skip();
      if (Take("->")) {
        Skip();
        as = Name();
      }
      Named& rule = Rule(as);
      builder_.SetRule(rule.id, builder_.Term(term));
      rule.defined = true;
    }
    return absl::OkStatus();
  }

  absl::Status ReadRule() {
    MILLRACE_RETURN_IF_ERROR(builder_.Check());
    if (!AtHead()) return Bad(StrCat("something that is no rule (name ", assign_, " …)"));
    if (lark_ && (Peek() == '?' || Peek() == '!')) ++at_;
    const std::string_view name = Name();
    if (lark_ && Take(".")) Name();
    Skip();
    Take(assign_);
    if (Rule(name).defined) {
      return Bad(StrCat("the rule ", Printable(name, 64), " for the second time"));
    }
    current_ = name;
    in_terminal_ = lark_ && IsTerminal(name);
    std::vector<GrammarNode> bases, tails;
    do {
      MILLRACE_ASSIGN_OR_RETURN(Items items, Sequence(/*top=*/true));
      (items.begins_with_itself ? tails : bases).push_back(builder_.Sequence(items.nodes));
    } while (TakeBar());
    GrammarNode body = builder_.Alternative(bases);
    if (!tails.empty()) {
      body = builder_.Sequence({body, builder_.Repeat(builder_.Alternative(tails), 0)});
    }
    Named& rule = Rule(name);
    builder_.SetRule(rule.id, body);
    rule.defined = true;
    return absl::OkStatus();
  }

  bool TakeBar() {
    Skip();
    return Take("|");
  }

  absl::StatusOr<Items> Sequence(bool top) {
    Items items;
    for (Skip(); at_ < text_.size(); Skip()) {
      const char c = Peek();
      if (c == '|' || c == ')' || c == ']' || (lark_ && c == '%') || AtHead()) break;
      if (lark_ && Take("->")) {
        Skip();
        Name();
        continue;
      }
      if (top && items.nodes.empty() && !items.begins_with_itself && IsNameStart(c)) {
        const size_t begin = at_;
        if (Name() == current_ &&
            std::string_view("*+?{~").find(Peek()) == std::string_view::npos) {
          items.begins_with_itself = true;
          continue;
        }
        at_ = begin;
      }
      MILLRACE_ASSIGN_OR_RETURN(GrammarNode node, Atom());
      MILLRACE_ASSIGN_OR_RETURN(node, Quantified(node));
      items.nodes.push_back(node);
    }
    return items;
  }

  absl::StatusOr<GrammarNode> Alternatives() {
    if (++depth_ > builder_.limits().depth) {
      return Bad(StrCat("brackets nested more than ", builder_.limits().depth, " deep"));
    }
    std::vector<GrammarNode> branches;
    do {
      MILLRACE_ASSIGN_OR_RETURN(const Items items, Sequence(/*top=*/false));
      branches.push_back(builder_.Sequence(items.nodes));
    } while (TakeBar());
    --depth_;
    return builder_.Alternative(branches);
  }

  absl::StatusOr<GrammarNode> Quantified(GrammarNode node) {
    for (int within = 0;; ++within) {
      if (within > builder_.limits().depth) {
        return Bad(StrCat("more than ", builder_.limits().depth, " quantifiers of one item"));
      }
      while (Peek() == ' ' || Peek() == '\t') ++at_;
      if (Take("*")) {
        node = builder_.Repeat(node, 0);
      } else if (Take("+")) {
        node = builder_.Repeat(node, 1);
      } else if (Peek() == '?' && !AtHead()) {
        ++at_;
        node = builder_.Optional(node);
      } else if ((!lark_ && Peek() == '{') || (lark_ && Peek() == '~')) {
        MILLRACE_ASSIGN_OR_RETURN(node, Counted(node));
      } else {
        return node;
      }
    }
  }

  std::optional<uint32_t> Number() {
    uint64_t value = 0;
    const size_t begin = at_;
    while (Peek() >= '0' && Peek() <= '9') {
      value = std::min<uint64_t>(value * 10 + (text_[at_++] - '0'), kUnbounded - 1);
    }
    return at_ == begin ? std::nullopt : std::optional(static_cast<uint32_t>(value));
  }

  absl::StatusOr<GrammarNode> Counted(GrammarNode node) {
    ++at_;
    Skip();
    const std::optional<uint32_t> least = Number();
    if (!least) return Bad("a repetition without its number");
    uint32_t most = *least;
    Skip();
    if (Take(lark_ ? ".." : ",")) {
      Skip();
      most = Number().value_or(kUnbounded);
      Skip();
    }
    if (!lark_ && !Take("}")) return Bad("a repetition without its }");
    if (most < *least) return Bad("a repetition whose most is below its least");
    if (builder_.AsTerm(node) == nullptr && most != kUnbounded && most > 100000) {
      return Bad("a repetition of more than 100000");
    }
    return builder_.Repeat(node, *least, most);
  }

  GrammarNode Terminal(GrammarNode node) {
    if (in_terminal_ || ignore_ == kEmptyText) return node;
    return builder_.Sequence({node, builder_.Term(ignore_)});
  }

  absl::StatusOr<GrammarNode> Atom() {
    const char c = Peek();
    if (c == '(' || (lark_ && c == '[')) {
      ++at_;
      MILLRACE_ASSIGN_OR_RETURN(const GrammarNode inside, Alternatives());
      Skip();
      if (!Take(c == '(' ? ")" : "]")) return Bad("a bracket that is not closed");
      return c == '(' ? inside : builder_.Optional(inside);
    }
    if (IsNameStart(c)) {
      const std::string_view name = Name();
      const GrammarNode node = builder_.Rule(Rule(name).id);
      return lark_ && IsTerminal(name) ? Terminal(node) : node;
    }
    if (!lark_ && c == '.') {
      ++at_;
      return builder_.Term(EncodeSet(pool_, {{0, 0x10ffff}}, form_));
    }
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, LiteralOrRegex());
    return Terminal(node);
  }

  absl::StatusOr<GrammarNode> LiteralOrRegex() {
    const char c = Peek();
    size_t end = at_ + 1;
    const bool bracket = c == '[' && !lark_;
    if (c != '"' && !(lark_ && (c == '\'' || c == '/')) && !bracket) {
      return Bad(StrCat("an unexpected ", Printable(std::string(1, c), 4)));
    }
    const char close = bracket ? ']' : c;
    while (end < text_.size() && text_[end] != close && (bracket || text_[end] != '\n')) {
      end += text_[end] == '\\' ? 2 : 1;
    }
    if (end >= text_.size() || text_[end] != close) return Bad("a literal that is not closed");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    const std::string_view whole = text_.substr(at_, end + 1 - at_);
    absl::StatusOr<Regular> term;
    if (c == '/') {
      std::string regex;
      for (size_t i = 0; i < inside.size(); ++i) {
        if (inside[i] == '\\' && i + 1 < inside.size() && inside[i + 1] == '/') continue;
        regex += inside[i];
      }
      term = ParseRegex(pool_, regex, form_, RegexMode::kWhole, builder_.limits().depth);
    } else if (bracket) {
      term = ParseRegex(pool_, whole, form_, RegexMode::kWhole, builder_.limits().depth);
    } else {
      term = Quoted(inside);
    }
    if (!term.ok()) return Bad(std::string(term.status().message()));
    at_ = end + 1;
    if (lark_ && IsNameStart(Peek())) return Bad("a flag, which is not supported,");
    if (!within_ || pool_.IsEmpty(pool_.And({*term, pool_.Not(*within_)}))) {
      return builder_.Term(*term);
    }
    return builder_.Term(pool_.And({*term, *within_}));
  }

  // A quoted text, whose escapes are those of a regular expression.
  absl::StatusOr<Regular> Quoted(std::string_view inside) {
    std::string regex;
    for (size_t i = 0; i < inside.size(); ++i) {
      if (inside[i] == '\\' && i + 1 < inside.size()) {
        const char escaped = inside[++i];
        if (escaped == 'U') return Bad("\\U, which is not supported,");
        if (std::string_view("dDwWsSbBAZz").find(escaped) != std::string_view::npos) {
          return Bad("an unknown escape");
        }
        regex += '\\';
        regex += escaped;
        continue;
      }
      if (std::string_view("^$.|?*+()[]{}/-").find(inside[i]) != std::string_view::npos)
        regex += '\\';
      regex += inside[i];
    }
    return ParseRegex(pool_, regex, form_, RegexMode::kWhole, 4);
  }

  GrammarBuilder& builder_;
  RegularPool& pool_;
  const std::string_view text_;
  const TextForm form_;
  const std::optional<Regular> within_;
  bool lark_;
  std::string_view assign_;
  size_t at_ = 0;
  int depth_ = 0;
  std::map<std::string, Named, std::less<>> rules_;
  std::string_view current_;
  bool in_terminal_ = false;
  Regular ignore_ = kEmptyText;
};

}  // namespace

absl::StatusOr<GrammarNode> CompileEbnf(GrammarBuilder& builder, std::string_view text,
                                        TextForm form, std::optional<Regular> within) {
  return Parser(builder, text, form, within).Parse();
}

}  // namespace millrace
