// Benchmark of a step's small kernels at the widths of Llama-3-8B (4096, 14336, 32 + 2 * 8 heads of
// 128).
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/copy_blocks.h"
#include "kernels/attention/rope_append.h"
#include "kernels/bench_util.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/embed.h"
#include "kernels/elementwise/gate_heads.h"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/launch.cuh"
#include "kernels/norm/rms_norm.h"

namespace millrace::kernels {
namespace {

// The two kinds of a step: BF16, and FP8 whose linears leave their scales to the consumer.
struct Form {
  const char* name;
  Scaling scaling;
  bool scaled;  // the Product before it carries scales
};
constexpr Form kForms[] = {{"bf16", Scaling::kNone, false},
                           {"fp8 tensor", Scaling::kTensor, false},
                           {"fp8 token", Scaling::kToken, false},
                           {"fp8 token, scaled", Scaling::kToken, true},
                           {"fp8 group", Scaling::kTokenGroup, false}};
constexpr int kTokens[] = {1, 16, 64, 256, 4096};

// Holds `inputs` sets of random numbers, each `size` elements long.
template <typename T>
struct Sets {
  Sets(int inputs, int64_t size, float amplitude = 1) : size(size), memory(inputs * size) {
    FillUniform(memory.get(), memory.size(), 7, amplitude);
  }
  T* operator[](int input) const { return memory.get() + input * size; }

  int64_t size;
  DeviceBuffer<T> memory;
};

struct Outputs {
  Outputs(int inputs, int tokens, int64_t stride, const Form& form)
      : form(form),
        stride(stride),
        data(inputs, tokens * stride * bytes()),
        scales(inputs, (stride / kColumnPadding + 1) * PaddedTokens(tokens)) {}
  int64_t bytes() const { return form.scaling == Scaling::kNone ? 2 : 1; }
  Activation operator[](int input) const {
    if (form.scaling == Scaling::kNone) {
      return {data[input], Type::kBf16, form.scaling, stride, nullptr};
    }
    return {data[input], Type::kFp8, form.scaling, stride, scales[input]};
  }

  Form form;
  int64_t stride;
  Sets<uint8_t> data;
  Sets<float> scales;
};

struct Products {
  Products(int inputs, int tokens, int64_t width, bool scaled)
      : width(width),
        scaled(scaled),
        data(inputs, tokens * width, 3),
        token_scales(inputs, PaddedTokens(tokens)),
        channel_scales(inputs, width) {}
  Product operator[](int input) const {
    return {data[input], width, scaled ? token_scales[input] : nullptr,
            scaled ? channel_scales[input] : nullptr};
  }

