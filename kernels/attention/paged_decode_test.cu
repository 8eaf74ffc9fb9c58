// Tests that decode does not depend on the speed of its warps or on when it starts behind an
// append.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention/attention_cases.h"
#include "kernels/attention/decode_launch.cuh"
#include "kernels/attention/rope_append.h"
#include "kernels/graph_test_util.h"
#include "kernels/launch.cuh"
#include "kernels/test_util.h"

namespace millrace::kernels::attention {
namespace {

template <typename Kv, int kHeadSize>
void ExpectDelaysChangeNoBit(int group, int window) {
  const AttentionCase c = {.heads = 2 * group,
                           .kv_heads = 2,
                           .head_size = kHeadSize,
                           .type = sizeof(Kv) == 1 ? Type::kFp8 : Type::kBf16,
                           .window = window,
                           .lengths = {1, 64, 257, 5000, 700, 1023, 3000}};
  const AttentionWorld world(c);
  std::vector<StepRow> rows;
  int tokens = 0;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    const int row_tokens = std::min(c.lengths[s], group <= 8 ? 1 : 16 / group);
    rows.push_back({static_cast<int>(s), c.lengths[s] - row_tokens, row_tokens});
    tokens += row_tokens;
  }
  AttentionRunner runner(world, rows.size(), tokens, 1);
  runner.Upload(rows);
  ASSERT_EQ(runner.Launch(nullptr), cudaSuccess);
  const std::vector<Bf16> expected = runner.Result();
  Launch launch;
  ASSERT_EQ(MakeLaunch(runner.Args(), nullptr, launch), cudaSuccess);
  for (int repeat = 0; repeat < 20; ++repeat) {
    runner.Upload(rows);
    ASSERT_EQ((LaunchDecodeHeads<Kv, kHeadSize, RandomDelay>(launch)), cudaSuccess);
    const std::vector<Bf16> out = runner.Result();
    ASSERT_TRUE(runner.Intact());
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(Bf16)), 0)
        << c.Name() << ", repeat " << repeat;
  }
}

TEST(PagedDecodeTest, DelaysChangeNoBit) {
  ExpectDelaysChangeNoBit<Bf16, 128>(4, 0);
  ExpectDelaysChangeNoBit<Bf16, 128>(16, 0);
  ExpectDelaysChangeNoBit<Bf16, 128>(4, 600);
  ExpectDelaysChangeNoBit<Fp8, 128>(4, 0);
  ExpectDelaysChangeNoBit<Bf16, 64>(8, 0);
}

// Steps of several layers. Each kernel lets the next one start at once, and attention reads ahead.
// Everything that it may read early changes in every step, and arrives late.

constexpr int kHeads = 8, kKvHeads = 2, kHeadSize = 128, kBlock = 16;
constexpr int kWidth = kHeads * kHeadSize, kQkvWidth = kWidth + 2 * kKvHeads * kHeadSize;
constexpr int kSteps = 3, kLayers = 4, kPositions = 640, kRowBlocks = kPositions / kBlock;
constexpr int64_t kBlockElements = 2 * kKvHeads * kBlock * kHeadSize;

__global__ void SlowCopyKernel(const uint4* from, uint4* to, int count) {
  AwaitPredecessor();
  __nanosleep(10000);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}

template <typename T>
void SlowCopy(const T* from, T* to, int64_t count, cudaStream_t stream) {
  const int words = count * sizeof(T) / sizeof(uint4);
  CheckCuda(
      LaunchDependent(SlowCopyKernel, CeilDiv(words, 256), 256, 0, stream,
                      reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), words),
      "copy");
}

std::vector<Bf16> RandomElements(int64_t count) {
  std::vector<Bf16> elements(count);
  ParallelFor(64, [&](int part) {
    for (int64_t i = count * part / 64; i < count * (part + 1) / 64; ++i) {
      elements[i] = __float2bfloat16(RandomValue(i) / 4);  // not a NaN as FP16 either
    }
  });
  return elements;
}

