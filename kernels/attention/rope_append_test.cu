#include "kernels/attention/rope_append.h"

#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/attention/copy_blocks.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kMaxPositions = 300;
constexpr float kEpsilon = 1e-6f;

struct Shape {
  int tokens, heads, kv_heads, head_size, rope_dimensions, block_size;
  bool interleaved, norm, fp8, scaled;
  bool bias = false;
  bool across = false;  // the norms
  bool gates = false;
};

std::string Name(const Shape& s) {
  std::string name;
  for (const int n : {s.tokens, s.heads, s.kv_heads, s.head_size, s.rope_dimensions, s.block_size,
                      int{s.interleaved}, int{s.norm}, int{s.fp8}, int{s.scaled}, int{s.bias},
                      int{s.across}, int{s.gates}}) {
    name += std::to_string(n) + " ";
  }
  return name;
}

// All memory of a call. Two sequences lie in slots 1 and 3 of a table whose blocks run backwards;
// token t is position 7 + t / 2 of one or the other.
struct Case {
  explicit Case(const Shape& shape)
      : shape(shape),
        width(((shape.gates ? 2 : 1) * shape.heads + 2 * shape.kv_heads) * shape.head_size),
        table_stride((kMaxPositions + shape.block_size - 1) / shape.block_size),
        block_stride(2 * shape.kv_heads * shape.block_size * shape.head_size + 64),
        num_blocks(static_cast<int>(4 * table_stride)),
        qkv(shape.tokens, width, shape.scaled, 1),
        positions(shape.tokens),
        slots(shape.tokens),
        blocks(num_blocks),
        rotations(kMaxPositions * std::max(shape.rope_dimensions / 2, 1)),
        q_norm(RandomNormal((shape.across ? shape.heads : 1) * shape.head_size, 5)),
        k_norm(RandomNormal((shape.across ? shape.kv_heads : 1) * shape.head_size, 6)),
        bias(RandomNormal(width, 7)),
        q(static_cast<size_t>(shape.tokens) * shape.heads * shape.head_size),
        pages(num_blocks * block_stride * (shape.fp8 ? 1 : 2)) {
    for (int t = 0; t < shape.tokens; ++t) {
      host_positions.push_back(7 + t / 2);
      host_slots.push_back(t % 2 == 0 ? 3 : 1);
    }
    for (int b = 0; b < num_blocks; ++b) host_blocks.push_back(num_blocks - 1 - b);
    positions.Upload(host_positions);
    slots.Upload(host_slots);
    blocks.Upload(host_blocks);
    if (shape.rope_dimensions > 0) {
      CheckCuda(LaunchFillRotations(
                    {rotations.get(), kMaxPositions, shape.rope_dimensions, 5e5, nullptr}, nullptr),
                "rotations");
    }
  }

  RopeAppendArgs Args() const {
    return {.qkv = qkv.view,
            .tokens = shape.tokens,
            .heads = shape.heads,
            .positions = positions.get(),
            .slots = slots.get(),
            .tables = {blocks.get(), table_stride},
            .rope = {.rotations = rotations.get(),
                     .dimensions = shape.rope_dimensions,
                     .interleaved = shape.interleaved,
                     .bias = shape.bias ? bias.get() : nullptr,
                     .q_norm = shape.norm ? q_norm.get() : nullptr,
                     .k_norm = shape.norm ? k_norm.get() : nullptr,
                     .norm_epsilon = kEpsilon,
                     .gates = shape.gates},
            .q = q.get(),
            .pages = {pages.get(), shape.fp8 ? Type::kFp8 : Type::kBf16, block_stride,
                      shape.block_size, shape.kv_heads, shape.head_size, shape.fp8 ? 0.02f : 1.0f,
                      shape.fp8 ? 0.005f : 1.0f},
            .norms_across_heads = shape.across};
  }

