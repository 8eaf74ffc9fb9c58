// Fuzzes the reader of safetensors files. Every tensor's bytes must lie inside the file.
#include "base/fuzz_test_util.h"
#include "formats/huggingface/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto& file = *new millrace::FuzzFile;
  file.Write({reinterpret_cast<const char*>(data), size});
  const auto opened = millrace::SafetensorsFile::Open(file.path());
  if (!opened.ok()) return 0;
  for (const millrace::TensorInfo& tensor : opened->tensors) {
    millrace::FuzzCheck(tensor.offset <= size && tensor.bytes <= size - tensor.offset,
                        "a tensor lies outside of its file");
  }
  return 0;
}