class Steps {
 public:
  // Rows of row_tokens tokens that advance one position per step. A `window` other than 0 applies
  // to every second layer, which then has a plan of its own.
  Steps(const std::vector<int>& row_starts, int row_tokens, int window = 0)
      : rows_(row_starts.size()),
        row_tokens_(row_tokens),
        window_(window),
        tokens_(rows_ * row_tokens),
        layer_elements_(rows_ * kRowBlocks * kBlockElements),
        first_(rows_ + 1),
        slot_(rows_),
        starts_(kSteps * rows_),
        slots_(tokens_),
        positions_(kSteps * tokens_),
        table_sources_(kSteps * rows_ * kRowBlocks),
        tables_(rows_ * kRowBlocks),
        source_(RandomElements(layer_elements_ + 64 * kSteps * kLayers + tokens_ * kQkvWidth)),
        pages_(kLayers * layer_elements_),
        qkv_(tokens_ * kQkvWidth),
        q_(tokens_ * kWidth),
        out_(kSteps * kLayers * tokens_ * kWidth),
        rotations_(kPositions * kHeadSize / 2),
        plans_{DeviceBuffer<uint8_t>(AttentionPlanBytes(Step(0, 0))),
               DeviceBuffer<uint8_t>(AttentionPlanBytes(Step(0, 0)))},
        scratch_(AttentionScratchBytes(Step(0, 0), kHeadSize)) {
    std::vector<int32_t> first, slot(rows_), slots, starts, positions, tables;
    for (int r = 0; r <= rows_; ++r) first.push_back(r * row_tokens);
    std::iota(slot.begin(), slot.end(), 0);
    for (int t = 0; t < tokens_; ++t) slots.push_back(t / row_tokens);
    for (int step = 0; step < kSteps; ++step) {
      for (const int start : row_starts) {
        starts.push_back(start + step);
        for (int t = 0; t < row_tokens; ++t) positions.push_back(start + step + t);
      }
      std::vector<int32_t> table(rows_ * kRowBlocks);
      std::iota(table.begin(), table.end(), 0);
      std::shuffle(table.begin(), table.end(), std::mt19937(step));
      tables.insert(tables.end(), table.begin(), table.end());
    }
    first_.Upload(first), slot_.Upload(slot), slots_.Upload(slots), starts_.Upload(starts);
    positions_.Upload(positions), table_sources_.Upload(tables);
    CheckCuda(LaunchFillRotations({rotations_.get(), kPositions, kHeadSize, 1e4, nullptr}, nullptr),
              "rotations");
    CheckCuda(cudaDeviceSynchronize(), "setting up");
  }

  // Launches all steps. With `reads_ahead` launches are numbered; with `fused` attention applies
  // rope and appends. `between` is called after each launch.
  template <typename Between>
  void Launch(bool reads_ahead, bool fused, cudaStream_t stream, const Between& between) const {
    for (int step = 0; step < kSteps; ++step) {
      // An operation that does not start early, like a step's upload.
      CheckCuda(cudaMemcpyAsync(tables_.get(), table_sources_.get(), sizeof(int32_t),
                                cudaMemcpyDeviceToDevice, stream),
                "upload");
      SlowCopy(table_sources_.get() + step * tables_.size(), tables_.get(), tables_.size(), stream);
      between();
      for (int layer = 0; layer < kLayers; ++layer) {
        SlowCopy(source_.get() + 64 * (step * kLayers + layer), Pages(layer), layer_elements_,
                 stream);
        between();
      }
      for (int layer = 0; layer < kLayers; ++layer) {
        SlowCopy(source_.get() + 64 * (step * kLayers + layer) + layer_elements_, qkv_.get(),
                 qkv_.size(), stream);
        between();
        if (!fused) CheckCuda(Append(step, layer, stream), "append");
        between();
        if (LaunchNumber(layer) == 1)
          CheckCuda(LaunchPlanAttention(Step(step, layer), stream), "plan");
        between();
        AttentionArgs args = Args(Step(step, layer), layer, reads_ahead, Out(step, layer));
        if (fused) {
          args.q = nullptr;
          args.qkv = Qkv();
          args.rope = GetRope();
        }
        CheckCuda(LaunchPagedAttention(args, stream), "attention");
        between();
      }
    }
  }

