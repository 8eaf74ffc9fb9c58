// Fuzzes tokenizer.model and tekken.json, and what they make of texts. The input is a byte, of
// which an odd number stands for tekken.json, a text, a zero byte, and the file.
#include <memory>

#include "base/fuzz_test_util.h"
#include "formats/tokenizers/sentencepiece_model.h"
#include "formats/tokenizers/tekken.h"
#include "text/tokenizer/tokenizer_fuzz_test_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const bool is_tekken = input.Byte() % 2 != 0;
  const std::string_view text = input.Until('\0');
  if (is_tekken) {
    const auto spec = millrace::ReadTekken(input.rest(), "tekken.json");
    if (spec.ok()) millrace::FuzzTokenizer(*spec, text);
  } else {
    const auto read = millrace::ReadSentencePieceModel(input.rest(), "tokenizer.model");
    if (read.ok()) millrace::FuzzTokenizer(read->spec, text);
  }
  return 0;
}
