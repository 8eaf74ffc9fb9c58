// Fuzzes what is read of a GGUF model when it is loaded: the header, the config, and the
// tokenizer's metadata. Every tensor's bytes must lie inside their file. An input that has "GGUF"
// in it a second time is two files, of which a model that is split consists.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/fuzz_test_util.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_split.h"
#include "formats/gguf_model.h"
#include "formats/tokenizers/gguf_tokenizer.h"
#include "formats/tokenizers/tokenizer_gguf.h"

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

// Returns the path of the first of two files, which lead to `first` and `second`.
std::string LinkParts(const std::string& first, const std::string& second) {
  static std::string& folder =
      *new std::string(std::filesystem::temp_directory_path() / "millrace-fuzz-XXXXXX");
  millrace::FuzzCheck(mkdtemp(folder.data()) != nullptr, "mkdtemp failed");
  std::atexit([] { std::filesystem::remove_all(folder); });
  const millrace::GgufPart part{folder + "/m", 1, 2};
  std::filesystem::create_symlink(first, part.Name(1));
  std::filesystem::create_symlink(second, part.Name(2));
  return part.Name(1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto& first = *new millrace::FuzzFile;
  static auto& second = *new millrace::FuzzFile;
  static const std::string& path = *new std::string(LinkParts(first.path(), second.path()));
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find("GGUF", 4), size);
  first.Write(input.substr(0, end));
  second.Write(input.substr(end));
  const auto gguf = millrace::OpenGgufModel(path);
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