  // Launches attention of a step without tokens behind a slow kernel, and then a copy that reads
  // the slow kernel's output.
  void LaunchNothing(const int32_t* zeros, cudaStream_t stream) const {
    AttentionStep step = Step(0, 0);
    step.row_first = zeros;
    CheckCuda(LaunchPlanAttention(step, stream), "plan");
    for (int layer = 0; layer < kLayers; ++layer) {
      SlowCopy(source_.get() + 64 * layer, Pages(layer), layer_elements_, stream);
      CheckCuda(LaunchPagedAttention(Args(step, layer, true, Out(0, 0)), stream), "attention");
      SlowCopy(Pages(layer), out_.get() + layer * 1024, 1024, stream);
    }
  }

  std::vector<uint8_t> Result() const {
    std::vector<uint8_t> bytes(out_.bytes());
    std::memcpy(bytes.data(), out_.Download().data(), bytes.size());
    return bytes;
  }
  bool Intact() const { return out_.GuardsIntact() && pages_.GuardsIntact(); }
  void Poison() { out_.Poison(); }
  const DeviceBuffer<Bf16>& source() const { return source_; }

 private:
  bool HasWindow(int layer) const { return window_ > 0 && layer % 2 == 1; }
  // Number of the layer among those of its plan, from 1 on.
  uint32_t LaunchNumber(int layer) const { return window_ > 0 ? layer / 2 + 1 : layer + 1; }

  AttentionStep Step(int step, int layer) const {
    return {.rows = rows_,
            .max_tokens = tokens_,
            .max_row_tokens = row_tokens_,
            .row_first = first_.get(),
            .row_start = starts_.get() + step * rows_,
            .row_slot = slot_.get(),
            .heads = kHeads,
            .kv_heads = kKvHeads,
            .window = HasWindow(layer) ? window_ : 0,
            .plan = plans_[HasWindow(layer)].get()};
  }
  Bf16* Pages(int layer) const { return pages_.get() + layer * layer_elements_; }
  Bf16* Out(int step, int layer) const {
    return out_.get() + (step * kLayers + layer) * tokens_ * kWidth;
  }
  KvPages LayerPages(int layer) const {
    return {Pages(layer), Type::kBf16, kBlockElements, kBlock, kKvHeads, kHeadSize, 1, 1};
  }

  cudaError_t Append(int step, int layer, cudaStream_t stream) const {
    return LaunchRopeAppend({.qkv = Qkv(),
                             .tokens = tokens_,
                             .heads = kHeads,
                             .positions = positions_.get() + step * tokens_,
                             .slots = slots_.get(),
                             .tables = {tables_.get(), kRowBlocks},
                             .rope = GetRope(),
                             .q = q_.get(),
                             .pages = LayerPages(layer)},
                            stream);
  }
  Product Qkv() const { return {qkv_.get(), kQkvWidth, nullptr, nullptr}; }
  Rope GetRope() const {
    return {.rotations = rotations_.get(),
            .dimensions = kHeadSize,
            .interleaved = false,
            .q_norm = nullptr,
            .k_norm = nullptr,
            .norm_epsilon = 0};
  }
  AttentionArgs Args(const AttentionStep& step, int layer, bool reads_ahead, Bf16* out) const {
    return {.step = step,
            .q = q_.get(),
            .q_stride = kWidth,
            .pages = LayerPages(layer),
            .tables = {tables_.get(), kRowBlocks},
            .out = Bf16Rows(out, kWidth),
            .scale = 0.09f,
            .soft_cap = 0,
            .scratch = scratch_.get(),
            .launch_number = reads_ahead ? LaunchNumber(layer) : 0};
  }

  const int rows_, row_tokens_, window_, tokens_;
  const int64_t layer_elements_;
  DeviceBuffer<int32_t> first_, slot_, starts_, slots_, positions_, table_sources_, tables_;
  DeviceBuffer<Bf16> source_, pages_, qkv_, q_, out_;  // out_ holds all steps and layers
  DeviceBuffer<float2> rotations_;
  DeviceBuffer<uint8_t> plans_[2], scratch_;
};

struct Stream {
  Stream() { CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream); }
  cudaStream_t stream;
};

