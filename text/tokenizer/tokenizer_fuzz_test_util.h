// For the fuzz targets of tokenizers' files.
#ifndef MILLRACE_TEXT_TOKENIZER_TOKENIZER_FUZZ_TEST_UTIL_H_
#define MILLRACE_TEXT_TOKENIZER_TOKENIZER_FUZZ_TEST_UTIL_H_

#include <string_view>

#include "base/fuzz_test_util.h"
#include "formats/tokenizers/tokenizer_spec.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {

// Encodes texts by a tokenizer that a file has given, and looks at the tokens.
inline void FuzzTokenizer(const TokenizerSpec& spec, std::string_view text) {
  constexpr std::string_view kText = "Hello, World! 1234\n\n caf\u00e9 \u4f60\u597d <s></s> [MASK]";
  const auto tokenizer = PipelineTokenizer::Create(spec);
  if (!tokenizer.ok()) return;
  for (const std::string_view one : {text, kText}) {
    for (const bool parse_special : {false, true}) {
      const auto tokens =
          (*tokenizer)->Encode(one, {.add_special = true, .parse_special = parse_special});
      if (!tokens.ok()) continue;
      for (const Token token : *tokens) {
        FuzzCheck(token >= 0 && token < (*tokenizer)->vocab_size(),
                  "a token outside of the vocabulary");
        static_cast<void>((*tokenizer)->TokenBytes(token));
        static_cast<void>((*tokenizer)->FirstTokenBytes(token));
      }
    }
  }
}

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_TOKENIZER_FUZZ_TEST_UTIL_H_