  // Returns the expected values of a head, counted over q, k and v.
  std::vector<double> Head(int token, int head) const {
    const size_t size = shape.head_size;
    const double* x = qkv.values.data() + static_cast<size_t>(token) * width;
    std::vector<double> row(x, x + width);
    if (shape.bias) {
      const std::vector<float> added = bias.Download();
      for (int i = 0; i < width; ++i) row[i] += added[i];
    }
    const int gates = shape.gates ? std::min(head, shape.heads) : 0;  // before the head
    const auto begin = row.begin() + (head + gates) * size;
    std::vector<double> out(begin, begin + size);
    if (head >= shape.heads + shape.kv_heads) return out;
    if (shape.norm) {
      const bool is_q = head < shape.heads;
      const std::vector<float> weight = is_q ? q_norm.Download() : k_norm.Download();
      // An across-heads norm's first column; such heads have no gates.
      const size_t first = !shape.across ? (head + gates) * size : is_q ? 0 : shape.heads * size;
      const size_t own = shape.across ? head * size - first : 0;
      double squares = 0;
      for (size_t i = first; i < first + weight.size(); ++i) squares += row[i] * row[i];
      const double inverse = 1 / std::sqrt(squares / weight.size() + kEpsilon);
      for (size_t i = 0; i < size; ++i) out[i] *= inverse * weight[own + i];
    }
    const int half = shape.rope_dimensions / 2;
    for (int i = 0; i < half; ++i) {
      const double angle = host_positions[token] * std::pow(5e5, -2.0 * i / shape.rope_dimensions);
      double& a = out[shape.interleaved ? 2 * i : i];
      double& b = out[shape.interleaved ? 2 * i + 1 : i + half];
      const double rotated = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = rotated;
    }
    return out;
  }

  Shape shape;
  int width;
  int64_t table_stride, block_stride;
  int num_blocks;
  TestProduct qkv;
  DeviceBuffer<int32_t> positions, slots, blocks;
  DeviceBuffer<float2> rotations;
  DeviceBuffer<float> q_norm, k_norm, bias;
  DeviceBuffer<Bf16> q;
  DeviceBuffer<uint8_t> pages;
  std::vector<int32_t> host_positions, host_slots, host_blocks;
};

