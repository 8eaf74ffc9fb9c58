// Writes pickles, archives and checkpoints for tests, well-formed ones and others.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_TEST_UTIL_H_
#define MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace millrace {

// The opcodes that push a value, which pickles are put together of.
namespace pickled {

std::string Int(int64_t number);
std::string Text(std::string_view text);
std::string Tuple(const std::vector<std::string>& values);
std::string List(const std::vector<std::string>& values);
std::string Dict(const std::vector<std::pair<std::string, std::string>>& values);  // keys are texts
std::string Global(std::string_view module, std::string_view name);
std::string Call(const std::string& global, const std::vector<std::string>& arguments);
std::string Object(const std::string& global, const std::string& state);
std::string Size(const std::vector<int64_t>& sizes);  // a torch.Size

// The pickle of one value, of protocol 2.
std::string Whole(const std::string& value);

}  // namespace pickled

inline absl::Span<const uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A zip archive of stored entries.
std::string ZipOf(const std::vector<std::pair<std::string, std::string>>& entries);

// Returns what torch.save writes for a float32 tensor whose storage is `data`.
std::string SavedTensor(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                        const std::vector<float>& data);

// A chunk as `.metadata` describes it.
struct TestChunk {
  std::vector<int64_t> offsets, sizes;
  std::string file = "__0_0.distcp";
  int64_t offset = 0, length = 0;
  std::string transform = "";  // empty: none
};
struct TestTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<TestChunk> chunks;
  std::string type = "float32";
};

// The content of `.metadata`.
std::string MetadataOf(const std::vector<TestTensor>& tensors);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_TEST_UTIL_H_
