// Fuzzes tokenizer.json and what it makes of texts. The input is a tokenizer.json, a zero byte, and
// a text.
#include <memory>

#include "base/fuzz_test_util.h"
#include "formats/tokenizer_json.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace {

void Encode(const millrace::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const auto tokens =
        tokenizer.Encode(text, {.add_special = true, .parse_special = parse_special});
    if (!tokens.ok()) continue;
    for (const millrace::Token token : *tokens) {
      millrace::FuzzCheck(token >= 0 && token < tokenizer.vocab_size(),
                          "a token outside of the vocabulary");
      static_cast<void>(tokenizer.TokenBytes(token));
      static_cast<void>(tokenizer.FirstTokenBytes(token));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const std::string_view json = input.Until('\0');
  const auto spec = millrace::ReadTokenizerJson(json, "tokenizer.json");
  if (!spec.ok()) return 0;
  const auto tokenizer = millrace::PipelineTokenizer::Create(*spec);
  if (!tokenizer.ok()) return 0;
  Encode(**tokenizer, input.rest());
  Encode(**tokenizer, "Hello, World! 1234\n\n caf\u00e9 \u4f60\u597d <s></s> [MASK]");
  return 0;
}