void ExpectCase(const Case& test) {
  const Shape& s = test.shape;
  const std::vector<Bf16> q = test.q.Download();
  std::vector<uint8_t> pages = test.pages.Download();
  const RopeAppendArgs args = test.Args();
  for (int t = 0; t < s.tokens; ++t) {
    for (int h = 0; h < s.heads + 2 * s.kv_heads; ++h) {
      SCOPED_TRACE("token " + std::to_string(t) + " head " + std::to_string(h));
      const std::vector<double> expected = test.Head(t, h);
      if (h < s.heads) {
        ExpectRow(q.data() + (static_cast<size_t>(t) * s.heads + h) * s.head_size, expected.data(),
                  s.head_size);
        continue;
      }
      const int position = test.host_positions[t];
      const int64_t block =
          test.host_blocks[test.host_slots[t] * test.table_stride + position / s.block_size];
      const int64_t at =
          block * test.block_stride +
          (int64_t{h - s.heads} * s.block_size + position % s.block_size) * s.head_size;
      const int bytes = s.fp8 ? 1 : 2;
      uint8_t* found = pages.data() + at * bytes;
      const bool is_value = h >= s.heads + s.kv_heads;
      if (s.fp8) {
        const float scale = is_value ? args.pages.v_scale : args.pages.k_scale;
        ExpectFp8Row(found, {scale}, expected.data(), s.head_size, true);
      } else if (is_value) {
        ExpectRow(reinterpret_cast<const __half*>(found), expected.data(), s.head_size);
      } else {
        ExpectRow(reinterpret_cast<const Bf16*>(found), expected.data(), s.head_size);
      }
      std::fill(found, found + s.head_size * bytes, 0xff);  // as before the call
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(std::count(pages.begin(), pages.end(), 0xff), static_cast<int64_t>(pages.size()));
  EXPECT_TRUE(test.q.GuardsIntact());
  EXPECT_TRUE(test.pages.GuardsIntact());
}

TEST(RopeAppend, MatchesDouble) {
  const std::vector<Shape> shapes = {
      // tokens heads kv size dims block inter norm fp8 scaled
      {1, 32, 8, 128, 128, 64, false, false, false, true},       // Llama-3-8B
      {48, 32, 8, 128, 128, 64, false, true, true, true},        // Qwen3-8B, FP8 pages
      {17, 9, 3, 64, 64, 16, true, false, false, false},         // SmolLM2 from GGUF
      {17, 9, 3, 64, 64, 32, true, true, true, false},           // the same, normed, FP8 pages
      {3, 4, 4, 96, 96, 16, false, true, false, true},           // 12 lanes a head
      {3, 5, 1, 96, 64, 128, true, false, true, true},           // partial rotation
      {65, 3, 1, 256, 64, 64, false, true, false, false},        // likewise, one head a warp
      {65, 8, 2, 256, 256, 32, true, false, true, true},         // full rotation
      {3, 2, 1, 64, 24, 16, false, false, false, false},         // halves of 12 values
      {3, 2, 1, 128, 8, 16, false, true, false, false},          // one lane rotates
      {5, 2, 2, 128, 0, 16, false, true, false, true},           // no rotation
      {5, 4, 2, 128, 128, 16, false, false, false, true, true},  // biases, Qwen2's
      {130, 3, 1, 64, 24, 16, false, true, true, false, true},  // and all else, two tokens a thread
      {255, 7, 1, 64, 64, 16, false, false, false, true},
      // norms across heads
      {3, 16, 16, 128, 128, 64, false, true, false, false, false, true},  // OLMoE
      {2, 40, 8, 128, 128, 64, false, true, true, true, false, true},     // wider than a pass
      {17, 9, 3, 64, 64, 16, true, true, true, true, true,
       true},  // q, k and v in one group of heads
      {130, 5, 2, 96, 64, 32, false, true, false, true, true, true},
      {5, 3, 2, 256, 0, 16, true, true, false, false, true, true},
      // gates
      {3, 24, 4, 256, 64, 16, false, true, false, false, false, false, true},  // Qwen3.5-27B
      {131, 16, 2, 256, 64, 64, false, true, true, true, false, false, true},  // 35B-A3B
      {5, 3, 1, 96, 64, 32, true, false, false, true, true, false, true},
      {7, 5, 2, 64, 16, 16, false, true, false, false, true, false, true}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(Name(shape));
    const Case test(shape);
    ASSERT_EQ(LaunchRopeAppend(test.Args(), nullptr), cudaSuccess);
    ExpectCase(test);
    if (HasFatalFailure()) return;
  }
}

// Sums of squares that are gathered from ranks give the bits of those that the kernel computes, if
// one rank has all heads and the others none.
TEST(RopeAppend, NormsOverTheHeadsOfAllRanks) {
  const Shape shape = {5, 9, 3, 64, 64, 16, true, true, false, true, true, true};
  const int q_width = shape.heads * shape.head_size, k_width = shape.kv_heads * shape.head_size;
  const Case alone(shape), test(shape);
  ASSERT_EQ(LaunchRopeAppend(alone.Args(), nullptr), cudaSuccess);
  const DeviceBuffer<float> squares(2 * shape.tokens);
  HeadSquaresArgs args{.qkv = test.qkv.view,
                       .bias = test.bias.get(),
                       .tokens = shape.tokens,
                       .q_width = q_width,
                       .k_width = k_width,
                       .counts_k = true,
                       .squares = squares.get()};
  ASSERT_EQ(LaunchHeadSquares(args, nullptr), cudaSuccess);
  const std::vector<float> own = squares.Download();
  EXPECT_TRUE(squares.GuardsIntact());
  std::vector<float> gathered;
  for (int t = 0; t < shape.tokens; ++t) {
    gathered.insert(gathered.end(), {0, 0, own[2 * t], own[2 * t + 1], 0, 0});
  }
  const DeviceBuffer<float> all(gathered);
  RopeAppendArgs rope = test.Args();
  rope.rank_squares = all.get();
  rope.ranks = 3;
  rope.all_q = q_width;
  rope.all_k = k_width;
  ASSERT_EQ(LaunchRopeAppend(rope, nullptr), cudaSuccess);
  EXPECT_EQ(test.pages.Download(), alone.pages.Download());
  ExpectCase(test);

  args.counts_k = false;
  ASSERT_EQ(LaunchHeadSquares(args, nullptr), cudaSuccess);
  const std::vector<float> q_alone = squares.Download();
  for (int t = 0; t < shape.tokens; ++t) {
    EXPECT_EQ(q_alone[2 * t], own[2 * t]);
    EXPECT_EQ(q_alone[2 * t + 1], 0);
  }
  args.k_width = 4;
  EXPECT_EQ(LaunchHeadSquares(args, nullptr), cudaErrorInvalidValue);
}

// Values beyond FP16's range, which BF16 inputs can have, saturate in the pages.
TEST(RopeAppend, KeepsValuesFiniteAndNaN) {
  Case test({1, 1, 1, 64, 0, 16, false, false, false, false});
  std::vector<Bf16> row = test.qkv.data.Download();
  const std::vector<float> values = {1e5f, -1e5f, 65280, 3e-8f, 5e-7f, std::nanf("")};
  for (size_t i = 0; i < values.size(); ++i) row[128 + i] = __float2bfloat16(values[i]);
  test.qkv.data.Upload(row);
  ASSERT_EQ(LaunchRopeAppend(test.Args(), nullptr), cudaSuccess);

  const int64_t block = test.host_blocks[3 * test.table_stride];
  const std::vector<uint8_t> pages = test.pages.Download();
  std::vector<__half> found(values.size());
  std::memcpy(found.data(), &pages[2 * (block * test.block_stride + (16 + 7) * 64)],
              found.size() * sizeof(__half));
  EXPECT_EQ(__half2float(found[0]), 65504);
  EXPECT_EQ(__half2float(found[1]), -65504);
  EXPECT_EQ(__half2float(found[2]), 65280);
  for (const int i : {3, 4}) {
    EXPECT_EQ(__half2float(found[i]),
              __half2float(__float2half_rn(__bfloat162float(row[128 + i]))));
  }
  EXPECT_TRUE(std::isnan(__half2float(found[5])));
}

TEST(RopeAppend, TokensBitsDependOnTheTokenAlone) {
  for (const Shape& shape :
       {Shape{65, 32, 8, 128, 128, 64, false, true, true, true},
        Shape{515, 4, 1, 128, 128, 64, false, true, false, true},
        Shape{517, 2, 1, 96, 64, 16, true, true, true, false},
        Shape{65, 24, 8, 128, 128, 64, false, true, false, true, true, true},
        Shape{200, 6, 1, 256, 64, 16, false, true, false, true, false, false, true}}) {
    SCOPED_TRACE(Name(shape));
    const Case all(shape), one_by_one(shape);
    ASSERT_EQ(LaunchRopeAppend(all.Args(), nullptr), cudaSuccess);
    for (int t = 0; t < shape.tokens; ++t) {
      RopeAppendArgs args = one_by_one.Args();
      args.tokens = 1;
      args.qkv.data += t * args.qkv.stride;
      if (shape.scaled) args.qkv.token_scales += t;
      args.positions += t;
      args.slots += t;
      args.q += static_cast<int64_t>(t) * shape.heads * shape.head_size;
      ASSERT_EQ(LaunchRopeAppend(args, nullptr), cudaSuccess);
    }
    EXPECT_EQ(all.pages.Download(), one_by_one.pages.Download());
    const std::vector<Bf16> a = all.q.Download(), b = one_by_one.q.Download();
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(Bf16)), 0);
    EXPECT_TRUE(all.q.GuardsIntact());
    EXPECT_TRUE(all.pages.GuardsIntact());
  }
}

