#include "formats/distributed/torch_type.h"

namespace millrace {
namespace {

constexpr TorchType kTypes[] = {
    {"torch.float32", "torch.FloatStorage", "F32", 4},
    {"torch.bfloat16", "torch.BFloat16Storage", "BF16", 2},
    {"torch.float16", "torch.HalfStorage", "F16", 2},
    {"torch.float64", "torch.DoubleStorage", "F64", 8},
    {"torch.float8_e4m3fn", "", "F8_E4M3", 1},
    {"torch.float8_e5m2", "", "F8_E5M2", 1},
    {"torch.float8_e8m0fnu", "", "F8_E8M0", 1},
    {"torch.int64", "torch.LongStorage", "I64", 8},
    {"torch.int32", "torch.IntStorage", "I32", 4},
    {"torch.int16", "torch.ShortStorage", "I16", 2},
    {"torch.int8", "torch.CharStorage", "I8", 1},
    {"torch.uint8", "torch.ByteStorage", "U8", 1},
    {"torch.bool", "torch.BoolStorage", "BOOL", 1},
};

}  // namespace

absl::Span<const TorchType> TorchTypes() { return kTypes; }

const TorchType* FindTorchType(std::string_view torch) {
  for (const TorchType& type : kTypes) {
    if (type.torch == torch) return &type;
  }
  return nullptr;
}

const TorchType* FindSafetensorsType(std::string_view safetensors) {
  for (const TorchType& type : kTypes) {
    if (type.safetensors == safetensors) return &type;
  }
  return nullptr;
}

}  // namespace millrace
