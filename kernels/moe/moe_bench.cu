// A mixture's expert layer, from router to combination, and its grouped linears alone; and dense
// linears with four-bit weights beside BF16. Launches wait for one another in a replayed graph, on
// the weights of as many layers as make them cold. Routing is uniform, by random routers. Bytes are
// those of the experts that were chosen and of the router.
//
//   kernels_moe_bench [mixtral|qwen3|oss|dense]... [tokens]...   dense: of 1, 4, 8, 16, 32, 64
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/grouped_test_util.h"
#include "kernels/gemm/sm90/grouped/dense_tiles.h"
#include "kernels/moe/assign.h"
#include "kernels/moe/combine.h"
#include "kernels/moe/route.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr FourBitFormat kMxfp4 = {FourBitType::kMxfp4, 32};

struct Model {
  const char* name;
  const char* option;
  int experts, chosen;
  int64_t hidden, size;
  Type type;
  WeightScaling scaling;
  Scaling input;
  std::optional<FourBitFormat> four_bit;
};
constexpr WeightScaling kNone = WeightScaling::kNone;
const Model kModels[] = {
    {"Mixtral FP8 channel", "mixtral", 8, 2, 4096, 14336, Type::kFp8, WeightScaling::kChannel,
     Scaling::kToken, std::nullopt},
    {"Mixtral BF16", "mixtral", 8, 2, 4096, 14336, Type::kBf16, kNone, Scaling::kNone,
     std::nullopt},
    {"Qwen3-30B FP8 block", "qwen3", 128, 8, 2048, 768, Type::kFp8, WeightScaling::kBlock,
     Scaling::kTokenGroup, std::nullopt},
    {"Qwen3-30B FP8 channel", "qwen3", 128, 8, 2048, 768, Type::kFp8, WeightScaling::kChannel,
     Scaling::kToken, std::nullopt},
    {"Qwen3-30B BF16", "qwen3", 128, 8, 2048, 768, Type::kBf16, kNone, Scaling::kNone,
     std::nullopt},
    {"Qwen3-30B W4A16, groups of 128", "qwen3", 128, 8, 2048, 768, Type::kBf16, kNone,
     Scaling::kNone, FourBitFormat{FourBitType::kInt4, 128, FourBitScale::kF16, true}},
    {"gpt-oss-20b MXFP4", "oss", 32, 4, 2880, 2880, Type::kBf16, kNone, Scaling::kNone, kMxfp4},
};
constexpr int kTokens[] = {1,   2,   4,   8,   16,  32,   48,   64,   96,  128,
                           192, 256, 384, 512, 768, 1024, 1536, 2048, 4096};
constexpr int kMostTokens = 4096;
constexpr size_t kMostWeightBytes = size_t{24} << 30;

// Gives blocks of kMxfp4 scales as checkpoints have them, around 2^-6: the kernels save a product
// for each pair where all of a block's are below 2.
__global__ void DrawScales(uint8_t* tiles, size_t bytes) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < bytes;
       i += size_t{gridDim.x} * blockDim.x) {
    if (i % kMxfp4.BlockBytes() >= kFourBitCodeBytes) tiles[i] = 118 + tiles[i] % 6;
  }
}

int64_t PaddedColumns(int64_t columns) { return (columns + 127) / 128 * 128; }

// One linear of all experts, in all layers.
class Experts {
 public:
  Experts(const Model& model, int64_t rows, int64_t columns, int layers)
      : model_(model),
        rows_(rows),
        stride_(PaddedColumns(columns)),
        bytes_(model.experts * (model.four_bit.has_value()
                                    ? model.four_bit->Bytes(rows, stride_)
                                    : rows * stride_ * (model.type == Type::kFp8 ? 1 : 2))),
        memory_(bytes_ * layers),
        scales_(std::vector<float>(model.experts * 2 * (rows + rows / 64 * stride_ / 64), 0.01f)) {
    if (model.type == Type::kFp8 || model.four_bit.has_value()) {
      FillUniform(memory_.get(), memory_.size(), 1, 8);
      if (model.four_bit == kMxfp4) DrawScales<<<1024, 256>>>(memory_.get(), memory_.size());
    } else {
      FillUniform(reinterpret_cast<Bf16*>(memory_.get()), memory_.size() / 2, 1);
    }
  }

  GroupedWeight Of(int layer) const {
    return {.data = memory_.get() + layer * bytes_,
            .type = model_.type,
            .scaling = model_.scaling,
            .groups = model_.experts,
            .rows = rows_,
            .stride = stride_,
            .scales = model_.type == Type::kFp8 ? scales_.get() : nullptr,
            .four_bit = model_.four_bit};
  }
  double BytesOfExpert() const { return static_cast<double>(bytes_) / model_.experts; }

