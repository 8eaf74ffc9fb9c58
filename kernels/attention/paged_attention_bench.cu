// Benchmark of paged attention, with Llama-3-8B's heads (32/8 x 128) unless the shape says
// otherwise. Decode rows count the bytes of keys and values; prefill rows also print the arithmetic
// rate.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/attention/paged_attention.h"
#include "kernels/attention/rope_append.h"
#include "kernels/bench_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Shape {
  int rows;
  int tokens;  // of a row; its last ones
  int length;
  Type type = Type::kBf16;
  int block_size = 16;
  int heads = 32;
  int kv_heads = 8;
  int head_size = 128;
};

std::string Name(const Shape& shape) {
  std::ostringstream name;
  name << "B" << shape.rows << " S" << shape.length;
  if (shape.tokens > 1) name << " last " << shape.tokens;
  if (shape.type == Type::kFp8) name << " fp8";
  if (shape.block_size != 16) name << " block " << shape.block_size;
  if (shape.heads != 32 || shape.head_size != 128) {
    name << " " << shape.heads << "/" << shape.kv_heads << "x" << shape.head_size;
  }
  return name.str();
}

// Times layers as in a step, each after a plan: append and attention that reads ahead, attention
// with fused rope and append, each of them alone, and attention that does not read ahead.
// Attention's queries are the previous attention's output or the append's.
void RunDecodeLayers(Bench& bench, const Shape& shape, const AttentionArgs& args, int inputs,
                     int row_blocks, double bytes) {
  const int layers = (64 + inputs - 1) / inputs * inputs;
  const int64_t width = (int64_t{shape.heads} + 2 * shape.kv_heads) * shape.head_size;
  DeviceBuffer<Bf16> qkv(shape.rows * width);
  FillUniform(qkv.get(), qkv.size(), 3, 2);
  DeviceBuffer<Bf16> q(shape.rows * args.q_stride), out(shape.rows * args.out.stride);
  DeviceBuffer<int32_t> nothing(2);
  DeviceBuffer<float2> rotations(int64_t{shape.length} * shape.head_size / 2);
  CheckCuda(
      LaunchFillRotations({rotations.get(), shape.length, shape.head_size, 1e4, nullptr}, nullptr),
      "rotations");
  const Product product = {qkv.get(), width, nullptr, nullptr};
  const Rope rope = {.rotations = rotations.get(),
                     .dimensions = shape.head_size,
                     .interleaved = false,
                     .q_norm = nullptr,
                     .k_norm = nullptr,
                     .norm_epsilon = 0};
  enum class Append { kNot, kBefore, kInside };
  const auto run = [&](const char* name, Append append, bool attends, bool reads_ahead) {
    const auto launch = [&](int layer, cudaStream_t stream) {
      AttentionArgs a = args;
      const bool swaps = append == Append::kNot && layer % 2 == 1;
      a.q = swaps ? out.get() : q.get();
      a.out.data = swaps ? q.get() : out.get();
      a.launch_number = reads_ahead ? layer + 1 : 0;
      if (append == Append::kInside) {
        a.q = nullptr;
        a.qkv = product;
        a.rope = rope;
      }
      a.tables.blocks += int64_t{layer % inputs} * shape.rows * row_blocks;
      if (layer == 0) {  // a step begins
        CheckCuda(cudaMemcpyAsync(nothing.get(), nothing.get() + 1, sizeof(int32_t),
                                  cudaMemcpyDeviceToDevice, stream),
                  "copy");
        CheckCuda(LaunchPlanAttention(args.step, stream), "plan");
      }
      if (append == Append::kBefore) {
        CheckCuda(LaunchRopeAppend({.qkv = product,
                                    .tokens = shape.rows,
                                    .heads = shape.heads,
                                    .positions = args.step.row_start,
                                    .slots = args.step.row_slot,
                                    .tables = a.tables,
                                    .rope = rope,
                                    .q = q.get(),
                                    .pages = a.pages},
                                   stream),
                  "append");
      }
      return attends ? LaunchPagedAttention(a, stream) : cudaSuccess;
    };
    bench.Row(name, Name(shape), bench.Microseconds(layers, launch), attends ? bytes : 0);
  };
  FillUniform(q.get(), q.size(), 2, 2);
  run("decode", Append::kNot, true, true);
  run("decode, not ahead", Append::kNot, true, false);
  run("append, decode", Append::kBefore, true, true);
  run("append", Append::kBefore, false, false);
  if (shape.heads / shape.kv_heads <= 8) run("decode that appends", Append::kInside, true, true);
}

