// Tests that decode with fused rope and append gives the bits, in outputs and pages, of decode
// after a separate append.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/attention/attention_cases.h"
#include "kernels/attention/decode_launch.cuh"
#include "kernels/attention/rope_append.h"
#include "kernels/test_util.h"

namespace millrace::kernels::attention {
namespace {

struct Shape {
  int heads, kv_heads, head_size, dimensions, block_size;
  bool interleaved, norms, fp8, scaled;
  int window = 0;
  bool bias = false;
  bool sinks = false;
  bool gates = false;

  int QkvColumns() const { return ((gates ? 2 : 1) * heads + 2 * kv_heads) * head_size; }
};

std::string Name(const Shape& s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + "x" +
         std::to_string(s.head_size) + " rotary " + std::to_string(s.dimensions) + " block " +
         std::to_string(s.block_size) + (s.interleaved ? " interleaved" : "") +
         (s.norms ? " normed" : "") + (s.fp8 ? " fp8" : "") + (s.scaled ? " scaled" : "") +
         " window " + std::to_string(s.window) + (s.bias ? " biased" : "") +
         (s.sinks ? " sinks" : "") + (s.gates ? " gates" : "");
}

// Lengths of the sequences, including the step's token. Padding rows follow, whose single position
// lies in one shared block.
const std::vector<int> kLengths = {1, 2, 16, 17, 64, 65, 200, 255, 256, 257, 1025, 3000};
constexpr int kPadding = 3, kUnused = 2;
constexpr int kMaxPositions = 3000;

class World {
 public:
  explicit World(const Shape& shape, const std::vector<int>& lengths = kLengths)
      : shape_(shape),
        lengths_(lengths),
        rows_(static_cast<int>(lengths.size()) + kPadding + kUnused),
        tokens_(rows_ - kUnused),
        width_(shape.heads * shape.head_size),
        row_blocks_(CeilDiv(kMaxPositions, shape.block_size)),
        block_stride_(2 * shape.kv_heads * shape.block_size * shape.head_size + 16),
        qkv_(tokens_, shape.QkvColumns(), shape.scaled, 1),
        q_norm_(RandomNormal(shape.head_size, 5)),
        k_norm_(RandomNormal(shape.head_size, 6)),
        bias_(RandomNormal(shape.QkvColumns(), 7)),
        sinks_(RandomNormal(shape.heads, 8)),
        first_(rows_ + 1),
        start_(rows_),
        slot_(rows_),
        tables_(rows_ * row_blocks_),
        rotations_(kMaxPositions * std::max(shape.dimensions / 2, 1)),
        q_(tokens_ * width_),
        out_(tokens_ * width_),
        plan_(AttentionPlanBytes(Step())),
        scratch_(AttentionScratchBytes(Step(), shape.head_size)) {
    std::vector<int32_t> first, start, slot, tables(rows_ * row_blocks_, -1);
    int blocks = 1;  // block 0 is the padding block
    for (int r = 0; r < rows_; ++r) {
      const bool is_own = r < static_cast<int>(lengths_.size());
      first.push_back(std::min(r, tokens_));
      start.push_back(is_own ? lengths_[r] - 1 : 0);
      slot.push_back(r);
      if (!is_own) tables[r * row_blocks_] = 0;
      for (int b = 0; is_own && b * shape.block_size < lengths_[r]; ++b) {
        tables[r * row_blocks_ + b] = blocks++;
      }
    }
    first.push_back(tokens_);
    first_.Upload(first), start_.Upload(start), slot_.Upload(slot), tables_.Upload(tables);
    if (shape.dimensions > 0) {
      CheckCuda(LaunchFillRotations(
                    {rotations_.get(), kMaxPositions, shape.dimensions, 5e5, nullptr}, nullptr),
                "rotations");
    }
    old_ = Old(tables, blocks);
  }

  struct Result {
    std::vector<Bf16> out;
    std::vector<uint8_t> pages;
  };

  // Runs `launch(args)`: with fused rope if `fused`, otherwise after an append.
  template <typename Launch>
  Result Run(bool fused, const Launch& launch) {
    const DeviceBuffer<uint8_t> pages(old_);
    out_.Poison();
    CheckCuda(LaunchPlanAttention(Step(), nullptr), "plan");
    AttentionArgs args = Args(pages.get());
    if (fused) {
      args.qkv = qkv_.view;
      args.rope = GetRope();
    } else {
      CheckCuda(LaunchRopeAppend(AppendArgs(pages.get()), nullptr), "append");
      args.q = q_.get();
      args.q_stride = width_;
    }
    EXPECT_EQ(launch(args), cudaSuccess);
    Result result = {out_.Download(), pages.Download()};
    EXPECT_TRUE(out_.GuardsIntact() && pages.GuardsIntact() && scratch_.GuardsIntact() &&
                plan_.GuardsIntact());
    // The padding block holds the last write of any padding row, and after an append all of them
    // read the same one. So neither the block nor the padding rows' outputs are compared.
    std::fill_n(result.pages.begin(), block_stride_ * ElementSize(), 0);
    for (size_t i = lengths_.size() * width_; i < result.out.size(); ++i) {
      EXPECT_TRUE(std::isfinite(__bfloat162float(result.out[i])));
      result.out[i] = 0;
    }
    return result;
  }

