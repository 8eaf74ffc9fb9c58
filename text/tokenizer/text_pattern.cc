#include "text/tokenizer/text_pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <mutex>

#include "base/status.h"
#include "base/strings.h"
#include "text/tokenizer/regex_encoding.h"
#include "text/utf8.h"

namespace millrace {
namespace {

constexpr unsigned kMaxStackEntries = 1 << 21;
// Some for each byte, and as many as a second has for expressions that take quadratic time.
constexpr unsigned long kMinRetries = 1 << 26;
constexpr unsigned long kRetriesPerByte = 64;

// White space before an end of line, which Hugging Face's tokenizers search for at each white space
// anew. One match takes all that it can, so that none begins after white space.
constexpr std::string_view kTrailingSpace = R"(\s+$)";
constexpr std::string_view kTrailingSpaceFast = R"((?<!\s)\s+$)";

absl::StatusOr<regex_t*> Compile(std::string_view pattern) {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encoding = TokenizerEncoding();
    onig_initialize(&encoding, 1);
  });
  regex_t* regex = nullptr;
  OnigErrorInfo info;
  const auto* begin = reinterpret_cast<const OnigUChar*>(pattern.data());
  const int error = onig_new(&regex, begin, begin + pattern.size(), ONIG_OPTION_NONE,
                             TokenizerEncoding(), ONIG_SYNTAX_ONIGURUMA, &info);
  if (error != ONIG_NORMAL) {
    OnigUChar why[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int size = onig_error_code_to_str(why, error, &info);
    return absl::InvalidArgumentError(
        StrCat("tokenizer: the regular expression \"", Printable(pattern),
               "\": ", Printable({reinterpret_cast<const char*>(why), static_cast<size_t>(size)})));
  }
  return regex;
}

// Returns whether a repetition ends an alternative of the outermost level.
bool EndsAlternative(std::string_view regex, size_t at) {
  return at == regex.size() || regex[at] == '|';
}

}  // namespace

std::string WithPossessiveEnds(std::string_view regex) {
  std::string result;
  int depth = 0;        // of groups
  int class_depth = 0;  // of [...]
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    result += c;
    if (c == '\\' && i + 1 < regex.size()) {
      result += regex[++i];
    } else if (c == '[') {
      // A ] that stands first is a member.
      ++class_depth;
      if (regex.substr(i + 1, 1) == "^") result += regex[++i];
      if (regex.substr(i + 1, 1) == "]") result += regex[++i];
    } else if (class_depth > 0) {
      if (c == ']') --class_depth;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')') {
      --depth;
    } else if ((c == '+' || c == '*') && depth == 0 && i > 0 && EndsAlternative(regex, i + 1)) {
      const char before = result.size() > 1 ? result[result.size() - 2] : '|';
      const bool escaped = i > 1 && regex[i - 2] == '\\';
      // After another quantifier it is one of its kind, or means something else.
      const bool atom = escaped || (before != '+' && before != '*' && before != '?' &&
                                    before != '}' && before != '|' && before != '(');
      // \p{L} ends in a brace, and is an atom.
      const bool property = before == '}' && !escaped && [&] {
        const size_t open = regex.rfind('{', i - 1);
        return open != std::string_view::npos && open >= 2 && regex[open - 2] == '\\' &&
               (regex[open - 1] == 'p' || regex[open - 1] == 'P');
      }();
      if (atom || property) result += '+';
    }
  }
  return result;
}

void TextMatcher::FreeRegex::operator()(re_pattern_buffer* regex) const { onig_free(regex); }

absl::StatusOr<TextMatcher> TextMatcher::Create(const TextPattern& pattern) {
  TextMatcher matcher;
  if (pattern.regex || pattern.text.empty()) {
    const std::string_view text =
        pattern.text == kTrailingSpace ? kTrailingSpaceFast : pattern.text;
    MILLRACE_ASSIGN_OR_RETURN(regex_t * regex, Compile(WithPossessiveEnds(text)));
    matcher.regex_.reset(regex);
  } else {
    matcher.literal_ = pattern.text;
  }
  return matcher;
}

absl::Status TextMatcher::ForEachLiteral(std::string_view text,
                                         absl::FunctionRef<absl::Status(Match)> found) const {
  for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos;) {
    MILLRACE_RETURN_IF_ERROR(found({at, at + literal_.size(), 0}));
    at += literal_.size();
  }
  return absl::OkStatus();
}

absl::Status TextMatcher::ForEach(std::string_view text,
                                  absl::FunctionRef<absl::Status(Match)> found) const {
  if (regex_ == nullptr) return ForEachLiteral(text, found);
  // Oniguruma counts in it while it matches, so each call has its own.
  const std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits(onig_new_match_param(),
                                                                          onig_free_match_param);
  onig_initialize_match_param(limits.get());
  onig_set_match_stack_limit_size_of_match_param(limits.get(), kMaxStackEntries);
  const unsigned long retries = std::max<unsigned long>(kMinRetries, kRetriesPerByte * text.size());
  onig_set_retry_limit_in_match_of_match_param(limits.get(), retries);
  onig_set_retry_limit_in_search_of_match_param(limits.get(), retries);
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(
      onig_region_new(), [](OnigRegion* r) { onig_region_free(r, /*free_self=*/1); });
  const auto* const begin = reinterpret_cast<const OnigUChar*>(text.data());
  const auto* const end = begin + text.size();
  size_t last = std::string_view::npos;  // where the last match ended
  for (size_t at = 0; at <= text.size();) {
    const int place = onig_search_with_param(regex_.get(), begin, end, begin + at, end,
                                             region.get(), ONIG_OPTION_NONE, limits.get());
    if (place == ONIG_MISMATCH) break;
    if (place < 0) {
      return absl::InvalidArgumentError(StrCat("prompt: the text after byte ", at,
                                               " is too long for the tokenizer's regular "
                                               "expression (Oniguruma ends with ",
                                               place, ")"));
    }
    const auto match_begin = static_cast<size_t>(region->beg[0]);
    const auto match_end = static_cast<size_t>(region->end[0]);
    if (match_begin == match_end && match_end == last) {
      if (at == text.size()) break;
      at += FirstUtf8Unit(text.substr(at)).size;
      continue;
    }
    int group = 0;
    for (int i = 1; i < region->num_regs && group == 0; ++i) {
      if (region->beg[i] >= 0) group = i;
    }
    MILLRACE_RETURN_IF_ERROR(found({match_begin, match_end, group}));
    at = last = match_end;
  }
  return absl::OkStatus();
}

}  // namespace millrace
