#include "executors/cuda/operand_bytes.h"

#include "executors/cuda/weights/weight_loader.h"

namespace millrace::cuda {

int64_t ScaleCount(kernels::Scaling scaling, int64_t stride, int tokens) {
  switch (scaling) {
    case kernels::Scaling::kNone:
    case kernels::Scaling::kTensor:
      return 0;
    case kernels::Scaling::kToken:
      return tokens;
    case kernels::Scaling::kTokenGroup:
      return stride / 128 * kernels::PaddedTokens(tokens);
  }
  return 0;
}

int64_t BytesOf(const kernels::Activation& x, int tokens) {
  return tokens * x.stride * static_cast<int64_t>(ElementBytes(x.type)) +
         ScaleCount(x.scaling, x.stride, tokens) * static_cast<int64_t>(sizeof(float));
}

int64_t BytesOf(const kernels::InputRow& row) {
  return int64_t{row.width} * (row.plain != nullptr ? 2 : 4 + 2 + 4 + 4);
}

int64_t BytesOf(const kernels::Weight& weight) {
  int64_t scales = 0;
  if (weight.scaling == kernels::WeightScaling::kChannel) scales = weight.rows;
  if (weight.scaling == kernels::WeightScaling::kBlock) {
    scales = (weight.rows + 127) / 128 * kernels::BlockScaleStride(weight.stride);
  }
  return weight.rows * weight.stride * static_cast<int64_t>(ElementBytes(weight.type)) +
         scales * static_cast<int64_t>(sizeof(float));
}

int64_t BytesOf(const kernels::GroupedWeight& weight) {
  if (weight.four_bit.has_value()) {
    return weight.groups * weight.four_bit->Bytes(weight.rows, weight.stride);
  }
  const int64_t one = BytesOf(kernels::Weight{.data = weight.data,
                                              .type = weight.type,
                                              .scaling = weight.scaling,
                                              .rows = weight.rows,
                                              .stride = weight.stride,
                                              .scales = weight.scales});
  return weight.groups * one;
}

}  // namespace millrace::cuda
