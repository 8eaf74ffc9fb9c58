#include "server/text/pre_tokenizer.h"

#include <oniguruma.h>

#include <mutex>
#include <string>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr unsigned kMaxStackEntries = 1 << 20;
constexpr unsigned long kMaxRetries = 1 << 20;

struct Kind {
  std::string_view name;
  const char* regex;
  bool ignore_merges;
};

// Every expression matches at every position of a text. A `++` never gives back what it took:
// nothing that follows could use it, and Oniguruma then drops what it kept for going back.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
// Numbers are split off one character at a time, and GPT-2's expression cuts what lies between:
// white space before a number stands at the end of such a part, so it is taken whole.
constexpr const char* kSmolLm =
    R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}++| ?[^\s\p{L}\p{N}]++|\s+(?![^\s\p{N}])|\s+)";

constexpr Kind kKinds[] = {
    {"gpt-2", kGpt2, false},
    {"llama-bpe", kLlama3, true},
    {"smollm", kSmolLm, false},
};

absl::StatusOr<regex_t*> Compile(std::string_view pattern) {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encoding = ONIG_ENCODING_UTF8;
    onig_initialize(&encoding, 1);
  });
  regex_t* regex = nullptr;
  OnigErrorInfo info;
  const auto* begin = reinterpret_cast<const OnigUChar*>(pattern.data());
  const int error = onig_new(&regex, begin, begin + pattern.size(), ONIG_OPTION_NONE,
                             ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  if (error != ONIG_NORMAL) {
    return absl::InternalError(StrCat("pre-tokenizer: Oniguruma refuses the expression: ", error));
  }
  return regex;
}

}  // namespace

void PreTokenizer::FreeRegex::operator()(re_pattern_buffer* regex) const { onig_free(regex); }

absl::StatusOr<PreTokenizer> PreTokenizer::Create(std::string_view name) {
  std::string known;
  for (const Kind& kind : kKinds) {
    if (kind.name == name) {
      MILLRACE_ASSIGN_OR_RETURN(regex_t * regex, Compile(kind.regex));
      return PreTokenizer(regex, kind.ignore_merges);
    }
    known += StrCat(known.empty() ? "" : ", ", kind.name);
  }
  return absl::UnimplementedError(StrCat("key tokenizer.ggml.pre: \"", Printable(name),
                                         "\" is not supported (supported: ", known, ")"));
}

absl::Status PreTokenizer::Split(std::string_view text,
                                 absl::FunctionRef<void(std::string_view)> emit) const {
  // Oniguruma counts in it while it matches, so each call has its own.
  const std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits(onig_new_match_param(),
                                                                          onig_free_match_param);
  onig_initialize_match_param(limits.get());
  onig_set_match_stack_limit_size_of_match_param(limits.get(), kMaxStackEntries);
  onig_set_retry_limit_in_match_of_match_param(limits.get(), kMaxRetries);
  const auto* const begin = reinterpret_cast<const OnigUChar*>(text.data());
  const auto* const end = begin + text.size();
  for (size_t at = 0; at < text.size();) {
    const int size = onig_match_with_param(regex_.get(), begin, end, begin + at, nullptr,
                                           ONIG_OPTION_NONE, limits.get());
    if (size == ONIGERR_MATCH_STACK_LIMIT_OVER || size == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER) {
      return absl::InvalidArgumentError(StrCat("prompt: the white space at byte ", at,
                                               " is too long, at most about ", kMaxStackEntries,
                                               " characters in a row are taken"));
    }
    if (size <= 0) {
      return absl::InternalError(
          StrCat("pre-tokenizer: Oniguruma ends with ", size, " at byte ", at));
    }
    emit(text.substr(at, size));
    at += size;
  }
  return absl::OkStatus();
}

}  // namespace millrace