 private:
  const Model model_;
  const int64_t rows_, stride_;
  const size_t bytes_;
  DeviceBuffer<uint8_t> memory_;
  DeviceBuffer<float> scales_;
};

class Layers {
 public:
  Layers(const Model& model, int layers)
      : model_(model),
        layers_(layers),
        gate_up_(model, 2 * model.size, model.hidden, layers),
        down_(model, model.hidden, model.size, layers),
        hidden_stride_(PaddedColumns(model.hidden)),
        size_stride_(PaddedColumns(model.size)),
        router_(static_cast<size_t>(layers) * model.experts * model.hidden),
        x_(kMostTokens * hidden_stride_),
        codes_(kMostTokens * hidden_stride_),
        code_scales_(hidden_stride_ / 128 * kMostTokens),
        sorted_(kMostTokens * model.chosen * hidden_stride_ * (model.type == Type::kFp8 ? 1 : 2)),
        sorted_scales_(hidden_stride_ / 128 * kMostTokens * model.chosen),
        logits_(kMostTokens * model.experts),
        ids_(kMostTokens * model.chosen),
        scores_(kMostTokens * model.chosen),
        counters_(std::vector<unsigned>(kMostTokens / kRouteTokens + 1, 0)),
        inner_(kMostTokens * model.chosen * size_stride_),
        inner_codes_(kMostTokens * model.chosen * size_stride_),
        inner_scales_(size_stride_ / 128 * kMostTokens * model.chosen),
        y_(kMostTokens * model.chosen * model.hidden),
        residual_(std::vector<float>(kMostTokens * model.hidden, 0)) {
    FillUniform(router_.get(), router_.size(), 3, 0.1f);
    FillUniform(x_.get(), x_.size(), 4);
  }

  int layers() const { return layers_; }
  GroupedConfig Config(int tile) const { return GroupedConfigOf(gate_up_.Of(0), tile); }
  GroupedConfig DefaultConfig(int tokens) const {
    return DefaultGroupedConfig(gate_up_.Of(0), tokens * model_.chosen);
  }

  // With `rows` it makes the assignment, too.
  cudaError_t Route(int layer, int tokens, cudaStream_t stream,
                    const DeviceRows* rows = nullptr) const {
    const AssignArgs assign = {
        .ids = ids_.get(), .first_expert = 0, .rows = rows == nullptr ? GroupedRows{} : rows->view};
    return LaunchRoute({.x = x_.get(),
                        .x_stride = hidden_stride_,
                        .weight = router_.get() + layer * model_.experts * model_.hidden,
                        .weight_type = Type::kBf16,
                        .bias = nullptr,
                        .correction = nullptr,
                        .tokens = tokens,
                        .hidden = static_cast<int>(model_.hidden),
                        .experts = model_.experts,
                        .rows = model_.experts,
                        .scores = RouterScores::kSoftmax,
                        .chosen = model_.chosen,
                        .renormalize = true,
                        .logits = logits_.get(),
                        .ids = ids_.get(),
                        .token_scores = scores_.get(),
                        .assign = rows == nullptr ? nullptr : &assign,
                        .counters = counters_.get()},
                       stream);
  }
  cudaError_t Assign(const DeviceRows& rows, cudaStream_t stream) const {
    return LaunchAssign({.ids = ids_.get(), .first_expert = 0, .rows = rows.view}, stream);
  }
  // Returns the input of gate and up, by group where they read it so. With block scales and few
  // tokens the linear itself quantizes it.
  Activation Input(int tokens, const DeviceRows& rows, cudaStream_t stream,
                   cudaError_t* error) const {
    const bool plain = model_.type == Type::kBf16 || TakesBf16(rows);
    const Activation in = plain ? Bf16Rows(x_.get(), hidden_stride_)
                                : Quantize(x_, hidden_stride_, model_.hidden, tokens, codes_,
                                           code_scales_, stream, error);
    if (!IsSorted(rows) || *error != cudaSuccess) return in;
    Activation out = in;
    out.data = sorted_.get();
    if (in.scales != nullptr) out.scales = sorted_scales_.get();
    *error = LaunchGatherRows({.in = in,
                               .tokens = tokens,
                               .indices = rows.view.order,
                               .rows = rows.view.pairs,
                               .out = out,
                               .slots = model_.chosen,
                               .count = rows.view.offsets + rows.view.groups},
                              stream);
    return out;
  }
  // Returns the input of down.
  Activation Inner(const DeviceRows& rows, cudaStream_t stream, cudaError_t* error) const {
    if (model_.type == Type::kBf16 || TakesBf16(rows)) return Bf16Rows(inner_.get(), size_stride_);
    return Quantize(inner_, size_stride_, model_.size, rows.view.pairs, inner_codes_, inner_scales_,
                    stream, error);
  }
  cudaError_t GateUp(int layer, int tokens, const GroupedConfig& config, const DeviceRows& rows,
                     const Activation& input, cudaStream_t stream) const {
    return LaunchGroupedLinear({.weight = gate_up_.Of(layer),
                                .rows = &rows.view,
                                .tokens = IsSorted(rows) ? rows.view.pairs : tokens,
                                .slots = IsSorted(rows) ? 1 : model_.chosen,
                                .sorted_input = IsSorted(rows),
                                .sorted_output = IsSorted(rows),
                                .input = input,
                                .gate = GroupedGate::kSilu,
                                .output = inner_.get(),
                                .output_type = Type::kBf16,
                                .output_stride = size_stride_,
                                .config = config},
                               stream);
  }
  cudaError_t Down(int layer, int tokens, const GroupedConfig& config, const DeviceRows& rows,
                   const Activation& input, cudaStream_t stream) const {
    return LaunchGroupedLinear({.weight = down_.Of(layer),
                                .rows = &rows.view,
                                .tokens = tokens * model_.chosen,
                                .slots = 1,
                                .sorted_input = IsSorted(rows),
                                .input = input,
                                .gate = GroupedGate::kNone,
                                .output = y_.get(),
                                .output_type = Type::kBf16,
                                .output_stride = model_.hidden,
                                .config = config},
                               stream);
  }
  cudaError_t Combine(int tokens, cudaStream_t stream) const {
    return LaunchCombine({.residual = residual_.get(),
                          .y = y_.get(),
                          .y_type = Type::kBf16,
                          .y_stride = model_.hidden,
                          .scores = scores_.get(),
                          .ids = nullptr,
                          .factor = 1,
                          .tokens = tokens,
                          .slots = model_.chosen,
                          .width = static_cast<int>(model_.hidden)},
                         stream);
  }