  int64_t width;
  bool scaled;
  Sets<Bf16> data;
  Sets<float> token_scales, channel_scales;
};

std::string Shape(int tokens, int64_t width, const char* form) {
  return std::to_string(tokens) + " x " + std::to_string(width) + " " + form;
}

void BenchRmsNorm(Bench& bench, int tokens, int width, const Form& form) {
  const double element = form.scaling == Scaling::kNone ? 2 : 1;
  const double bytes = tokens * (10.0 + element) * width + 4.0 * width;
  const int inputs = RotatedInputs(bytes);
  const Sets<float> residual(inputs, int64_t{tokens} * width), weight(inputs, width);
  const Products delta(inputs, tokens, width, form.scaled);
  const Outputs out(inputs, tokens, CeilDiv(width, kColumnPadding) * kColumnPadding, form);
  const double us = bench.Microseconds(inputs, [&](int i, cudaStream_t stream) {
    return LaunchRmsNorm({residual[i], delta[i], weight[i], 1e-5f, tokens, width, out[i]}, stream);
  });
  bench.Row("rms_norm + residual", Shape(tokens, width, form.name), us, bytes);
}

void BenchGatedActivation(Bench& bench, int tokens, int size, const Form& form) {
  const double element = form.scaling == Scaling::kNone ? 2 : 1;
  const double bytes = tokens * (4.0 + element) * size;
  const int inputs = RotatedInputs(bytes);
  const Products gate_up(inputs, tokens, 2 * size, form.scaled);
  const Outputs out(inputs, tokens, size, form);
  const double us = bench.Microseconds(inputs, [&](int i, cudaStream_t stream) {
    return LaunchGatedActivation({gate_up[i], tokens, size, out[i]}, stream);
  });
  bench.Row("gated_activation", Shape(tokens, size, form.name), us, bytes);
  if (form.scaling != Scaling::kToken) return;
  const double portable_us = bench.Microseconds(inputs, [&](int i, cudaStream_t stream) {
    return LaunchGatedActivation({gate_up[i], tokens, size, out[i], true}, stream);
  });
  bench.Row("gated_activation portable", Shape(tokens, size, form.name), portable_us, bytes);
}

void BenchQuantize(Bench& bench, int tokens, int width, const Form& form) {
  const double bytes = tokens * 3.0 * width;
  const int inputs = RotatedInputs(bytes);
  const Sets<Bf16> in(inputs, int64_t{tokens} * width);
  const Outputs out(inputs, tokens, width, form);
  const double us = bench.Microseconds(inputs, [&](int i, cudaStream_t stream) {
    return LaunchQuantize({in[i], width, tokens, width, out[i]}, stream);
  });
  bench.Row("quantize", Shape(tokens, width, form.name), us, bytes);
}

// Qwen3.5-27B's heads.
void BenchGateHeads(Bench& bench, int tokens, const Form& form) {
  constexpr int kHeads = 24, kHeadSize = 256, kWidth = kHeads * kHeadSize;
  constexpr int kQkvWidth = 2 * kWidth + 2 * 4 * kHeadSize;
  const double bytes = tokens * (form.scaling == Scaling::kNone ? 6.0 : 5.0) * kWidth;
  const int inputs = RotatedInputs(bytes);
  const Sets<Bf16> in(inputs, int64_t{tokens} * kWidth);
  const Sets<Bf16> qkv(inputs, int64_t{tokens} * kQkvWidth, 4);
  const Outputs out(inputs, tokens, kWidth, form);
  const double us = bench.Microseconds(inputs, [&](int i, cudaStream_t stream) {
    return LaunchGateHeads({.in = in[i],
                            .in_stride = kWidth,
                            .qkv = {qkv[i], kQkvWidth, nullptr, nullptr},
                            .bias = nullptr,
                            .tokens = tokens,
                            .heads = kHeads,
                            .head_size = kHeadSize,
                            .out = out[i]},
                           stream);
  });
  bench.Row("gate_heads", Shape(tokens, kWidth, form.name), us, bytes);
}

void BenchRopeAppend(Bench& bench, int tokens, bool norm, bool fp8, bool scaled) {
  constexpr int kHeads = 32, kKvHeads = 8, kHeadSize = 128, kBlock = 64, kMaxPositions = 8192;
  constexpr int kWidth = (kHeads + 2 * kKvHeads) * kHeadSize;
  constexpr int64_t kBlockStride = 2 * kKvHeads * kBlock * kHeadSize;
  const int element = fp8 ? 1 : 2;
  const double bytes = tokens * kHeadSize * (4.0 * kHeads + 2.0 * kKvHeads * (2 + element));
  const int inputs = RotatedInputs(bytes);
  // With few tokens, each is at its own position of its own sequence, as in decode; 4096 tokens are
  // one prompt.
  const bool decode = tokens <= 256;
  const int slots = decode ? tokens : 1;
  const int64_t table_stride = kMaxPositions / kBlock;
  const int64_t blocks = slots * (decode ? 1 : table_stride);
  std::vector<int32_t> table(slots * table_stride), positions, slot_of;
  for (int s = 0; s < slots; ++s) {
    for (int64_t b = 0; b < table_stride; ++b) {
      table[s * table_stride + b] = static_cast<int32_t>(decode ? s : b);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    positions.push_back(decode ? 100 + 29 * t : t);
    slot_of.push_back(decode ? t : 0);
  }
  const DeviceBuffer<int32_t> d_table(table), d_positions(positions), d_slots(slot_of);
  const Sets<float> norms(2, kHeadSize);
  const Products qkv(inputs, tokens, kWidth, scaled);
  const Sets<Bf16> q(inputs, int64_t{tokens} * kHeads * kHeadSize);
  const Sets<uint8_t> pages(decode ? std::min(inputs, 64) : inputs,
                            blocks * kBlockStride * element);
  const DeviceBuffer<float2> rotations(kMaxPositions * kHeadSize / 2);
  CheckCuda(LaunchFillRotations({rotations.get(), kMaxPositions, kHeadSize, 5e5, nullptr}, nullptr),
            "rotations");
  const double us = bench.Microseconds(inputs, [&](int i, cudaStream_t stream) {
    return LaunchRopeAppend({.qkv = qkv[i],
                             .tokens = tokens,
                             .heads = kHeads,
                             .positions = d_positions.get(),
                             .slots = d_slots.get(),
                             .tables = {d_table.get(), table_stride},
                             .rope = {.rotations = rotations.get(),
                                      .dimensions = kHeadSize,
                                      .interleaved = false,
                                      .q_norm = norm ? norms[0] : nullptr,
                                      .k_norm = norm ? norms[1] : nullptr,
                                      .norm_epsilon = 1e-6f},
                             .q = q[i],
                             .pages = {pages[decode ? i % 64 : i], fp8 ? Type::kFp8 : Type::kBf16,
                                       kBlockStride, kBlock, kKvHeads, kHeadSize, 1, 1}},
                            stream);
  });
  bench.Row(norm ? "rope_append + q/k norm" : "rope_append",
            Shape(tokens, kWidth, fp8 ? "fp8 pages" : "bf16 pages") + (scaled ? " scaled" : ""), us,
            bytes);
}

void BenchEmbedAndGather(Bench& bench, int tokens) {
  constexpr int kVocab = 128256, kWidth = 4096;
  const Sets<Bf16> table(1, int64_t{kVocab} * kWidth);
  const double embed_bytes = tokens * 6.0 * kWidth;
  const int inputs = RotatedInputs(embed_bytes);
  std::vector<int32_t> ids(int64_t{inputs} * tokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % kVocab);
  const DeviceBuffer<int32_t> d_ids(ids);
  const Sets<float> residual(inputs, int64_t{tokens} * kWidth);
  bench.Row("embed", Shape(tokens, kWidth, ""),
            bench.Microseconds(inputs,
                               [&](int i, cudaStream_t stream) {
                                 return LaunchEmbed({d_ids.get() + int64_t{i} * tokens, table[0],
                                                     kWidth, kVocab, tokens, kWidth, residual[i]},
                                                    stream);
                               }),
            embed_bytes);
  const Outputs out(inputs, tokens, kWidth, kForms[0]);
  const Activation in{table[0], Type::kBf16, Scaling::kNone, kWidth, nullptr};
  bench.Row("gather_rows", Shape(tokens, kWidth, "bf16"),
            bench.Microseconds(
                inputs,
                [&](int i, cudaStream_t stream) {
                  return LaunchGatherRows(
                      {in, kVocab, d_ids.get() + int64_t{i} * tokens, tokens, out[i]}, stream);
                }),
            tokens * 4.0 * kWidth);
}

void BenchCopyBlocks(Bench& bench, int count) {
  constexpr int kLayers = 32, kBlocks = 256;
  constexpr int64_t kBlockBytes = 2 * 8 * 64 * 128 * 2;
  const Sets<uint8_t> arena(1, kLayers * kBlocks * kBlockBytes);
  std::vector<int2> pairs;
  for (int i = 0; i < kBlocks / 2; ++i) pairs.push_back({i, kBlocks / 2 + i});
  const DeviceBuffer<int2> d_pairs(pairs);
  const int inputs = kBlocks / 2 / count;
  bench.Row("copy_blocks", std::to_string(count) + " x 256 KiB x 32 layers",
            bench.Microseconds(inputs,
                               [&](int i, cudaStream_t stream) {
                                 return LaunchCopyBlocks(
                                     {arena[0], kBlocks * kBlockBytes, kBlockBytes, kBlockBytes,
                                      kLayers, d_pairs.get() + i * count, count},
                                     stream);
                               }),
            2.0 * count * kLayers * kBlockBytes);
}

// Does nothing but wait for its predecessor.
__global__ void NothingKernel() { AwaitPredecessor(); }

// Times the small kernels of 32 layers of an FP8 step in one graph, without linears and attention,
// each kernel with inputs of its own. It compares programmatic with plain edges.
void BenchChain(Bench& bench, int tokens, const std::string& which) {
  constexpr int kLayers = 32, kWidth = 4096, kGate = 14336, kHeads = 32, kKvHeads = 8,
                kHeadSize = 128, kBlock = 16, kPositions = 256;
  constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadSize;
  constexpr int64_t kBlockStride = 2 * kKvHeads * kBlock * kHeadSize;
  const Form& form = kForms[3];
  const Sets<float> residual(1, int64_t{tokens} * kWidth), weight(kLayers, kWidth);
  const Products o(kLayers, tokens, kWidth, true), qkv(kLayers, tokens, kQkv, true),
      gate_up(kLayers, tokens, 2 * kGate, true);
  const Outputs normed(1, tokens, kWidth, form), attended(1, tokens, kWidth, form),
      gated(1, tokens, kGate, form);
  const Sets<Bf16> q(1, int64_t{tokens} * kHeads * kHeadSize);
  const Sets<uint8_t> pages(kLayers, tokens * kBlockStride * 2);
  const DeviceBuffer<float2> rotations(kPositions * kHeadSize / 2);
  CheckCuda(LaunchFillRotations({rotations.get(), kPositions, kHeadSize, 5e5, nullptr}, nullptr),
            "rotations");
  std::vector<int32_t> table(int64_t{tokens} * kPositions / kBlock), positions, slots;
  for (int t = 0; t < tokens; ++t) {
    for (int b = 0; b < kPositions / kBlock; ++b) table[t * kPositions / kBlock + b] = t;
    positions.push_back((29 * t + 100) % kPositions);
    slots.push_back(t);
  }
  const DeviceBuffer<int32_t> d_table(table), d_positions(positions), d_slots(slots);

  int launches = 0;
  const auto run = [&](const char* name, auto&& launch) {
    if (which != name && (which != "all" || std::string(name) == "nothing")) return;
    CheckCuda(launch(), name);
    ++launches;
  };
  const auto chain = [&](cudaStream_t stream) {
    launches = 0;
    for (int i = 0; i < kLayers; ++i) {
      run("nothing", [&] { return LaunchDependent(NothingKernel, 1, 32, 0, stream); });
      run("rms_norm", [&] {
        return LaunchRmsNorm({residual[0], o[i], weight[i], 1e-5f, tokens, kWidth, normed[0]},
                             stream);
      });
      run("rope_append", [&] {
        return LaunchRopeAppend(
            {.qkv = qkv[i],
             .tokens = tokens,
             .heads = kHeads,
             .positions = d_positions.get(),
             .slots = d_slots.get(),
             .tables = {d_table.get(), kPositions / kBlock},
             .rope = {.rotations = rotations.get(),
                      .dimensions = kHeadSize,
                      .interleaved = false,
                      .q_norm = nullptr,
                      .k_norm = nullptr,
                      .norm_epsilon = 0},
             .q = q[0],
             .pages = {pages[i], Type::kBf16, kBlockStride, kBlock, kKvHeads, kHeadSize, 1, 1}},
            stream);
      });
      run("quantize", [&] {
        return LaunchQuantize({q[0], kWidth, tokens, kWidth, attended[0]}, stream);
      });
      run("gated_activation", [&] {
        return LaunchGatedActivation({gate_up[i], tokens, kGate, gated[0]}, stream);
      });
    }
  };
  chain(nullptr);  // loads the kernels
  CheckCuda(cudaDeviceSynchronize(), "warm-up");
  const std::string shape = std::to_string(tokens) + " tokens, " + which;
  for (const bool plain : {true, false}) {
    CapturedGraph graph = bench.Capture(chain);
    if (plain) graph.MakeEdgesPlain();
    const double us = bench.ReplayMicroseconds(graph, 25) / launches;
    bench.Row(plain ? "chain, plain edges" : "chain, programmatic", shape, us, 0);
  }
}

// Runs all benchmarks, or those of kernels whose names begin with `wanted`.
void Run(const std::string& wanted) {
  Bench bench("small kernels of a step");
  const auto wants = [&](const std::string& kernel) {
    return kernel.compare(0, wanted.size(), wanted) == 0;
  };
  if (wants("rms_norm")) {
    for (const int tokens : kTokens) {
      for (const Form& form : kForms) BenchRmsNorm(bench, tokens, 4096, form);
    }
    for (const int width : {576, 8192, 16384}) {
      for (const int tokens : {1, 4096}) BenchRmsNorm(bench, tokens, width, kForms[3]);
    }
  }
  if (wants("gated_activation")) {
    for (const int tokens : kTokens) {
      for (const Form& form : kForms) BenchGatedActivation(bench, tokens, 14336, form);
    }
    for (const int tokens : {1, 64, 256, 4096})
      BenchGatedActivation(bench, tokens, 28672, kForms[3]);
  }
  if (wants("quantize")) {
    for (const int tokens : kTokens) {
      for (const Form& form : {kForms[1], kForms[2], kForms[4]})
        BenchQuantize(bench, tokens, 4096, form);
    }
  }
  if (wants("gate_heads")) {
    for (const int tokens : kTokens) {
      for (const Form& form : {kForms[0], kForms[2], kForms[4]}) {
        BenchGateHeads(bench, tokens, form);
      }
    }
  }
  if (wants("rope_append")) {
    for (const int tokens : kTokens) {
      BenchRopeAppend(bench, tokens, false, false, false);
      BenchRopeAppend(bench, tokens, false, true, true);
      BenchRopeAppend(bench, tokens, true, false, true);
    }
  }
  if (wants("embed")) {
    for (const int tokens : kTokens) BenchEmbedAndGather(bench, tokens);
  }
  if (wanted == "prompt") {
    for (const Form& form : kForms) BenchRmsNorm(bench, 4096, 4096, form);
    for (const Form& form : kForms) BenchGatedActivation(bench, 4096, 14336, form);
    for (const Form& form : {kForms[1], kForms[2], kForms[4]}) {
      BenchQuantize(bench, 4096, 4096, form);
    }
    BenchRopeAppend(bench, 4096, false, false, false);
    BenchRopeAppend(bench, 4096, false, true, true);
    BenchRopeAppend(bench, 4096, true, false, true);
  }
  if (wants("chain")) {
    for (const int tokens : {1, 64, 256}) {
      for (const char* which :
           {"nothing", "all", "rms_norm", "rope_append", "quantize", "gated_activation"}) {
        BenchChain(bench, tokens, which);
      }
    }
  }
  if (wants("copy_blocks")) {
    for (const int count : {1, 16}) BenchCopyBlocks(bench, count);
  }
}

}  // namespace
}  // namespace millrace::kernels

// kernels_elementwise_bench [KERNEL]
int main(int argc, char** argv) {
  millrace::kernels::Run(argc > 1 ? argv[1] : "");
  return 0;
}
