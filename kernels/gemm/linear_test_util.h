// For the tests of linears: the forms that there are, and a problem of one on the device.
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_TEST_UTIL_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_TEST_UTIL_H_

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/gemm/linear.h"
#include "kernels/test_util.h"
#include "kernels/weights/fill.h"

namespace millrace::kernels {

inline const CublasLt& Library() {
  static const CublasLt* const library = [] {
    std::string error;
    const CublasLt* opened = CublasLt::Open(&error).release();
    if (opened == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
    return opened;
  }();
  return *library;
}

// A form of linear: types and where the scales lie.
struct Form {
  const char* name;
  Type type;
  WeightScaling weight;
  Scaling input;
  Type output;

  GemmDesc Desc(int64_t rows, int64_t stride) const {
    return {.rows = rows,
            .stride = stride,
            .weight = type,
            .weight_scaling = weight,
            .input = type,
            .input_scaling = input,
            .output = output};
  }
  size_t ElementBytes() const { return type == Type::kFp8 ? 1 : 2; }
  size_t OutputBytes() const { return output == Type::kF32 ? 4 : 2; }
};

inline constexpr Form kForms[] = {
    {"BF16", Type::kBf16, WeightScaling::kNone, Scaling::kNone, Type::kBf16},
    {"BF16 to F32", Type::kBf16, WeightScaling::kNone, Scaling::kNone, Type::kF32},
    {"FP8 tensor x tensor", Type::kFp8, WeightScaling::kTensor, Scaling::kTensor, Type::kBf16},
    {"FP8 channel x token", Type::kFp8, WeightScaling::kChannel, Scaling::kToken, Type::kBf16},
    {"FP8 channel x tensor", Type::kFp8, WeightScaling::kChannel, Scaling::kTensor, Type::kBf16},
    {"FP8 tensor x token", Type::kFp8, WeightScaling::kTensor, Scaling::kToken, Type::kBf16},
    {"FP8 block x group", Type::kFp8, WeightScaling::kBlock, Scaling::kTokenGroup, Type::kBf16},
    {"FP8 block x group to F32", Type::kFp8, WeightScaling::kBlock, Scaling::kTokenGroup,
     Type::kF32},
    {"FP8 to F32", Type::kFp8, WeightScaling::kTensor, Scaling::kTensor, Type::kF32},
};

inline size_t WeightScaleCount(WeightScaling scaling, int64_t rows, int64_t stride) {
  switch (scaling) {
    case WeightScaling::kNone:
    case WeightScaling::kTensor:
      return 1;
    case WeightScaling::kChannel:
      return rows;
    case WeightScaling::kBlock:
      return (rows + 127) / 128 * BlockScaleStride(stride);
  }
  return 0;
}

inline size_t InputScaleCount(Scaling scaling, int64_t tokens, int64_t stride) {
  switch (scaling) {
    case Scaling::kNone:
    case Scaling::kTensor:
      return 1;
    case Scaling::kToken:
      return tokens;
    case Scaling::kTokenGroup:
      return stride / 128 * PaddedTokens(tokens);
  }
  return 0;
}

inline std::vector<float> RandomScales(size_t count, uint32_t seed) {
  std::vector<float> scales = RandomNormal(count, seed);
  for (float& scale : scales) scale = 0.01f + 0.01f * std::min(std::abs(scale), 2.0f);
  return scales;
}

// The operands of one linear, on the device.
class Problem {
 public:
  Problem(const Form& form, int64_t rows, int64_t stride, int64_t tokens, int64_t output_stride)
      : form_(form),
        rows_(rows),
        stride_(stride),
        tokens_(tokens),
        output_stride_(output_stride),
        weight_(rows * stride * form.ElementBytes()),
        input_(PaddedTokens(tokens) * stride * form.ElementBytes()),
        weight_scales_(RandomScales(WeightScaleCount(form.weight, rows, stride), 1)),
        input_scales_(RandomScales(InputScaleCount(form.input, tokens, stride), 2)),
        output_(PaddedTokens(tokens) * output_stride * form.OutputBytes()),
        workspace_(LinearOptions().workspace_bytes),
        tile_counter_(std::vector<unsigned>{0}) {
    Fill(weight_.get(), rows, 3);
    Fill(input_.get(), PaddedTokens(tokens), 4);
  }

  // Codes of FP8 are drawn from all magnitudes below 8; BF16 from [-1, 1].
  void Fill(uint8_t* out, int64_t rows, uint64_t seed) const {
    const float bound = form_.type == Type::kFp8 ? 8 : 1;
    CheckCuda(LaunchFill({.out = out,
                          .type = form_.type,
                          .rows = rows,
                          .columns = stride_,
                          .stride = stride_,
                          .seed = seed,
                          .low = -bound,
                          .high = bound},
                         nullptr),
              "fill");
  }

  // On the first `tokens` tokens. The scales of groups lie by the number of tokens: those of a
  // problem with fewer tokens than it was made for are made of the same first tokens.
  LinearArgs Args(const LinearPlan* plan, int64_t tokens) {
    if (form_.input == Scaling::kTokenGroup) UploadGroupScales(tokens);
    return {.plan = plan,
            .weight = {.data = weight_.get(),
                       .type = form_.type,
                       .scaling = form_.weight,
                       .rows = rows_,
                       .stride = stride_,
                       .scales = form_.type == Type::kFp8 ? weight_scales_.get() : nullptr},
            .input = {.data = input_.get(),
                      .type = form_.type,
                      .scaling = form_.input,
                      .stride = stride_,
                      .scales = form_.type == Type::kFp8 ? input_scales_.get() : nullptr},
            .tokens = tokens,
            .output = output_.get(),
            .output_stride = output_stride_,
            .workspace = workspace_.get(),
            .tile_counter = tile_counter_.get()};
  }

  // The bytes of the first `tokens` rows of the output of a run on as many.
  cudaError_t Run(const LinearPlan* plan, int64_t tokens, std::vector<uint8_t>* bytes,
                  int64_t capacity = 0) {
    output_.Poison();
    LinearArgs args = Args(plan, tokens);
    args.capacity = capacity;
    const cudaError_t error = LaunchLinear(args, nullptr);
    bytes->resize(tokens * output_stride_ * form_.OutputBytes());
    CheckCuda(cudaMemcpy(bytes->data(), output_.get(), bytes->size(), cudaMemcpyDeviceToHost),
              "download");
    return error;
  }

  std::vector<float> Weight() const { return Decode(weight_); }
  std::vector<float> Input() const { return Decode(input_); }
  float WeightScale(int64_t row, int64_t column) const {
    const std::vector<float>& scales = host_weight_scales_;
    switch (form_.weight) {
      case WeightScaling::kNone:
      case WeightScaling::kChannel:  // left to the reader
        return 1;
      case WeightScaling::kTensor:
        return scales[0];
      case WeightScaling::kBlock:
        return scales[row / 128 * BlockScaleStride(stride_) + column / 128];
    }
    return 0;
  }
  float InputScale(int64_t token, int64_t column) const {
    const std::vector<float>& scales = host_input_scales_;
    switch (form_.input) {
      case Scaling::kNone:
      case Scaling::kToken:  // left to the reader
        return 1;
      case Scaling::kTensor:
        return scales[0];
      case Scaling::kTokenGroup:
        return scales[column / 128 * PaddedTokens(tokens_) + token];
    }
    return 0;
  }
  bool GuardsIntact() const {
    return output_.GuardsIntact() && tile_counter_.GuardsIntact() && workspace_.GuardsIntact() &&
           weight_.GuardsIntact() && input_.GuardsIntact();
  }
  DeviceBuffer<uint8_t>& input() { return input_; }
  DeviceBuffer<uint8_t>& output() { return output_; }
  DeviceBuffer<float>& input_scales() { return input_scales_; }

 private:
  void UploadGroupScales(int64_t tokens) {
    const int64_t from = PaddedTokens(tokens_), to = PaddedTokens(tokens);
    std::vector<float> scales(input_scales_.size(), 0);
    for (int64_t group = 0; group < stride_ / 128; ++group) {
      for (int64_t token = 0; token < tokens; ++token) {
        scales[group * to + token] = host_input_scales_[group * from + token];
      }
    }
    input_scales_.Upload(scales);
  }

  std::vector<float> Decode(const DeviceBuffer<uint8_t>& memory) const {
    const std::vector<uint8_t> bytes = memory.Download();
    std::vector<float> values(bytes.size() / form_.ElementBytes());
    for (size_t i = 0; i < values.size(); ++i) {
      if (form_.type == Type::kFp8) {
        values[i] = FromFp8(bytes[i]);
      } else {
        Bf16 value;
        std::memcpy(&value, &bytes[2 * i], 2);
        values[i] = static_cast<float>(value);
      }
    }
    return values;
  }

  const Form form_;
  const int64_t rows_, stride_, tokens_, output_stride_;
  DeviceBuffer<uint8_t> weight_, input_;
  DeviceBuffer<float> weight_scales_, input_scales_;
  const std::vector<float> host_weight_scales_ = weight_scales_.Download();
  const std::vector<float> host_input_scales_ = input_scales_.Download();
  DeviceBuffer<uint8_t> output_, workspace_;
  DeviceBuffer<unsigned> tile_counter_;
};

inline const LinearPlan* Plan(LinearPlanner* planner, const GemmDesc& desc) {
  std::string error;
  const LinearPlan* plan = planner->Plan(desc, &error);
  if (plan == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
  return plan;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_TEST_UTIL_H_