// A captured launch reads the arrays' contents at replay, not at capture.
TEST(RopeAppend, ReplaysWithOtherPositions) {
  const Shape shape{17, 9, 3, 64, 64, 16, true, false, false, true};
  Case replayed(shape);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  EXPECT_EQ(LaunchRopeAppend(replayed.Args(), stream), cudaSuccess);
  CheckCuda(cudaStreamEndCapture(stream, &graph), "capture");
  CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (const int shift : {0, 1, 90}) {
    replayed.pages.Poison();
    for (int t = 0; t < shape.tokens; ++t) replayed.host_positions[t] = shift + 7 + t / 2;
    replayed.positions.Upload(replayed.host_positions);
    CheckCuda(cudaGraphLaunch(executable, stream), "replay");
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    ExpectCase(replayed);
  }
  CheckCuda(cudaGraphExecDestroy(executable), "graph");
  CheckCuda(cudaGraphDestroy(graph), "graph");
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

TEST(RopeAppend, RefusesWhatItCannotDo) {
  const Case test({1, 4, 2, 64, 64, 16, false, true, false, false});
  const auto refused = [&](auto change) {
    RopeAppendArgs args = test.Args();
    change(args);
    return LaunchRopeAppend(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.rope.dimensions = 72; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.rope.dimensions = 20; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.rope.rotations = nullptr; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.rope.k_norm = nullptr; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) {
    a.norms_across_heads = true;
    a.rope.q_norm = a.rope.k_norm = nullptr;
  }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.norms_across_heads = a.rope.gates = true; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) {
    a.rope.gates = true;
    a.qkv.stride = 11 * 64;  // a head less than there are with gates
  }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.pages.head_size = 80; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.pages.block_size = 8; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.pages.k_scale = 0; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.pages.block_stride = 2048; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.qkv.stride = 256; }));
  EXPECT_TRUE(refused([](RopeAppendArgs& a) { a.heads = 0; }));
}

