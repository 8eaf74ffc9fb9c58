// Tests that consumers of different forms can share an op's output on a GPU: each reads the same
// values as from an output of its own.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/decode_graphs.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// The handles in the order in which models/decoder.cc requests them from its placer.
constexpr EmbeddingId kEmbedding{0};
constexpr NormId kNorm{0};
constexpr LinearId kHead{0};
constexpr LinearId kQkv{1};
constexpr LinearId kOutput{2};
constexpr LinearId kGateUp{3};

// A model whose head reads FP8 in groups of 128 columns, and whose layers read BF16. All widths are
// one, so that both may consume every op's output.
std::unique_ptr<CudaModel> LoadMixed() {
  TinyLlama shape = SmallModel(TensorType::kBf16, TensorType::kBf16);
  shape.ffn = shape.hidden;
  CudaSpec device = Device();
  device.quantize_head = true;
  auto model = LoadCudaModel({ModelPath(shape)}, device);
  CheckOk(model.status());
  return *std::move(model);
}

// The bytes of a form's tokens: its elements, and the scales that its memory holds behind them.
std::vector<uint8_t> Read(const CudaInputForm& form) {
  const kernels::Activation& values = form.values;
  const int tokens = form.rows.tokens();
  const auto copy = [](const void* from, size_t bytes, std::vector<uint8_t>& to) {
    std::vector<uint8_t> part(bytes);
    CheckOk(ToStatus(cudaMemcpy(part.data(), from, bytes, cudaMemcpyDeviceToHost), "a test"));
    to.insert(to.end(), part.begin(), part.end());
  };
  std::vector<uint8_t> read;
  const int64_t element_bytes = values.type == kernels::Type::kFp8 ? 1 : 2;
  copy(values.data, tokens * values.stride * element_bytes, read);
  if (values.scaling == kernels::Scaling::kTokenGroup) {
    for (int64_t group = 0; group < values.stride / 128; ++group) {
      copy(values.scales + group * kernels::PaddedTokens(tokens), tokens * sizeof(float), read);
    }
  }
  return read;
}

const CudaInputForm& FormOf(const LinearInput& input, kernels::Type type) {
  for (const CudaInputForm& form : static_cast<const CudaLinearInput&>(*input).forms) {
    if (form.values.type == type) return form;
  }
  CheckOk(absl::NotFoundError("the input has no such form"));
  std::abort();
}

TEST(CudaFormsTest, ConsumersOfDifferentFormsShareAnOutput) {
  const std::unique_ptr<CudaModel> model = LoadMixed();
  ASSERT_EQ(model->weights.Linear(kHead).input, kernels::Scaling::kTokenGroup);
  ASSERT_EQ(model->weights.Linear(kQkv).input, kernels::Scaling::kNone);
  // Rows of the padding slot, whose input stays on the device behind this step.
  constexpr int kRows = 3;
  CheckOk(RunPaddingStep(*model, kRows, 1));
  auto memory = DeviceMemory::Allocate(size_t{64} << 20, "a test");
  CheckOk(memory.status());
  CudaOps ops(model->ops->context(), memory->data(), memory->bytes(), model->stream.get());
  CudaStepInput step;
  step.rows = step.tokens = step.wanted = kRows;
  AttentionSpec spec;
  spec.num_heads = 3;
  spec.num_kv_heads = 1;
  spec.head_size = 64;
  spec.scale = 0.125f;
  spec.rope = model->ops->context().rope;

  AttentionSpec gated = spec;  // the product's columns are more than one head and its gate take
  gated.num_heads = 1;
  gated.output_gate = true;

  const auto embed = [&] {
    ops.BeginStep(step);
    return ops.Embed(kEmbedding, 1);
  };
  const auto norm = [&](const Residual& residual, Consumers consumers) {
    return ops.Norm(kNorm, residual, consumers);
  };
  const auto attention = [&](const AttentionSpec& of, Consumers consumers) {
    const LinearInput x = norm(embed(), {kQkv});
    const Query q = ops.RopeAppend(0, of, std::nullopt, ops.QkvLinear(kQkv, x));
    return ops.Attention(0, of, q, consumers);
  };
  const std::vector<std::pair<const char*, std::function<LinearInput(Consumers)>>> outputs = {
      {"Norm", [&](Consumers consumers) { return norm(embed(), consumers); }},
      {"RowLinear",
       [&](Consumers consumers) {
         Residual residual = embed();
         return ops.RowLinear(kOutput, norm(residual, {kOutput}), {}, residual, kNorm, consumers);
       }},
      {"GatedLinear",
       [&](Consumers consumers) {
         return ops.GatedLinear(kGateUp, norm(embed(), {kGateUp}), GateFunction::kSilu, consumers);
       }},
      {"Attention", [&](Consumers consumers) { return attention(spec, consumers); }},
      {"Attention with gates", [&](Consumers consumers) { return attention(gated, consumers); }}};
  for (const auto& [name, output] : outputs) {
    SCOPED_TRACE(name);
    const LinearInput both = output({kQkv, kHead});
    const LinearInput bf16 = output({kQkv});
    const LinearInput fp8 = output({kHead});
    CheckOk(ops.TakeStatus());
    CheckOk(ToStatus(cudaStreamSynchronize(model->stream.get()), "a test"));
    using kernels::Type;
    EXPECT_EQ(Read(FormOf(both, Type::kBf16)), Read(FormOf(bf16, Type::kBf16)));
    EXPECT_EQ(Read(FormOf(both, Type::kFp8)), Read(FormOf(fp8, Type::kFp8)));
    // The linears take them.
    (void)ops.QkvLinear(kQkv, both);
    (void)ops.Head(kHead, {}, both);
    CheckOk(ops.TakeStatus());
    CheckOk(ToStatus(cudaStreamSynchronize(model->stream.get()), "a test"));
  }
}

}  // namespace
}  // namespace millrace::cuda
