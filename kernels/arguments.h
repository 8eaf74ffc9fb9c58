// Checks that launch functions share: the constraints of the structs in types.h, before anything
// runs.
#ifndef MILLRACE_KERNELS_ARGUMENTS_H_
#define MILLRACE_KERNELS_ARGUMENTS_H_

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

inline bool IsAligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

inline bool IsValid(const Activation& a, int64_t width) {
  const bool scaled = a.type == Type::kFp8 && a.scaling != Scaling::kNone && a.scales != nullptr;
  const bool plain = a.type == Type::kBf16 && a.scaling == Scaling::kNone;
  return (scaled || plain) && a.data != nullptr && IsAligned16(a.data) && a.stride >= width &&
         a.stride % kColumnPadding == 0;
}

inline bool IsValid(const Product& p, int64_t width) {
  return p.data != nullptr && IsAligned16(p.data) && IsAligned16(p.channel_scales) &&
         p.stride >= width && p.stride % 8 == 0;
}

inline bool IsScaled(const Product& p) {
  return p.token_scales != nullptr || p.channel_scales != nullptr;
}

inline bool IsValid(const KvPages& p) {
  const bool sizes =
      (p.block_size == 16 || p.block_size == 32 || p.block_size == 64 || p.block_size == 128) &&
      (p.head_size == 64 || p.head_size == 96 || p.head_size == 128 || p.head_size == 256) &&
      p.kv_heads > 0;
  return sizes && p.data != nullptr && IsAligned16(p.data) && p.block_stride % 16 == 0 &&
         p.block_stride >= int64_t{2} * p.kv_heads * p.block_size * p.head_size &&
         ((p.type == Type::kBf16 && p.k_scale == 1 && p.v_scale == 1) ||
          (p.type == Type::kFp8 && p.k_scale > 0 && p.v_scale > 0));
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ARGUMENTS_H_
