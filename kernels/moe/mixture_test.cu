// A whole mixture of experts made of these kernels, in a graph: router, assignment, both grouped
// linears with the quantization of their inputs, and combination.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/grouped_test_util.h"
#include "kernels/graph_test_util.h"
#include "kernels/moe/assign.h"
#include "kernels/moe/combine.h"
#include "kernels/moe/route.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kExperts = 12, kChosen = 3, kHidden = 320, kSize = 160;
constexpr int64_t kHiddenStride = 384, kSizeStride = 256;
constexpr int kMaxTokens = 400;

// FP8's scales that are known must be given; a mixture has those that are computed.
bool Runs(const GroupedForm& form) { return form.input != Scaling::kTensor; }

// The weights and the memory of a mixture.
class Mixture {
 public:
  explicit Mixture(const GroupedForm& form)
      : form_(form),
        gate_up_(form, kExperts, 2 * kSize, kHidden, 1, true),
        down_(form, kExperts, kHidden, kSize, 1, false),
        host_router_(RandomNormal(kExperts * kHidden, 8, 0.1f)),
        router_(host_router_),
        x_(kMaxTokens * kHiddenStride),
        quantized_(kMaxTokens * kHiddenStride),
        quantized_scales_(kHiddenStride / 128 * kMaxTokens),
        sorted_(kMaxTokens * kChosen * kHiddenStride * 2),
        sorted_scales_(kHiddenStride / 128 * PaddedTokens(kMaxTokens * kChosen)),
        logits_(kMaxTokens * kExperts),
        ids_(kMaxTokens * kChosen),
        scores_(kMaxTokens * kChosen),
        counters_(std::vector<unsigned>(kMaxTokens / kRouteTokens + 1, 0)),
        hidden_(kMaxTokens * kChosen * kSizeStride),
        codes_(kMaxTokens * kChosen * kSizeStride),
        codes_scales_(kSizeStride / 128 * PaddedTokens(kMaxTokens * kChosen)),
        y_(kMaxTokens * kChosen * kHidden),
        residual_(kMaxTokens * kHidden) {}

  void Upload(const std::vector<Bf16>& x) { x_.Upload(x); }
  void Clear() {
    CheckCuda(cudaMemset(residual_.get(), 0, residual_.bytes()), "clear");
    hidden_.Poison(), codes_.Poison(), y_.Poison(), ids_.Poison(), scores_.Poison();
    CheckCuda(cudaDeviceSynchronize(), "clear");
  }
  std::vector<float> Residual() const { return residual_.Download(); }
  std::vector<int32_t> Ids() const { return ids_.Download(); }
  std::vector<float> Scores() const { return scores_.Download(); }
  bool GuardsIntact() const {
    return residual_.GuardsIntact() && y_.GuardsIntact() && hidden_.GuardsIntact() &&
           codes_.GuardsIntact() && ids_.GuardsIntact() && counters_.GuardsIntact();
  }