TEST(FillRotations, MatchesDouble) {
  constexpr int kPositions = 131072, kDimensions = 128;
  constexpr double kMagnitude = 1.25;
  std::vector<float> factors(kDimensions / 2, 1.0f);
  for (int i = 40; i < kDimensions / 2; ++i) factors[i] = 8;
  const DeviceBuffer<float> device_factors(factors);
  const DeviceBuffer<float2> table(static_cast<size_t>(kPositions) * kDimensions / 2);
  const FillRotationsArgs args = {table.get(), kPositions,           kDimensions,
                                  5e5,         device_factors.get(), kMagnitude};
  ASSERT_EQ(LaunchFillRotations(args, nullptr), cudaSuccess);
  const std::vector<float2> out = table.Download();
  for (const int p : {0, 1, 2, 1000, 8191, kPositions - 1}) {
    for (int i = 0; i < kDimensions / 2; ++i) {
      const double angle = p * std::pow(5e5, -2.0 * i / kDimensions) / factors[i];
      ASSERT_NEAR(out[p * kDimensions / 2 + i].x, kMagnitude * std::cos(angle), 1e-7)
          << p << " " << i;
      ASSERT_NEAR(out[p * kDimensions / 2 + i].y, kMagnitude * std::sin(angle), 1e-7)
          << p << " " << i;
    }
  }
  EXPECT_TRUE(table.GuardsIntact());
  EXPECT_EQ(LaunchFillRotations({table.get(), 1, 7, 5e5, nullptr}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchFillRotations({table.get(), 1, 8, 0, nullptr}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchFillRotations({table.get(), 1, 8, 5e5, nullptr, 0}, nullptr),
            cudaErrorInvalidValue);
}

TEST(CopyBlocks, CopiesPairsInAllLayersAndNothingElse) {
  constexpr int kLayers = 3, kBlocks = 10;
  for (const int64_t block_bytes : {int64_t{16}, int64_t{16384}, int64_t{65536 + 16}}) {
    const int64_t block_stride = block_bytes + 32, layer_stride = kBlocks * block_stride + 48;
    std::vector<uint8_t> bytes(kLayers * layer_stride);
    std::mt19937 random(1);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    const DeviceBuffer<uint8_t> arena(bytes);
    const std::vector<int2> pairs = {{0, 9}, {0, 4}, {7, 2}};  // a block may be copied twice
    const DeviceBuffer<int2> device_pairs(pairs);
    const CopyBlocksArgs args{.arena = arena.get(),
                              .layer_stride = layer_stride,
                              .block_stride = block_stride,
                              .block_bytes = block_bytes,
                              .layers = kLayers,
                              .pairs = device_pairs.get(),
                              .count = static_cast<int>(pairs.size())};
    ASSERT_EQ(LaunchCopyBlocks(args, nullptr), cudaSuccess);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const int2 pair : pairs) {
        const auto block = [&](int b) {
          return bytes.begin() + layer * layer_stride + b * block_stride;
        };
        std::copy(block(pair.x), block(pair.x) + block_bytes, block(pair.y));
      }
    }
    EXPECT_EQ(arena.Download(), bytes) << block_bytes;
    EXPECT_TRUE(arena.GuardsIntact());

    CopyBlocksArgs bad = args;
    bad.block_bytes = block_stride + 16;
    EXPECT_EQ(LaunchCopyBlocks(bad, nullptr), cudaErrorInvalidValue);
    bad = args;
    bad.block_stride += 8;
    EXPECT_EQ(LaunchCopyBlocks(bad, nullptr), cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace millrace::kernels
