// Fuzzes the reader of a checkpoint's folder. The input has the length of `.metadata` in two bytes,
// `.metadata`, and the only other file. Small tensors are read whole.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/fuzz_test_util.h"
#include "formats/distributed/tensor_stream.h"

namespace {

constexpr int64_t kMostBytes = 1 << 20;

// Returns the folder, which is removed when the process ends.
const std::filesystem::path& Folder() {
  static const std::filesystem::path& folder = *new std::filesystem::path([] {
    std::string name = std::filesystem::temp_directory_path() / "millrace-fuzz-XXXXXX";
    millrace::FuzzCheck(mkdtemp(name.data()) != nullptr, "mkdtemp failed");
    return std::filesystem::path(name);
  }());
  static const int removed = std::atexit([] { std::filesystem::remove_all(Folder()); });
  static_cast<void>(removed);
  return folder;
}

void Write(const char* name, std::string_view bytes) {
  std::ofstream(Folder() / name, std::ios::binary) << bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const size_t metadata_bytes = input.Byte() + 256 * static_cast<size_t>(input.Byte());
  const size_t split = std::min(metadata_bytes, input.rest().size());
  Write(".metadata", input.rest().substr(0, split));
  Write("__0_0.distcp", input.rest().substr(split));
  absl::StatusOr<millrace::CheckpointFolder> folder = millrace::CheckpointFolder::Open(Folder());
  millrace::FuzzCheck(folder.status().message().find(Folder().string()) == std::string::npos,
                      "a message has the folder's path");
  if (!folder.ok()) return 0;
  for (const millrace::CheckpointTensor& tensor : folder->metadata().tensors) {
    const int64_t bytes = millrace::ElementsOf(tensor.shape) * tensor.type->bytes;
    if (bytes > kMostBytes) continue;
    absl::StatusOr<millrace::TensorStream> stream = millrace::TensorStream::Open(&*folder, tensor);
    if (!stream.ok()) continue;
    std::vector<uint8_t> read(bytes);
    static_cast<void>(stream->Read(absl::MakeSpan(read)).ok());
  }
  return 0;
}