  cudaError_t Launch(int layer, int tokens, const GroupedConfig& config, const DeviceRows& rows,
                     cudaStream_t stream) const {
    const bool at_once = rows.view.pairs <= kFewPairs;
    cudaError_t error = Route(layer, tokens, stream, at_once ? &rows : nullptr);
    if (error == cudaSuccess && !at_once) error = Assign(rows, stream);
    if (error != cudaSuccess) return error;
    const Activation input = Input(tokens, rows, stream, &error);
    if (error == cudaSuccess) error = GateUp(layer, tokens, config, rows, input, stream);
    if (error != cudaSuccess) return error;
    const Activation inner = Inner(rows, stream, &error);
    if (error == cudaSuccess) error = Down(layer, tokens, config, rows, inner, stream);
    return error == cudaSuccess ? Combine(tokens, stream) : error;
  }

  // Mean bytes of what a layer reads of weights, and how many experts that is.
  double TouchedBytes(int tokens, double* experts) const {
    double touched = 0;
    for (int layer = 0; layer < layers_; ++layer) {
      CheckCuda(Route(layer, tokens, nullptr), "route");
      const std::vector<int32_t> ids = ids_.Download();
      touched += static_cast<double>(
          std::set<int32_t>(ids.begin(), ids.begin() + tokens * model_.chosen).size());
    }
    *experts = touched / layers_;
    return *experts * (gate_up_.BytesOfExpert() + down_.BytesOfExpert()) +
           2.0 * static_cast<double>(model_.experts) * static_cast<double>(model_.hidden);
  }
  double DownShare() const {
    return down_.BytesOfExpert() / (gate_up_.BytesOfExpert() + down_.BytesOfExpert());
  }

 private:
  bool IsSorted(const DeviceRows& rows) const {
    return ReadsSorted(gate_up_.Of(0), rows.view.tile_rows);
  }
  bool TakesBf16(const DeviceRows& rows) const {
    return model_.scaling == WeightScaling::kBlock && rows.view.tile_rows <= kMostQuantizedTokens;
  }
  // Returns the rows as a linear's input.
  Activation Quantize(const DeviceBuffer<Bf16>& from, int64_t stride, int64_t width, int rows,
                      const DeviceBuffer<uint8_t>& codes, const DeviceBuffer<float>& scales,
                      cudaStream_t stream, cudaError_t* error) const {
    const Activation out = {codes.get(), Type::kFp8, model_.input, stride, scales.get()};
    *error = LaunchQuantize({.in = from.get(),
                             .in_stride = stride,
                             .tokens = rows,
                             .width = static_cast<int>(width),
                             .out = out},
                            stream);
    return out;
  }

