// Fuzzes what is read of a GGUF file when a model is loaded: the header, the config, and the
// tokenizer's metadata. Every tensor's bytes must lie inside the file.
#include "base/fuzz_test_util.h"
#include "formats/gguf.h"
#include "formats/gguf_tokenizer.h"
#include "formats/model_config.h"
#include "formats/tokenizer_gguf.h"

namespace {

// Reads the bytes' ends, so that AddressSanitizer or the kernel objects to bytes outside the file.
void Touch(const millrace::TensorSource& file) {
  unsigned sum = 0;
  for (const millrace::TensorInfo& tensor : file.tensors()) {
    const auto bytes = file.Data(tensor);
    if (!bytes.empty()) sum += bytes.front() + bytes.back();
    sum += static_cast<unsigned>(file.NameInFile(tensor.name).size());
    sum += file.FindTensor(tensor.name) != nullptr ? 1 : 0;
  }
  volatile unsigned keep = sum;
  static_cast<void>(keep);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto& file = *new millrace::FuzzFile;
  file.Write({reinterpret_cast<const char*>(data), size});
  const auto gguf = millrace::GgufFile::Open(file.path());
  if (!gguf.ok()) return 0;
  Touch(*gguf);
  const auto config = millrace::ReadModelConfig(*gguf);
  static_cast<void>(config);
  const auto tokenizer = millrace::ReadGgufTokenizer(*gguf);
  if (!tokenizer.ok()) return 0;
  const auto spec = millrace::MakeTokenizerSpec(*tokenizer);
  static_cast<void>(spec);
  return 0;
}
