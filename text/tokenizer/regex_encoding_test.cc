#include "text/tokenizer/regex_encoding.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "formats/tokenizers/tokenizer_patterns.h"
#include "text/tokenizer/class_reference_test_util.h"
#include "text/tokenizer/code_range.h"
#include "text/tokenizer/text_pattern.h"
#include "text/utf8.h"

namespace millrace {
namespace {

constexpr char32_t kFirstSurrogate = 0xd800;
constexpr char32_t kBehindSurrogates = 0xe000;

// Joins runs that touch; ascending ranges go in.
class Runs {
 public:
  void Add(char32_t first, char32_t last) {
    if (first >= kFirstSurrogate && first < kBehindSurrogates) first = kBehindSurrogates;
    if (last >= kFirstSurrogate && last < kBehindSurrogates) last = kFirstSurrogate - 1;
    if (first > last) return;
    const bool touches = !runs_.empty() &&
                         (first == runs_.back().last + 1 ||
                          (first == kBehindSurrogates && runs_.back().last == kFirstSurrogate - 1));
    if (touches) {
      runs_.back().last = last;
    } else {
      runs_.push_back({first, last});
    }
  }

  std::string Digest() const {
    ReferenceDigest digest;
    for (const CodeRange& run : runs_) {
      digest.Add(static_cast<uint32_t>(run.first));
      digest.Add(static_cast<uint32_t>(run.last));
    }
    return digest.Finish();
  }

 private:
  std::vector<CodeRange> runs_;
};

// Returns the digest of the members of \p{name}. Finding them in EveryCharacter() would take ten
// milliseconds for each name.
std::string DigestOfName(std::string_view name) {
  Runs runs;
  for (const CodeRange& range : MembersOfClass(name)) runs.Add(range.first, range.last);
  return runs.Digest();
}

// Returns the digest of the characters that an expression matches in EveryCharacter().
std::string DigestOfMatches(std::string_view regex) {
  const absl::StatusOr<TextMatcher> matcher =
      TextMatcher::Create({true, StrCat("(?:", regex, ")+")});
  if (!matcher.ok()) return matcher.status().ToString();
  const std::string_view text = EveryCharacter();
  Runs runs;
  const absl::Status status = matcher->ForEach(text, [&](TextMatcher::Match match) {
    size_t last = match.end - 1;
    while ((text[last] & 0xc0) == 0x80) --last;
    runs.Add(FirstCharacter(text.substr(match.begin)).code, FirstCharacter(text.substr(last)).code);
    return absl::OkStatus();
  });
  return status.ok() ? runs.Digest() : status.ToString();
}

TEST(RegexEncodingTest, EveryNamedClassIsHuggingFaces) {
  EXPECT_GE(ClassReference()["names"].size(), 800u);
  for (const auto& [name, digest] : ClassReference()["names"].items()) {
    EXPECT_EQ(DigestOfName(name), digest.get<std::string>()) << name;
  }
}

TEST(RegexEncodingTest, ExpressionsMatchWhatHuggingFacesMatch) {
  EXPECT_GE(ClassReference()["expressions"].size(), 35u);
  for (const auto& [regex, digest] : ClassReference()["expressions"].items()) {
    EXPECT_EQ(DigestOfMatches(regex), digest.get<std::string>()) << regex;
  }
}

// The classes of pre-tokenizers that are expressions here and not there.
TEST(RegexEncodingTest, PatternsOfPreTokenizersAreHuggingFaces) {
  const auto expect = [](const char* part, const char* pattern) {
    EXPECT_EQ(DigestOfMatches(pattern), ClassReference()["parts"][part].get<std::string>()) << part;
  };
  expect("Punctuation", kPunctuationPattern);
  expect("WhitespaceSplit", kWhiteSpacePattern);
  expect("Digits", kDigitPattern);
  expect("Whitespace", kWordCharacterPattern);
}

TEST(RegexEncodingTest, NamesMayBeSpelledOtherwise) {
  EXPECT_EQ(DigestOfName("Kirat_Rai"), DigestOfName("kirat-RAI "));
  EXPECT_TRUE(MembersOfClass("no_such_name").empty());
  EXPECT_NE(DigestOfName("Kirat_Rai"), DigestOfName("Kawi"));
}

}  // namespace
}  // namespace millrace