  const Model model_;
  const int layers_;
  const Experts gate_up_, down_;
  const int64_t hidden_stride_, size_stride_;
  DeviceBuffer<Bf16> router_, x_;
  DeviceBuffer<uint8_t> codes_;
  DeviceBuffer<float> code_scales_;
  DeviceBuffer<uint8_t> sorted_;
  DeviceBuffer<float> sorted_scales_, logits_;
  DeviceBuffer<int32_t> ids_;
  DeviceBuffer<float> scores_;
  DeviceBuffer<unsigned> counters_;
  DeviceBuffer<Bf16> inner_;
  DeviceBuffer<uint8_t> inner_codes_;
  DeviceBuffer<float> inner_scales_;
  DeviceBuffer<Bf16> y_;
  DeviceBuffer<float> residual_;
};

// The parts of a layer alone: the routing of the last layer that was routed.
void BenchParts(Bench& bench, const Layers& layers, const std::string& shape, int tokens,
                const GroupedConfig& config, const DeviceRows& rows, double bytes) {
  const int count = layers.layers();
  cudaError_t error = cudaSuccess;
  const auto row = [&](const char* name, double share, auto launch) {
    bench.Row(name, shape, bench.Microseconds(count, launch), share * bytes);
  };
  row("  route", 0, [&](int i, cudaStream_t s) { return layers.Route(i, tokens, s); });
  row("  assign", 0, [&](int, cudaStream_t s) { return layers.Assign(rows, s); });
  const Activation input = layers.Input(tokens, rows, nullptr, &error);
  row("  input", 0, [&](int, cudaStream_t s) {
    cudaError_t own = cudaSuccess;
    layers.Input(tokens, rows, s, &own);
    return own;
  });
  row("  gate and up", 1 - layers.DownShare(),
      [&](int i, cudaStream_t s) { return layers.GateUp(i, tokens, config, rows, input, s); });
  const Activation inner = layers.Inner(rows, nullptr, &error);
  if (inner.type == Type::kFp8) {
    row("  quantize", 0, [&](int, cudaStream_t s) {
      cudaError_t own = cudaSuccess;
      layers.Inner(rows, s, &own);
      return own;
    });
  }
  row("  down", layers.DownShare(),
      [&](int i, cudaStream_t s) { return layers.Down(i, tokens, config, rows, inner, s); });
  row("  combine", 0, [&](int, cudaStream_t s) { return layers.Combine(tokens, s); });
  CheckCuda(error, "quantize");
}

void BenchModel(Bench& bench, const Model& model, const std::set<int>& wanted) {
  const double bytes = static_cast<double>(model.experts * 3 * model.hidden * model.size) *
                       (model.four_bit.has_value() ? 0.53
                        : model.type == Type::kFp8 ? 1
                                                   : 2);
  const double least = bytes * model.chosen / model.experts;  // of one token
  const int count = std::clamp(static_cast<int>(3e8 / least) + 1, 2,
                               std::max(2, static_cast<int>(kMostWeightBytes / bytes)));
  const Layers layers(model, count);
  for (const int tokens : kTokens) {
    if (!wanted.empty() && wanted.count(tokens) == 0) continue;
    double experts = 0;
    const double touched = layers.TouchedBytes(tokens, &experts);
    char shape[64];
    std::snprintf(shape, sizeof(shape), "M %d, %.1f experts", tokens, experts);
    const GroupedConfig known = layers.DefaultConfig(tokens);
    for (const int tile : {8, 16, 32, 64, sm90::kWideTokens, kPromptTile}) {
      if (tile == sm90::kWideTokens && !model.four_bit.has_value()) continue;
      if (tile * 3 < known.tile_tokens || tile > known.tile_tokens * 3) continue;
      const GroupedConfig config = layers.Config(tile);
      const DeviceRows rows(tokens * model.chosen, model.experts, tile);
      const double us = bench.Microseconds(layers.layers(), [&](int i, cudaStream_t stream) {
        return layers.Launch(i, tokens, config, rows, stream);
      });
      const bool is_default = tile == known.tile_tokens;
      bench.Row(
          std::string(model.name) + ", tile " + std::to_string(tile) + (is_default ? " *" : ""),
          shape, us, touched);
      if (is_default) BenchParts(bench, layers, shape, tokens, config, rows, touched);
    }
  }
}

