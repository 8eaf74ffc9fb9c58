// Fuzzes grammars. The input's first byte chooses the kind, the rest is the schema, the regular
// expression or the grammar. What compiles is followed for some tokens: a token that the mask
// allows must be accepted, one that it does not allow must be refused, and the end tokens are
// allowed exactly where the text matches.
#include "base/fuzz_test_util.h"
#include "text/grammar/grammar.h"

namespace {

using millrace::FuzzCheck;
using Kind = millrace::GrammarSpec::Kind;

constexpr int kSteps = 12;
constexpr int kProbes = 16;  // of the vocabulary, after each step
constexpr millrace::Token kEnd = 256;

// Every byte, an end token, and some texts of several bytes.
std::shared_ptr<const millrace::GrammarVocabulary> Vocabulary() {
  static const auto& vocabulary = *new std::shared_ptr<const millrace::GrammarVocabulary>([] {
    static std::string bytes;
    for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
    std::vector<millrace::VocabularyToken> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back({std::string_view(bytes).substr(byte, 1), false});
    }
    tokens.push_back({"</s>", true});
    tokens.push_back({"<tool_call>", true});
    for (const std::string_view text :
         {"{\"",   "\":", "\": ",     "\"",   "\",",     "\"}",  "{}",     "[]",
          "[{",    "}]",  ", \"",     "true", "false",   "null", "12",     "0.5",
          "-1",    "e+",  "  ",       "\n  ", "abc",     "the ", "\u00e9", "\u4f60\u597d",
          "\\u00", "\\n", "2024-01-", "T12:", "http://", "@a."}) {
      tokens.push_back({text, false});
    }
    return std::make_shared<millrace::GrammarVocabulary>(tokens, std::vector<millrace::Token>{kEnd},
                                                         static_cast<int32_t>(tokens.size()) + 3);
  }());
  return vocabulary;
}

void Probe(const millrace::GrammarMatcher& matcher, const millrace::TokenMask& mask,
           millrace::Token token) {
  if (token == kEnd) return;
  millrace::GrammarMatcher copy = matcher;
  FuzzCheck(copy.Accept(token) == millrace::MaskAllows(mask, token),
            "the mask and the matcher differ");
}

void Follow(const std::shared_ptr<const millrace::Grammar>& grammar, std::string_view seed) {
  const auto vocabulary = Vocabulary();
  millrace::GrammarMatcher matcher(grammar, vocabulary);
  millrace::FuzzRandom random(seed);
  std::string text;
  bool special = false;
  for (int step = 0; step < kSteps; ++step) {
    const auto mask = matcher.Mask();
    if (!mask.ok()) return;
    FuzzCheck(millrace::MaskAllows(**mask, kEnd) == matcher.accepting(), "the end token is wrong");
    std::vector<millrace::Token> allowed;
    for (millrace::Token token = 0; token < vocabulary->mask_size(); ++token) {
      if (token != kEnd && millrace::MaskAllows(**mask, token)) allowed.push_back(token);
    }
    FuzzCheck(!matcher.finished() || allowed.empty(), "something may follow the end");
    for (int probe = 0; probe < kProbes; ++probe) {
      Probe(
          matcher, **mask,
          static_cast<millrace::Token>(random.Below(static_cast<size_t>(vocabulary->mask_size()))));
    }
    static_cast<void>(matcher.ForcedBytes());
    if (allowed.empty()) break;
    const millrace::Token token = allowed[random.Below(allowed.size())];
    FuzzCheck(matcher.Accept(token), "an allowed token is refused");
    special = special || token == kEnd + 1;
    text += vocabulary->Bytes(token);
  }
  if (!special) FuzzCheck(grammar->Matches(text) == matcher.accepting(), "Matches differs");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr Kind kKinds[] = {Kind::kJsonSchema, Kind::kRegex, Kind::kEbnf, Kind::kChoice,
                             Kind::kText};
  millrace::FuzzInput input(data, size);
  const uint8_t choice = input.Byte();
  millrace::GrammarSpec spec;
  spec.kind = kKinds[choice % std::size(kKinds)];
  spec.any_whitespace = choice % 2 == 0;
  spec.text = input.rest();
  if (spec.kind == Kind::kChoice || spec.kind == Kind::kText) {
    spec.text.clear();
    while (!input.rest().empty()) spec.choices.emplace_back(input.Until('\n'));
  }
  // The instrumented code takes five times as long.
  millrace::GrammarLimits limits;
  limits.nodes = 20000;
  const auto grammar = millrace::Grammar::Compile(spec, limits);
  if (grammar.ok()) Follow(*grammar, input.rest());
  return 0;
}
