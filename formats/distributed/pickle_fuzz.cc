// Fuzzes the reader of `.metadata`, the first byte being even, and that of a chunk's archive. A
// chunk's elements must all lie inside of it.
#include "base/fuzz_test_util.h"
#include "formats/distributed/checkpoint_metadata.h"
#include "formats/distributed/stored_chunk.h"

namespace {

using millrace::CheckpointChunk;
using millrace::CheckpointTensor;

void ReadChunk(absl::Span<const uint8_t> bytes) {
  const CheckpointTensor tensor{
      .name = "w", .type = millrace::FindTorchType("torch.float32"), .shape = {3, 4}, .chunks = {}};
  const CheckpointChunk chunk{
      .offsets = {0, 0}, .sizes = {3, 4}, .file = 0, .offset = 0, .bytes = bytes.size()};
  const auto stored = millrace::ReadZipChunk(bytes, tensor, chunk);
  if (!stored.ok()) return;
  const int64_t last = 2 * stored->strides[0] + 3 * stored->strides[1];
  millrace::FuzzCheck(
      static_cast<size_t>(last + 1) * 4 <= stored->bytes.size() &&
          stored->bytes.data() >= bytes.data() &&
          stored->bytes.data() + stored->bytes.size() <= bytes.data() + bytes.size(),
      "a chunk lies outside of its archive");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::Span<const uint8_t> bytes(data + 1, size - 1);
  if (data[0] % 2 != 0) {
    ReadChunk(bytes);
    return 0;
  }
  const auto metadata = millrace::ReadCheckpointMetadata(bytes);
  if (!metadata.ok()) return 0;
  for (const CheckpointTensor& tensor : metadata->tensors) {
    int64_t stored = 0;
    for (const CheckpointChunk& chunk : tensor.chunks) stored += millrace::ElementsOf(chunk.sizes);
    millrace::FuzzCheck(stored == millrace::ElementsOf(tensor.shape),
                        "a tensor's chunks have another number of elements");
  }
  return 0;
}