  AttentionArgs Args(uint8_t* pages) const {
    AttentionArgs args = {};
    args.step = Step();
    args.pages = Pages(pages);
    args.tables = {tables_.get(), row_blocks_};
    args.out = Bf16Rows(out_.get(), width_);
    args.scale = 0.09f;
    args.sinks = shape_.sinks ? sinks_.get() : nullptr;
    args.scratch = scratch_.get();
    return args;
  }
  Rope GetRope() const {
    return {.rotations = rotations_.get(),
            .dimensions = shape_.dimensions,
            .interleaved = shape_.interleaved,
            .bias = shape_.bias ? bias_.get() : nullptr,
            .q_norm = shape_.norms ? q_norm_.get() : nullptr,
            .k_norm = shape_.norms ? k_norm_.get() : nullptr,
            .norm_epsilon = 1e-6f,
            .gates = shape_.gates};
  }
  const Product& Qkv() const { return qkv_.view; }

 private:
  int64_t ElementSize() const { return shape_.fp8 ? 1 : 2; }

  // Returns pages with the old positions' keys and values. All other memory is NaN.
  std::vector<uint8_t> Old(const std::vector<int32_t>& tables, int blocks) const {
    std::vector<uint8_t> pages(blocks * block_stride_ * ElementSize(), 0xff);
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int p = 0; p + 1 < lengths_[s]; ++p) {
        for (int head = 0; head < 2 * shape_.kv_heads; ++head) {
          const int64_t at =
              tables[s * row_blocks_ + p / shape_.block_size] * block_stride_ +
              (int64_t{head} * shape_.block_size + p % shape_.block_size) * shape_.head_size;
          for (int d = 0; d < shape_.head_size; ++d) {
            const float value = RandomValue((at + d) * 31 + s);
            const Bf16 rounded = __float2bfloat16(value / 4);  // not a NaN as FP16 either
            if (shape_.fp8) {
              pages[at + d] = ToFp8(value * 50);
            } else {
              std::memcpy(&pages[2 * (at + d)], &rounded, 2);
            }
          }
        }
      }
    }
    return pages;
  }

  AttentionStep Step() const {
    return {.rows = rows_,
            .max_tokens = tokens_,
            .max_row_tokens = 1,
            .row_first = first_.get(),
            .row_start = start_.get(),
            .row_slot = slot_.get(),
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .window = shape_.window,
            .plan = plan_.get()};
  }
  KvPages Pages(uint8_t* data) const {
    return {data,
            shape_.fp8 ? Type::kFp8 : Type::kBf16,
            block_stride_,
            shape_.block_size,
            shape_.kv_heads,
            shape_.head_size,
            shape_.fp8 ? 0.02f : 1.0f,
            shape_.fp8 ? 0.005f : 1.0f};
  }
  RopeAppendArgs AppendArgs(uint8_t* pages) const {
    return {.qkv = qkv_.view,
            .tokens = tokens_,
            .heads = shape_.heads,
            .positions = start_.get(),
            .slots = slot_.get(),
            .tables = {tables_.get(), row_blocks_},
            .rope = GetRope(),
            .q = q_.get(),
            .pages = Pages(pages)};
  }

  const Shape shape_;
  const std::vector<int> lengths_;
  const int rows_, tokens_, width_;
  const int64_t row_blocks_, block_stride_;
  TestProduct qkv_;
  DeviceBuffer<float> q_norm_, k_norm_, bias_, sinks_;
  DeviceBuffer<int32_t> first_, start_, slot_, tables_;
  DeviceBuffer<float2> rotations_;
  DeviceBuffer<Bf16> q_, out_;
  DeviceBuffer<uint8_t> plan_, scratch_;
  std::vector<uint8_t> old_;
};

cudaError_t Attend(const AttentionArgs& args) { return LaunchPagedAttention(args, nullptr); }

void ExpectEqual(const World::Result& a, const World::Result& b) {
  ASSERT_EQ(std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(Bf16)), 0);
  ASSERT_TRUE(a.pages == b.pages);
}

