#include "text/tokenizer/regex_properties.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/strings.h"
#include "text/tokenizer/unicode_properties.h"

namespace millrace {
namespace {

// The name of \p{name} as Oniguruma compares it.
std::string Canonical(std::string_view name) {
  std::string canonical;
  for (const char c : name) {
    if (c != '_' && c != '-' && c != ' ') {
      canonical += absl::ascii_tolower(static_cast<unsigned char>(c));
    }
  }
  return canonical;
}

const PropertyChange* FindChange(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kPropertyChanges), std::end(kPropertyChanges),
                   [name](const PropertyChange& change) { return change.name == name; });
  return found == std::end(kPropertyChanges) ? nullptr : found;
}

class Rewriter {
 public:
  explicit Rewriter(std::string_view regex) : rest_(regex) {}

  std::string Run() {
    while (!rest_.empty()) {
      if (!TakeProperty() && !TakeBracket() && !TakeGroup()) Copy(rest_[0] == '\\' ? 2 : 1);
    }
    return std::move(result_);
  }

 private:
  void Copy(size_t size) {
    size = std::min(size, rest_.size());
    result_ += rest_.substr(0, size);
    rest_.remove_prefix(size);
  }

  // \p{...}, \P{...}, \w, \W, \d and \D.
  bool TakeProperty() {
    if (rest_.size() < 2 || rest_[0] != '\\') return false;
    const char letter = absl::ascii_tolower(static_cast<unsigned char>(rest_[1]));
    bool negated = letter != rest_[1];
    if (letter == 'w' || letter == 'd') {
      return Replace(StrCat("\\", std::string_view(&letter, 1)), rest_.substr(0, 2), negated, 2);
    }
    const size_t end = rest_.find('}');
    if (letter != 'p' || !rest_.substr(2).starts_with("{") || end == rest_.npos) return false;
    std::string_view name = rest_.substr(3, end - 3);
    if (name.starts_with("^")) {
      negated = !negated;
      name.remove_prefix(1);
    }
    return Replace(Canonical(name), StrCat("\\p{", name, "}"), negated, end + 1);
  }

  // [:name:] and [:^name:] in a class, and the begin and the end of a class.
  bool TakeBracket() {
    if (rest_[0] == ']' && class_depth_ > 0) {
      --class_depth_;
      Copy(1);
      return true;
    }
    if (rest_[0] != '[') return false;
    if (class_depth_ > 0 && rest_.starts_with("[:")) {
      const size_t end = rest_.find(":]");
      if (end == rest_.npos) return false;
      std::string_view name = rest_.substr(2, end - 2);
      const bool negated = name.starts_with("^");
      if (negated) name.remove_prefix(1);
      const std::string bracket = StrCat("[:", name, ":]");
      if (!Replace(bracket, bracket, negated, end + 2)) Copy(end + 2);
      return true;
    }
    ++class_depth_;
    Copy(1);
    if (rest_.starts_with("^")) Copy(1);
    if (rest_.starts_with("]")) Copy(1);  // It is a member where it stands first.
    return true;
  }

  // The begin and the end of a group, which may switch the option i.
  bool TakeGroup() {
    if (class_depth_ > 0) return false;
    if (rest_[0] == ')' && !groups_.empty()) {
      ignores_case_ = groups_.back();
      groups_.pop_back();
      Copy(1);
      return true;
    }
    if (rest_[0] != '(') return false;
    size_t at = rest_.starts_with("(?") ? 2 : 1;
    bool ignores_case = ignores_case_;
    for (bool on = true; at > 1 && at < rest_.size(); ++at) {
      const char c = rest_[at];
      if (c == '-') {
        on = false;
      } else if (c == 'i') {
        ignores_case = on;
      } else if (!absl::ascii_isalpha(static_cast<unsigned char>(c))) {
        break;
      }
    }
    if (at > 2 && rest_.substr(at).starts_with(")")) {  // "(?i)" holds to the end of its group.
      ignores_case_ = ignores_case;
      Copy(at + 1);
      return true;
    }
    groups_.push_back(ignores_case_);
    if (at > 2 && rest_.substr(at).starts_with(":")) ignores_case_ = ignores_case;
    Copy(1);
    return true;
  }

  // Replaces the next `size` bytes by the property that `text` stands for;
  // false where it has not changed.
  bool Replace(std::string_view name, std::string_view text, bool negated, size_t size) {
    const PropertyChange* change = FindChange(name);
    if (change == nullptr) return false;
    if (negated && text[0] == '\\' && text.size() == 2) text = name;  // \W as the negation of \w
    std::string members = StrCat(text, change->added);
    if (!change->removed.empty()) members += StrCat("&&[^", change->removed, "]");
    rest_.remove_prefix(size);
    if (class_depth_ > 0 && !negated && change->removed.empty()) {
      result_ += members;
      return true;
    }
    const std::string whole = StrCat(negated ? "[^" : "[", members, "]");
    // A class matches both cases under the option i, where \p{Lu} by itself
    // does not.
    result_ += ignores_case_ && class_depth_ == 0 ? StrCat("(?-i:", whole, ")") : whole;
    return true;
  }

  std::string_view rest_;
  std::string result_;
  int class_depth_ = 0;
  bool ignores_case_ = false;
  std::vector<bool> groups_;  // The option as it was before each open group.
};

}  // namespace

std::string WithCurrentProperties(std::string_view regex) { return Rewriter(regex).Run(); }

}  // namespace millrace