  // The router makes the assignment where it can, and tiles are of 8 rows.
  void Launch(int tokens, int tile, const DeviceRows& rows, cudaStream_t stream) const {
    const AssignArgs assign = {.ids = ids_.get(), .first_expert = 0, .rows = rows.view};
    const bool at_once = tile == 8 && tokens * kChosen <= kFewPairs;
    CheckCuda(LaunchRoute({.x = x_.get(),
                           .x_stride = kHiddenStride,
                           .weight = router_.get(),
                           .weight_type = Type::kF32,
                           .bias = nullptr,
                           .correction = nullptr,
                           .tokens = tokens,
                           .hidden = kHidden,
                           .experts = kExperts,
                           .rows = kExperts,
                           .scores = RouterScores::kSoftmax,
                           .chosen = kChosen,
                           .renormalize = true,
                           .logits = logits_.get(),
                           .ids = ids_.get(),
                           .token_scores = scores_.get(),
                           .assign = at_once ? &assign : nullptr,
                           .counters = counters_.get()},
                          stream),
              "route");
    if (!at_once) CheckCuda(LaunchAssign(assign, stream), "assign");
    const GroupedConfig config = {tile, 16, 264};
    const bool sorted = ReadsSorted(gate_up_.Weight(), tile);
    const int pairs = tokens * kChosen;
    const Activation input = sorted ? Sorted(rows, stream)
                                    : Quantized(tile, x_, tokens, kHidden, kHiddenStride,
                                                quantized_, quantized_scales_, stream);
    CheckCuda(LaunchGroupedLinear({.weight = gate_up_.Weight(),
                                   .rows = &rows.view,
                                   .tokens = sorted ? pairs : tokens,
                                   .slots = sorted ? 1 : kChosen,
                                   .sorted_input = sorted,
                                   .sorted_output = sorted,
                                   .input = input,
                                   .bias = gate_up_.bias(),
                                   .gate = GroupedGate::kClampedSwish,
                                   .output = hidden_.get(),
                                   .output_type = Type::kBf16,
                                   .output_stride = kSizeStride,
                                   .config = config},
                                  stream),
              "gate and up");
    CheckCuda(LaunchGroupedLinear({.weight = down_.Weight(),
                                   .rows = &rows.view,
                                   .tokens = pairs,
                                   .slots = 1,
                                   .sorted_input = sorted,
                                   .input = Quantized(tile, hidden_, pairs, kSize, kSizeStride,
                                                      codes_, codes_scales_, stream),
                                   .bias = down_.bias(),
                                   .gate = GroupedGate::kNone,
                                   .output = y_.get(),
                                   .output_type = Type::kBf16,
                                   .output_stride = kHidden,
                                   .config = config},
                                  stream),
              "down");
    CheckCuda(LaunchCombine({.residual = residual_.get(),
                             .y = y_.get(),
                             .y_type = Type::kBf16,
                             .y_stride = kHidden,
                             .scores = scores_.get(),
                             .ids = nullptr,
                             .factor = 1,
                             .tokens = tokens,
                             .slots = kChosen,
                             .width = kHidden},
                            stream),
              "combine");
  }

  // Returns what a token adds to the residual, computed in double from the experts that were chosen
  // for it.
  std::vector<double> Reference(const Bf16* x, const int32_t* ids, const float* scores) const {
    std::vector<double> sum(kHidden);
    for (int slot = 0; slot < kChosen; ++slot) {
      const int expert = ids[slot];
      std::vector<double> hidden(kSize);
      for (int i = 0; i < kSize; ++i) {
        double factors[2];
        for (int half = 0; half < 2; ++half) {
          const int row = i / 8 * 16 + i % 8 + 8 * half;
          factors[half] = gate_up_.host_bias()[expert * 2 * kSize + row];
          for (int c = 0; c < kHidden; ++c) {
            factors[half] += static_cast<float>(x[c]) * gate_up_.WeightAt(expert, row, c);
          }
        }
        const double gate = std::min(factors[0], 7.0), up = std::clamp(factors[1], -7.0, 7.0);
        hidden[i] = gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
      }
      for (int row = 0; row < kHidden; ++row) {
        double y = down_.host_bias()[expert * kHidden + row];
        for (int i = 0; i < kSize; ++i) y += hidden[i] * down_.WeightAt(expert, row, i);
        sum[row] += scores[slot] * y;
      }
    }
    return sum;
  }

 private:
  // Returns x by group as a linear's input.
  Activation Sorted(const DeviceRows& rows, cudaStream_t stream) const {
    const int pairs = rows.view.pairs, tokens = pairs / kChosen;
    const Activation in = Quantized(kPromptTile, x_, tokens, kHidden, kHiddenStride, quantized_,
                                    quantized_scales_, stream);
    Activation out = in;
    out.data = sorted_.get();
    if (out.scales != nullptr) out.scales = sorted_scales_.get();
    CheckCuda(LaunchGatherRows({.in = in,
                                .tokens = tokens,
                                .indices = rows.view.order,
                                .rows = pairs,
                                .out = out,
                                .slots = kChosen,
                                .count = rows.view.offsets + kExperts},
                               stream),
              "gather");
    return out;
  }