TEST(DecodeRopeTest, GivesTheBitsOfAnAppend) {
  const Shape shapes[] = {
      // heads kv size dims block inter norm fp8 scaled
      {8, 2, 128, 128, 16, false, false, false, false},  // Llama-3's group
      {8, 2, 128, 128, 16, false, false, false, true},
      {8, 2, 128, 128, 64, false, true, true, true},   // Qwen3's
      {8, 1, 128, 128, 32, true, true, false, true},   // Llama-3-70B's
      {16, 2, 128, 64, 128, false, true, true, true},  // the largest group
      {16, 2, 256, 256, 16, true, true, false, true},
      {2, 2, 128, 0, 16, false, true, false, true},   // no rotation
      {9, 3, 64, 64, 16, true, false, false, false},  // SmolLM2's
      {9, 3, 64, 24, 32, false, true, true, true},
      {16, 2, 64, 64, 16, false, false, true, false},
      {6, 2, 96, 96, 16, false, true, false, true},
      {14, 2, 96, 64, 64, true, false, true, true},
      {3, 1, 256, 64, 64, false, true, false, false},
      {8, 2, 256, 256, 32, true, false, true, true},
      {8, 2, 128, 128, 16, false, true, false, true, 100},      // a window
      {14, 2, 64, 64, 64, false, false, false, true, 0, true},  // Qwen2.5-0.5B's
      {12, 2, 128, 128, 16, false, false, true, true, 0, true},
      {6, 2, 96, 64, 16, true, true, false, false, 70, true},
      {64, 8, 64, 64, 16, false, false, false, true, 128, true, true},  // gpt-oss'
      {64, 8, 64, 64, 64, false, false, true, true, 0, true, true},
      {24, 4, 256, 64, 16, false, true, false, false, 0, false, false, true},  // Qwen3.5-27B's
      {16, 2, 256, 64, 64, false, true, true, true, 0, false, false, true},    // 35B-A3B's
      {6, 2, 96, 64, 16, true, true, false, true, 0, true, false, true},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(Name(shape));
    World world(shape);
    ExpectEqual(world.Run(true, Attend), world.Run(false, Attend));
    if (HasFatalFailure()) return;
  }
}

// Returns enough lengths that a CTA has several rows.
std::vector<int> ManyLengths() {
  std::vector<int> lengths;
  for (int i = 0; i < 250; ++i) lengths.push_back(1 + i * 37 % 300);
  return lengths;
}

TEST(DecodeRopeTest, GivesTheBitsOfAnAppendForManyRows) {
  for (const Shape& shape : {Shape{16, 4, 128, 128, 16, false, true, false, true},
                             Shape{32, 4, 64, 64, 32, true, false, true, true},
                             Shape{16, 4, 256, 256, 16, false, true, false, false},
                             Shape{32, 4, 96, 96, 16, false, true, false, true}}) {
    SCOPED_TRACE(Name(shape));
    World world(shape, ManyLengths());
    ExpectEqual(world.Run(true, Attend), world.Run(false, Attend));
    if (HasFatalFailure()) return;
  }
}

void ExpectDelaysChangeNoBit(const std::vector<int>& lengths) {
  for (const bool fp8 : {false, true}) {
    World world({8, 2, 128, 128, 16, false, true, fp8, true}, lengths);
    const World::Result expected = world.Run(false, Attend);
    for (int repeat = 0; repeat < 20; ++repeat) {
      const World::Result delayed = world.Run(true, [&](const AttentionArgs& args) {
        Launch launch;
        const cudaError_t error = MakeLaunch(args, nullptr, launch);
        if (error != cudaSuccess) return error;
        return fp8 ? LaunchDecodeHeads<Fp8, 128, RandomDelay>(launch)
                   : LaunchDecodeHeads<Bf16, 128, RandomDelay>(launch);
      });
      ExpectEqual(delayed, expected);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(DecodeRopeTest, DelaysChangeNoBit) {
  ExpectDelaysChangeNoBit(kLengths);
  ExpectDelaysChangeNoBit(ManyLengths());
}

TEST(DecodeRopeTest, IsForStepsOfFewRows) {
  AttentionStep step = {};
  step.rows = 64, step.max_tokens = 64, step.max_row_tokens = 1, step.heads = 32, step.kv_heads = 8;
  EXPECT_TRUE(AppendsWithAttention(step));
  const auto appends = [&](auto change) {
    AttentionStep other = step;
    change(other);
    return AppendsWithAttention(other);
  };
  EXPECT_FALSE(appends([](AttentionStep& s) { s.rows = 65; }));
  EXPECT_FALSE(appends([](AttentionStep& s) { s.max_row_tokens = 2; }));
  EXPECT_FALSE(appends([](AttentionStep& s) { s.heads = 72; }));
}

TEST(DecodeRopeTest, RefusesWhatItsHeaderDoesNotAllow) {
  const World world({8, 2, 128, 128, 16, false, true, false, false});
  DeviceBuffer<uint8_t> pages(1 << 20);
  const auto refuses = [&](const auto& spoil) {
    AttentionArgs args = world.Args(pages.get());
    args.qkv = world.Qkv();
    args.rope = world.GetRope();
    spoil(args);
    return LaunchPagedAttention(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.qkv.data = nullptr; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.qkv.data += 1; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.qkv.stride = 1024; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.rope.gates = true; }));  // the product has none
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.q = static_cast<const Bf16*>(a.out.data); }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.step.max_row_tokens = 2; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) {
    a.step.heads = 18;  // nine for each kv head
    a.out.stride = a.qkv.stride = 4096;
  }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.rope.dimensions = 136; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.rope.rotations = nullptr; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.rope.k_norm = nullptr; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.rope.bias = a.rope.q_norm + 1; }));
}

}  // namespace
}  // namespace millrace::kernels::attention