void ExpectReadingAheadChangesNoBit(int row_tokens, bool fused, int window = 0) {
  Steps steps({0, 14, 15, 30, 62, 63, 200, 250, 256, 600}, row_tokens, window);
  steps.Launch(false, false, nullptr, [] { CheckCuda(cudaDeviceSynchronize(), "one by one"); });
  const std::vector<uint8_t> expected = steps.Result();
  const Stream s;
  const auto launch = [&](cudaStream_t stream) { steps.Launch(true, fused, stream, [] {}); };
  CapturedGraph graph(s.stream, launch);
  for (int replay = 0; replay < 20; ++replay) {
    steps.Poison();
    CheckCuda(cudaDeviceSynchronize(), "poison");
    if (replay % 2 == 0) {
      graph.Replay(s.stream);
    } else {
      launch(s.stream);
    }
    CheckCuda(cudaStreamSynchronize(s.stream), "steps");
    ASSERT_TRUE(steps.Result() == expected) << "replay " << replay;
    ASSERT_TRUE(steps.Intact());
  }
}

TEST(PagedDecodeTest, ReadingAheadChangesNoBit) {
  ExpectReadingAheadChangesNoBit(1, false);
  ExpectReadingAheadChangesNoBit(1, true);
  ExpectReadingAheadChangesNoBit(3, false);
  ExpectReadingAheadChangesNoBit(1, true, 90);
  ExpectReadingAheadChangesNoBit(3, false, 90);
}

// Reading ahead takes place once the previous attention launch has published its number.

__device__ int tiles_read_ahead;

struct Probe : NoDelay {
  __device__ static void ReadAhead() {
    if (threadIdx.x == kComputingThreads) atomicAdd(&tiles_read_ahead, 1);
  }
};

TEST(PagedDecodeTest, ReadsAheadAfterThePreviousLaunch) {
  const AttentionCase c = {.lengths = {100, 1000, 5000}};
  const AttentionWorld world(c);
  AttentionRunner runner(world, 3, 3, 1);
  runner.Upload({{0, 99, 1}, {1, 999, 1}, {2, 4999, 1}});
  ASSERT_EQ(LaunchPlanAttention(runner.Args().step, nullptr), cudaSuccess);
  const auto tiles = [&](uint32_t launch_number) {
    AttentionArgs args = runner.Args();
    args.launch_number = launch_number;
    Launch launch;
    CheckCuda(MakeLaunch(args, nullptr, launch), "arguments");
    int count = 0;
    CheckCuda(cudaMemcpyToSymbol(tiles_read_ahead, &count, sizeof(count)), "count");
    CheckCuda(LaunchDecodeHeads<Bf16, 128, Probe>(launch), "attention");
    CheckCuda(cudaMemcpyFromSymbol(&count, tiles_read_ahead, sizeof(count)), "count");
    return count;
  };
  EXPECT_EQ(tiles(1), 0);               // no launch has published a number
  const int chunks = 2 * (1 + 4 + 20);  // each on a CTA of its own
  EXPECT_GE(tiles(2), chunks);
  EXPECT_GE(tiles(3), chunks);
  EXPECT_EQ(tiles(5), 0);  // not the next number
  EXPECT_EQ(tiles(0), 0);
}

TEST(PagedDecodeTest, WithoutTokensItStillEndsAfterItsPredecessor) {
  Steps steps({0, 0}, 1);
  const DeviceBuffer<int32_t> zeros(std::vector<int32_t>(3, 0));
  const Stream s;
  CapturedGraph graph(s.stream,
                      [&](cudaStream_t stream) { steps.LaunchNothing(zeros.get(), stream); });
  steps.Poison();
  CheckCuda(cudaDeviceSynchronize(), "poison");
  graph.Replay(s.stream);
  CheckCuda(cudaStreamSynchronize(s.stream), "replay");
  const std::vector<Bf16> source = steps.source().Download();
  const std::vector<uint8_t> got = steps.Result();
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(std::memcmp(&got[layer * 2048], &source[64 * layer], 2048), 0) << layer;
  }
}

}  // namespace
}  // namespace millrace::kernels::attention