  // Returns the rows as a linear's input, quantized where the form says so and the linear does not.
  Activation Quantized(int tile, const DeviceBuffer<Bf16>& from, int rows, int width,
                       int64_t stride, const DeviceBuffer<uint8_t>& codes,
                       const DeviceBuffer<float>& scales, cudaStream_t stream) const {
    if (form_.type == Type::kBf16 || (form_.weight == WeightScaling::kBlock && tile == 8)) {
      return Bf16Rows(from.get(), stride);
    }
    const Activation out = {codes.get(), Type::kFp8, form_.input, stride, scales.get()};
    CheckCuda(
        LaunchQuantize(
            {.in = from.get(), .in_stride = stride, .tokens = rows, .width = width, .out = out},
            stream),
        "quantize");
    return out;
  }

  const GroupedForm form_;
  const GroupedProblem gate_up_, down_;
  const std::vector<float> host_router_;
  const DeviceBuffer<float> router_;
  DeviceBuffer<Bf16> x_;
  DeviceBuffer<uint8_t> quantized_;
  DeviceBuffer<float> quantized_scales_;
  DeviceBuffer<uint8_t> sorted_;
  DeviceBuffer<float> sorted_scales_, logits_;
  DeviceBuffer<int32_t> ids_;
  DeviceBuffer<float> scores_;
  DeviceBuffer<unsigned> counters_;
  DeviceBuffer<Bf16> hidden_;
  DeviceBuffer<uint8_t> codes_;
  DeviceBuffer<float> codes_scales_;
  DeviceBuffer<Bf16> y_;
  DeviceBuffer<float> residual_;
};

std::vector<Bf16> RandomTokens(uint32_t seed) {
  std::vector<float> values = RandomNormal(kMaxTokens * kHiddenStride, seed);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % kHiddenStride >= kHidden) values[i] = 0;
  }
  return ToBf16(values);
}

// One graph for each number of tokens, replayed with other tokens and so other experts.
TEST(MixtureTest, AddsTheExpertsOutputsInAGraph) {
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  for (const GroupedForm& form : kGroupedForms) {
    if (!Runs(form)) continue;
    Mixture mixture(form);
    const std::vector<Bf16> sets[2] = {RandomTokens(20), RandomTokens(21)};
    std::vector<float> first[2];  // of the largest number of tokens, by set
    for (const int tokens : {kMaxTokens, 1, 2, 8, 33}) {
      for (const int tile : {8, 64, kPromptTile}) {
        SCOPED_TRACE(testing::Message() << form.name << ", " << tokens << " tokens, tile " << tile);
        const DeviceRows rows(tokens * kChosen, kExperts, tile);
        mixture.Upload(sets[0]);
        mixture.Launch(tokens, tile, rows, stream);  // loads the kernels
        CheckCuda(cudaStreamSynchronize(stream), "launch");
        CapturedGraph graph(stream,
                            [&](cudaStream_t on) { mixture.Launch(tokens, tile, rows, on); });
        for (const int set : {0, 1}) {
          mixture.Upload(sets[set]);
          mixture.Clear();
          graph.Replay(stream);
          CheckCuda(cudaStreamSynchronize(stream), "replay");
          const std::vector<float> residual = mixture.Residual();
          EXPECT_TRUE(mixture.GuardsIntact());
          if (first[set].empty()) first[set] = residual;
          ASSERT_TRUE(std::equal(residual.begin(), residual.begin() + tokens * kHidden,
                                 first[set].begin()));
          if (tile != 8 || tokens == 1) continue;
          const std::vector<int32_t> ids = mixture.Ids();
          const std::vector<float> scores = mixture.Scores();
          for (int token = 0; token < tokens; token += 19) {
            const std::vector<double> expected = mixture.Reference(
                &sets[set][token * kHiddenStride], &ids[token * kChosen], &scores[token * kChosen]);
            ASSERT_LE(RowError(&residual[token * kHidden], expected.data(), kHidden),
                      form.type == Type::kFp8 ? 4e-3 : 2e-5)
                << "token " << token;
          }
        }
      }
    }
  }
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

}  // namespace
}  // namespace millrace::kernels
