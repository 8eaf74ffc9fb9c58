#include "server/convert/element_conversion.h"

#include <cmath>
#include <cstring>

#include "base/strings.h"
#include "formats/tensors/float16.h"

namespace millrace {
namespace {

struct Float32 {
  using Stored = float;
  static float Load(float stored) { return stored; }
  static float Store(float value) { return value; }
};
struct Float16 {
  using Stored = uint16_t;
  static float Load(uint16_t stored) { return HalfToFloat(stored); }
  static uint16_t Store(float value) { return FloatToHalf(value); }
};
struct BFloat16 {
  using Stored = uint16_t;
  static float Load(uint16_t stored) { return Bf16ToFloat(stored); }
  static uint16_t Store(float value) { return FloatToBf16(value); }
};

// Returns the number of elements that became infinite.
template <typename From, typename To>
int64_t CastAll(const uint8_t* in, size_t elements, uint8_t* out) {
  int64_t lost = 0;
  for (size_t i = 0; i < elements; ++i) {
    typename From::Stored from;
    std::memcpy(&from, in + i * sizeof(from), sizeof(from));
    const float value = From::Load(from);
    const typename To::Stored to = To::Store(value);
    lost += std::isfinite(value) && !std::isfinite(To::Load(to)) ? 1 : 0;
    std::memcpy(out + i * sizeof(to), &to, sizeof(to));
  }
  return lost;
}

template <typename From>
int64_t CastFrom(const uint8_t* in, size_t elements, const TorchType& to, uint8_t* out) {
  if (to.safetensors == "F32") return CastAll<From, Float32>(in, elements, out);
  if (to.safetensors == "F16") return CastAll<From, Float16>(in, elements, out);
  return CastAll<From, BFloat16>(in, elements, out);
}

}  // namespace

bool IsCast(const TorchType& type) {
  return type.safetensors == "F32" || type.safetensors == "F16" || type.safetensors == "BF16";
}

absl::Status CastElements(const TorchType& from, absl::Span<const uint8_t> in, const TorchType& to,
                          absl::Span<uint8_t> out) {
  const size_t elements = in.size() / from.bytes;
  const int64_t lost =
      from.safetensors == "F32"   ? CastFrom<Float32>(in.data(), elements, to, out.data())
      : from.safetensors == "F16" ? CastFrom<Float16>(in.data(), elements, to, out.data())
                                  : CastFrom<BFloat16>(in.data(), elements, to, out.data());
  if (lost == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("holds numbers that are too large for ", to.torch));
}

void PairsToHalves(absl::Span<const uint8_t> in, int64_t rows, absl::Span<uint8_t> out) {
  const size_t row_bytes = in.size() / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t to = row / 2 + row % 2 * (rows / 2);
    std::memcpy(out.data() + to * row_bytes, in.data() + row * row_bytes, row_bytes);
  }
}

}  // namespace millrace