void RunShape(Bench& bench, const Shape& shape) {
  const int element = shape.type == Type::kFp8 ? 1 : 2;
  const int row_blocks = (shape.length + shape.block_size - 1) / shape.block_size;
  const int64_t block_elements = int64_t{2} * shape.kv_heads * shape.block_size * shape.head_size;
  const int64_t width = int64_t{shape.heads} * shape.head_size;
  const int tokens = shape.rows * shape.tokens;
  const double bytes =
      1.0 * shape.rows * shape.length * 2 * shape.kv_heads * shape.head_size * element +
      2.0 * tokens * width * sizeof(Bf16);
  const int inputs = RotatedInputs(bytes);
  const int blocks = inputs * shape.rows * row_blocks;

  DeviceBuffer<uint8_t> pages(blocks * block_elements * element);
  if (shape.type == Type::kFp8) {
    FillUniform(pages.get(), pages.size(), 1, 2);
  } else {
    FillUniform(reinterpret_cast<Bf16*>(pages.get()), pages.size() / 2, 1, 2);
  }
  std::vector<int32_t> shuffled(blocks);
  std::iota(shuffled.begin(), shuffled.end(), 0);
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
  DeviceBuffer<int32_t> tables(shuffled);
  std::vector<int32_t> first(shape.rows + 1), start(shape.rows, shape.length - shape.tokens),
      slot(shape.rows);
  for (int r = 0; r <= shape.rows; ++r) first[r] = r * shape.tokens;
  std::iota(slot.begin(), slot.end(), 0);
  DeviceBuffer<int32_t> row_first(first), row_start(start), row_slot(slot);
  DeviceBuffer<Bf16> q(tokens * width), out(tokens * width);
  FillUniform(q.get(), q.size(), 2, 2);

  AttentionStep step = {.rows = shape.rows,
                        .max_tokens = tokens,
                        .max_row_tokens = shape.tokens,
                        .row_first = row_first.get(),
                        .row_start = row_start.get(),
                        .row_slot = row_slot.get(),
                        .heads = shape.heads,
                        .kv_heads = shape.kv_heads,
                        .window = 0,
                        .plan = nullptr};
  DeviceBuffer<uint8_t> plan(AttentionPlanBytes(step));
  DeviceBuffer<uint8_t> scratch(AttentionScratchBytes(step, shape.head_size));
  step.plan = plan.get();
  CheckCuda(LaunchPlanAttention(step, nullptr), "plan");
  CheckCuda(cudaDeviceSynchronize(), "plan");
  const AttentionArgs args = {.step = step,
                              .q = q.get(),
                              .q_stride = width,
                              .pages = {.data = pages.get(),
                                        .type = shape.type,
                                        .block_stride = block_elements,
                                        .block_size = shape.block_size,
                                        .kv_heads = shape.kv_heads,
                                        .head_size = shape.head_size,
                                        .k_scale = 1,
                                        .v_scale = 1},
                              .tables = {.blocks = tables.get(), .stride = row_blocks},
                              .out = Bf16Rows(out.get(), width),
                              .scale = 1 / std::sqrt(static_cast<float>(shape.head_size)),
                              .soft_cap = 0,
                              .scratch = scratch.get()};
  const auto launch = [&](int input, cudaStream_t stream, bool portable) {
    AttentionArgs rotated = args;
    rotated.portable = portable;
    rotated.tables.blocks += int64_t{input} * shape.rows * row_blocks;
    return LaunchPagedAttention(rotated, stream);
  };
  const auto run = [&](const char* name, bool portable) {
    const double us = bench.Microseconds(
        inputs, [&](int input, cudaStream_t stream) { return launch(input, stream, portable); });
    bench.Row(name, Name(shape), us, bytes);
    const double pairs = shape.tokens * (shape.length - (shape.tokens - 1) / 2.0);
    std::printf("  %s: %.0f TFLOP/s\n", Name(shape).c_str(),
                shape.rows * pairs * 4 * width / us / 1e6);
  };
  if (shape.tokens > 1) {
    run("prefill", false);
    run("prefill, portable", true);
    return;
  }
  RunDecodeLayers(bench, shape, args, inputs, row_blocks, bytes);
  if (shape.type == Type::kBf16) {
    const double plan_us = bench.Microseconds(
        1, [&](int, cudaStream_t stream) { return LaunchPlanAttention(step, stream); });
    bench.Row("plan, once a step", Name(shape), plan_us, 0);
  }
}

void RunDecode(Bench& bench) {
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const auto& [rows, length] :
         {std::pair(1, 200), std::pair(8, 200), std::pair(32, 200), std::pair(64, 200),
          std::pair(128, 200), std::pair(256, 139), std::pair(1, 1024), std::pair(1, 8192),
          std::pair(1, 32768), std::pair(16, 2048), std::pair(64, 2048), std::pair(128, 1024),
          std::pair(256, 2048)}) {
      RunShape(bench, {.rows = rows, .tokens = 1, .length = length, .type = type});
    }
  }
  for (const int block_size : {32, 64, 128}) {
    RunShape(bench, {.rows = 64, .tokens = 1, .length = 2048, .block_size = block_size});
  }
  for (const int head_size : {64, 96, 256}) {
    RunShape(bench, {.rows = 64, .tokens = 1, .length = 2048, .head_size = head_size});
  }
  RunShape(bench, {.rows = 64, .tokens = 1, .length = 2048, .heads = 8});
  RunShape(bench, {.rows = 64, .tokens = 1, .length = 2048, .heads = 64});
}

void RunPrompts(Bench& bench) {
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const auto& [rows, tokens, length] :
         {std::tuple(1, 512, 512), std::tuple(1, 4096, 4096), std::tuple(8, 2048, 2048),
          std::tuple(1, 512, 8192)}) {
      RunShape(bench, {.rows = rows, .tokens = tokens, .length = length, .type = type});
    }
  }
  for (const int head_size : {64, 96, 256}) {
    RunShape(bench, {.rows = 1, .tokens = 4096, .length = 4096, .head_size = head_size});
  }
}

}  // namespace
}  // namespace millrace::kernels

// kernels_attention_bench [decode | prompts]
int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  millrace::kernels::Bench bench("Paged attention");
  if (wanted != "prompts") millrace::kernels::RunDecode(bench);
  if (wanted != "decode") millrace::kernels::RunPrompts(bench);
}
