// Random tensors as files hold them, with the values that the host reads from them.
#ifndef MILLRACE_KERNELS_WEIGHTS_STORED_TEST_UTIL_H_
#define MILLRACE_KERNELS_WEIGHTS_STORED_TEST_UTIL_H_

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "formats/tensors/dequantize.h"
#include "formats/tensors/tensor.h"
#include "kernels/weights/dequantize.h"

namespace millrace::kernels {

inline constexpr StoredType kQuantizedTypes[] = {
    StoredType::kQ8_0,    StoredType::kQ4_1,     StoredType::kQ4_0,  StoredType::kQ5_0,
    StoredType::kQ5_1,    StoredType::kQ2K,      StoredType::kQ3K,   StoredType::kQ4K,
    StoredType::kQ5K,     StoredType::kQ6K,      StoredType::kIq4Nl, StoredType::kMxfp4,
    StoredType::kInt4x32, StoredType::kInt4x128, StoredType::kIq4Xs, StoredType::kIq3S,
    StoredType::kIq3Xxs,  StoredType::kIq2S,     StoredType::kIq2Xs, StoredType::kIq2Xxs,
    StoredType::kIq1S,    StoredType::kIq1M};

// Returns formats/tensors/tensor.h's name of a quantized type.
inline TensorType TensorTypeOf(StoredType type) {
  switch (type) {
    case StoredType::kQ4_1:
      return TensorType::kQ4_1;
    case StoredType::kQ4_0:
      return TensorType::kQ4_0;
    case StoredType::kQ5_0:
      return TensorType::kQ5_0;
    case StoredType::kQ5_1:
      return TensorType::kQ5_1;
    case StoredType::kQ2K:
      return TensorType::kQ2K;
    case StoredType::kQ3K:
      return TensorType::kQ3K;
    case StoredType::kQ4K:
      return TensorType::kQ4K;
    case StoredType::kQ5K:
      return TensorType::kQ5K;
    case StoredType::kQ6K:
      return TensorType::kQ6K;
    case StoredType::kIq4Nl:
      return TensorType::kIq4Nl;
    case StoredType::kMxfp4:
      return TensorType::kMxfp4;
    case StoredType::kInt4x32:
      return TensorType::kInt4x32;
    case StoredType::kInt4x128:
      return TensorType::kInt4x128;
    case StoredType::kIq4Xs:
      return TensorType::kIq4Xs;
    case StoredType::kIq3S:
      return TensorType::kIq3S;
    case StoredType::kIq3Xxs:
      return TensorType::kIq3Xxs;
    case StoredType::kIq2S:
      return TensorType::kIq2S;
    case StoredType::kIq2Xs:
      return TensorType::kIq2Xs;
    case StoredType::kIq2Xxs:
      return TensorType::kIq2Xxs;
    case StoredType::kIq1S:
      return TensorType::kIq1S;
    case StoredType::kIq1M:
      return TensorType::kIq1M;
    default:
      return TensorType::kQ8_0;
  }
}

// Returns where a block has numbers in FP16.
inline std::vector<int> HalvesOf(StoredType type) {
  switch (type) {
    case StoredType::kQ4_1:
    case StoredType::kQ5_1:
    case StoredType::kQ4K:
    case StoredType::kQ5K:
      return {0, 2};
    case StoredType::kQ2K:
      return {80, 82};
    case StoredType::kQ3K:
      return {108};
    case StoredType::kQ6K:
      return {208};
    case StoredType::kMxfp4:
    case StoredType::kInt4x32:
    case StoredType::kInt4x128:
    case StoredType::kIq1M:
      return {};
    default:
      return {0};
  }
}

struct StoredTensor {
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

// Draws all bits of `size` elements, whole blocks; scales are normally distributed numbers, but for
// MXFP4 all exponents whose values are finite.
inline StoredTensor MakeQuantized(StoredType type, size_t size, uint32_t seed) {
  const TensorTypeTraits& traits = Traits(TensorTypeOf(type));
  const size_t blocks = size / traits.block_elements;
  StoredTensor stored;
  stored.bytes.resize(blocks * traits.block_bytes);
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, 0.05f);
  for (uint8_t& byte : stored.bytes) byte = static_cast<uint8_t>(random());
  for (size_t i = 0; i < blocks; ++i) {
    uint8_t* const block = &stored.bytes[i * traits.block_bytes];
    for (const int offset : HalvesOf(type)) {
      const __half number = __float2half(draw(random));
      std::memcpy(block + offset, &number, sizeof(number));
    }
    if (type == StoredType::kIq1M) {  // four bits of the number in each of four words
      const uint16_t number = __half_as_ushort(__float2half(draw(random)));
      for (int word = 0; word < 4; ++word) {
        uint8_t& high = block[49 + 2 * word];
        high = static_cast<uint8_t>((high & 15) | (number >> (4 * word) & 15) << 4);
      }
    }
    if (type == StoredType::kMxfp4) block[0] = static_cast<uint8_t>(i % 252);
    if (type == StoredType::kInt4x32 || type == StoredType::kInt4x128) {
      const float numbers[2] = {draw(random), draw(random)};
      std::memcpy(block, numbers, sizeof(numbers));
    }
  }
  stored.values.resize(size);
  Dequantize(TensorTypeOf(type), {stored.bytes.data(), stored.bytes.size()},
             {stored.values.data(), stored.values.size()});
  return stored;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_STORED_TEST_UTIL_H_
