// How the linears of a checkpoint's layers are quantized.
#ifndef MILLRACE_FORMATS_TENSORS_QUANT_SCHEME_H_
#define MILLRACE_FORMATS_TENSORS_QUANT_SCHEME_H_

#include <cstdint>

#include "formats/tensors/tensor.h"

namespace millrace {

// The elements of a weight [out, in] that share a scale: rectangles of `rows` outputs by `columns`
// inputs, cut off at the weight's edges. 0 stands for all of them, so that a group along the input
// (GPTQ's, AWQ's, MXFP4's) is {1, N}.
struct QuantGroup {
  int rows = 0;
  int columns = 0;

  // Return the number of groups below and beside each other in a weight [out, in].
  int64_t Down(int64_t out) const { return rows == 0 ? 1 : (out + rows - 1) / rows; }
  int64_t Across(int64_t in) const { return columns == 0 ? 1 : (in + columns - 1) / columns; }

  bool operator==(const QuantGroup&) const = default;
};
inline constexpr QuantGroup kPerTensor{0, 0};
inline constexpr QuantGroup kPerChannel{1, 0};
inline constexpr int kFp8Block = 128;
inline constexpr QuantGroup kFp8Blocks{kFp8Block, kFp8Block};  // DeepSeek's, arXiv:2412.19437

// How a quantized linear's input gets its scale. Static: it is one number of the checkpoint.
// Dynamic: it is made from each token, one scale, or one for each `columns` of the weight's group
// where that has several rows, too.
enum class ActivationScaling { kDynamic, kStatic };

// The tensors that hold a linear's weight.
enum class Packing {
  kNone,           // <name>.weight, and its scales in <name>.weight_scale
  kGptq,           // 4 bits, as packed_weight.h has the layouts: arXiv:2210.17323,
  kAwq,            // arXiv:2306.00978,
  kPackQuantized,  // and compressed-tensors' format of that name
};

// Unless it is packed, a weight's element is code * scale, and codes have no zero points and stand
// in the order of the inputs. A packed one's is scale * (code - zero), with codes and zeros from 0
// to 15, and inputs are not quantized. What a checkpoint says beyond these fields is refused by its
// readers (formats/huggingface/hf_quantization.h).
struct QuantScheme {
  TensorType type = TensorType::kFp8E4m3;  // of the codes, where they are not packed
  QuantGroup group = kPerTensor;
  ActivationScaling activations = ActivationScaling::kDynamic;

  Packing packing = Packing::kNone;
  bool symmetric = true;        // all zeros are 8
  bool zeros_less_one = false;  // GPTQ: zeros are stored less 1, a word of them at once
  // Groups may be made of any inputs, and a tensor says which group each belongs to.
  bool reordered = false;

  bool static_activations() const { return activations == ActivationScaling::kStatic; }
  bool packed() const { return packing != Packing::kNone; }

  bool operator==(const QuantScheme&) const = default;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_QUANT_SCHEME_H_
