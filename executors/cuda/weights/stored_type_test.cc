#include "executors/cuda/weights/stored_type.h"

#include <cstddef>
#include <optional>
#include <set>

#include "formats/tensors/tensor.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// Whatever is quantized is dequantized on the device, each type by a reader of its own.
TEST(StoredTypeTest, EveryQuantizedTypeHasAReader) {
  std::set<kernels::StoredType> readers;
  size_t types = 0;
  for (int i = 0; i < kNumTensorTypes; ++i) {
    const auto type = static_cast<TensorType>(i);
    const std::optional<kernels::StoredType> reader = StoredTypeOf(type);
    EXPECT_EQ(reader.has_value(), Traits(type).quantized || IsFloat(type)) << Traits(type).name;
    if (!reader.has_value()) continue;
    readers.insert(*reader);
    ++types;
  }
  EXPECT_EQ(readers.size(), types);
}

}  // namespace
}  // namespace millrace::cuda