// A dense linear with four-bit weights, beside the same kernel with BF16 weights.
void BenchDense(Bench& bench, int64_t rows, int64_t columns, const std::set<int>& wanted) {
  constexpr Model kForms[] = {
      {"W4A16, symmetric groups of 128", "", 1, 1, 0, 0, Type::kBf16, kNone, Scaling::kNone,
       FourBitFormat{FourBitType::kInt4, 128, FourBitScale::kF16, /*symmetric=*/true}},
      {"W4A16, the same, scales in BF16", "", 1, 1, 0, 0, Type::kBf16, kNone, Scaling::kNone,
       FourBitFormat{FourBitType::kInt4, 128, FourBitScale::kBf16, /*symmetric=*/true}},
      {"W4A16, groups of 128 with zero points", "", 1, 1, 0, 0, Type::kBf16, kNone, Scaling::kNone,
       FourBitFormat{FourBitType::kInt4, 128}},
      {"W4A16, groups of 32", "", 1, 1, 0, 0, Type::kBf16, kNone, Scaling::kNone,
       FourBitFormat{FourBitType::kInt4, 32}},
      {"W4A16, groups of 32 with minima", "", 1, 1, 0, 0, Type::kBf16, kNone, Scaling::kNone,
       FourBitFormat{FourBitType::kInt4Affine, 32}},
      {"W4A16, MXFP4", "", 1, 1, 0, 0, Type::kBf16, kNone, Scaling::kNone, kMxfp4},
  };
  constexpr Model kPlain = {"BF16", "", 1, 1, 0, 0, Type::kBf16, kNone, Scaling::kNone, {}};
  const DeviceBuffer<Bf16> input(512 * PaddedColumns(columns)), output(512 * rows);
  FillUniform(input.get(), input.size(), 5);
  const auto time = [&](const Experts& weight, int count, int tokens) {
    return bench.Microseconds(count, [&](int i, cudaStream_t stream) {
      return LaunchGroupedLinear({.weight = weight.Of(i),
                                  .rows = nullptr,
                                  .tokens = tokens,
                                  .slots = 1,
                                  .input = Bf16Rows(input.get(), PaddedColumns(columns)),
                                  .gate = GroupedGate::kNone,
                                  .output = output.get(),
                                  .output_type = Type::kBf16,
                                  .output_stride = rows,
                                  .config = weight.Of(i).four_bit.has_value()
                                                ? DenseFourBitConfig(weight.Of(i), tokens)
                                                : DefaultGroupedConfig(weight.Of(i), tokens)},
                                 stream);
    });
  };
  const double plain_bytes = 2.0 * static_cast<double>(rows * columns);
  const int plain_count = RotatedInputs(plain_bytes);
  const Experts plain(kPlain, rows, columns, plain_count);
  for (const Model& form : kForms) {
    const double bytes = static_cast<double>(form.four_bit->Bytes(rows, PaddedColumns(columns)));
    const int count = RotatedInputs(bytes);
    const Experts weight(form, rows, columns, count);
    for (const int tokens : {1, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 384, 512}) {
      if (!wanted.empty() && wanted.count(tokens) == 0) continue;
      bench.Row(
          form.name,
          std::to_string(rows) + " x " + std::to_string(columns) + ", M " + std::to_string(tokens),
          time(weight, count, tokens), bytes, time(plain, plain_count, tokens));
    }
  }
}

int Main(int argc, char** argv) {
  std::set<int> tokens;
  std::set<std::string> names;
  for (int i = 1; i < argc; ++i) {
    if (const int number = std::atoi(argv[i]); number > 0) {
      tokens.insert(number);
    } else {
      names.insert(argv[i]);
    }
  }
  const auto wanted = [&](const char* option) { return names.empty() || names.count(option) > 0; };
  Bench bench("mixtures of experts and four-bit weights (peer: BF16 weights)");
  if (wanted("dense")) {
    // Those of Llama-3-8B after the first one; then two whose tiles are few more than the SMs, and
    // two whose tiles are few more than twice the SMs (gate and up of Qwen3-8B and Qwen2.5-1.5B).
    for (const auto& [rows, columns] :
         {std::pair(8192, 8192), std::pair(6144, 4096), std::pair(4096, 4096),
          std::pair(28672, 4096), std::pair(4096, 14336), std::pair(14336, 4096),
          std::pair(10240, 8192), std::pair(24576, 4096), std::pair(17920, 1536)}) {
      BenchDense(bench, rows, columns, tokens);
    }
  }
  for (const Model& model : kModels) {
    if (wanted(model.option)) BenchModel(bench, model, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace millrace::kernels

int main(int argc, char** argv) { return millrace::kernels::Main(argc, argv); }
