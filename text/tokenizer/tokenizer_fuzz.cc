// Fuzzes tokenizer.json and what it makes of texts. The input is a tokenizer.json, a zero byte, and
// a text.
#include "base/fuzz_test_util.h"
#include "formats/tokenizers/tokenizer_json.h"
#include "text/tokenizer/tokenizer_fuzz_test_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const std::string_view json = input.Until('\0');
  const auto spec = millrace::ReadTokenizerJson(json, "tokenizer.json");
  if (spec.ok()) millrace::FuzzTokenizer(*spec, input.rest());
  return 0;
}
