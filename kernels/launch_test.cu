// Tests that kernels with programmatic dependent launch compute the same as kernels run one by one.
#include "kernels/launch.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/attention/rope_append.h"
#include "kernels/elementwise/embed.h"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/graph_test_util.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/sampling/sample.h"
#include "kernels/step/step_input.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Stream {
  Stream() { CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream); }
  cudaStream_t stream;
};

// ---- Kernels that expose races: the first lets the next start at once and then takes its time
// ----

constexpr int kCells = 4096;
constexpr int kCellThreads = 128;
constexpr unsigned kSlowNanoseconds = 20000;

// Reads `from` after other kernels have had time to overwrite it, and then writes `to`.
__global__ void SlowCopyKernel(const uint32_t* from, uint32_t* to, uint32_t add) {
  AwaitPredecessor();
  __nanosleep(kSlowNanoseconds);
  const int i = blockIdx.x * kCellThreads + threadIdx.x;
  to[i] = from[i] + add;
}

__global__ void CopyKernel(const uint32_t* from, uint32_t* to, uint32_t add) {
  AwaitPredecessor();
  const int i = blockIdx.x * kCellThreads + threadIdx.x;
  to[i] = from[i] + add;
}

// Depends on no other kernel, but the kernel after it depends on this one.
__global__ void IdleKernel() { AwaitPredecessor(); }

cudaError_t LaunchCells(void (*kernel)(const uint32_t*, uint32_t*, uint32_t), const uint32_t* from,
                        uint32_t* to, uint32_t add, cudaStream_t stream) {
  return LaunchDependent(kernel, kCells / kCellThreads, kCellThreads, 0, stream, from, to, add);
}

TEST(Launch, DependentsSeeWhatASlowKernelWritesLast) {
  const Stream s;
  const DeviceBuffer<uint32_t> a(std::vector<uint32_t>(kCells, 0)), b(kCells), c(kCells);
  constexpr int kRounds = 8;
  CapturedGraph graph(s.stream, [&](cudaStream_t stream) {
    for (int round = 0; round < kRounds; ++round) {
      CheckCuda(LaunchCells(SlowCopyKernel, a.get(), b.get(), 1, stream), "slow");
      CheckCuda(LaunchCells(CopyKernel, b.get(), c.get(), 1, stream), "its dependent");
      CheckCuda(LaunchCells(SlowCopyKernel, c.get(), a.get(), 1, stream), "slow");
      for (int idle = 0; idle < 3; ++idle) {
        CheckCuda(LaunchDependent(IdleKernel, 1, 32, 0, stream), "idle");
      }
      // Overwrites the input of the slow kernel, four launches earlier.
      CheckCuda(LaunchCells(CopyKernel, a.get(), c.get(), 0, stream), "behind idle ones");
    }
  });
  EXPECT_EQ(graph.CountEdges().programmatic, graph.CountEdges().all);
  EXPECT_EQ(graph.CountEdges().all, 7 * kRounds - 1);
  for (uint32_t replay = 1; replay <= 10; ++replay) {
    graph.Replay(s.stream);
    CheckCuda(cudaStreamSynchronize(s.stream), "replay");
    const std::vector<uint32_t> expected(kCells, replay * 3 * kRounds);
    ASSERT_EQ(a.Download(), expected) << "replay " << replay;
    ASSERT_EQ(c.Download(), expected) << "replay " << replay;
  }
}

// ---- A model of small kernels: each reads its predecessor's output, all layers share buffers, and
// a step's tokens are those that the previous step sampled ----

constexpr int kTokens = 5, kLayers = 6, kVocab = 1536, kWidth = 1536, kHeads = 8, kKvHeads = 2,
              kHeadSize = 128, kBlock = 16, kPositions = 64;
constexpr int kQWidth = kHeads * kHeadSize, kGate = kWidth / 2;
static_assert((kHeads + 2 * kKvHeads) * kHeadSize == kWidth);
constexpr StepCounts kCounts = {.rows = kTokens, .wanted = kTokens};

class SmallModel {
 public:
  SmallModel() {
    CheckCuda(LaunchFillRotations({rotations.get(), kPositions, kHeadSize, 1e4, nullptr}, nullptr),
              "rotations");
    std::vector<int32_t> tables;
    for (int i = 0; i < kTokens * kPositions / kBlock; ++i) tables.push_back(i);
    block_tables.Upload(tables);
    SlotSampling slot = {};
    slot.temperature = 1;
    slot.top_k = 40;
    slot.top_p = 0.9f;
    slot.top_logprobs = 3;
    slot.repetition_penalty = 1;
    slot.seed = 77;
    sampling.Upload(std::vector<SlotSampling>(kTokens, slot));
    last_tokens.Upload({3, 1, 4, 1, 5});
    rows.Upload({kTokens});
  }

  // Packs a step in which row r is slot r's token at `position`, sampled by the previous step.
  void Upload(int position) {
    const StepLayout at(kCounts);
    std::vector<int32_t> text(at.end);
    text[at.row_first + kTokens] = kTokens;
    for (int r = 0; r < kTokens; ++r) {
      text[at.row_first + r] = r;
      text[at.row_start + r] = position;
      text[at.row_slot + r] = r;
      text[at.row_source + r] = StepLayout::kSampled;
      text[at.wanted_token + r] = r;
      text[at.wanted_row + r] = r;
      text[at.wanted_target + r] = StepLayout::kSample;
      text[at.wanted_mask + r] = StepLayout::kUnmasked;
    }
    words.Upload(text);
  }

  // Launches a step. Returns its number of kernels.
  int Launch(cudaStream_t stream) {
    int launches = 0;
    const auto run = [&](cudaError_t error) {
      CheckCuda(error, "launch");
      ++launches;
    };
    run(LaunchStepInput(
        {.words = words.get(), .counts = kCounts, .tokens = kTokens},
        {tokens.get(), positions.get(), slots.get(), row_first.get(), row_start.get(),
         row_slot.get(), wanted.get(), samples.get(), block_tables.get(), kPositions / kBlock,
         sampling.get(), nullptr, 0, nullptr, 0, last_tokens.get()},
        stream));
    run(LaunchEmbed({tokens.get(), table.get(), kWidth, kVocab, kTokens, kWidth, residual.get()},
                    stream));
    const Activation plain = {normed.get(), Type::kBf16, Scaling::kNone, kWidth, nullptr};
    const Product product = {normed.get(), kWidth, nullptr, channel_scales.get()};
    for (int layer = 0; layer < kLayers; ++layer) {
      const bool first = layer == 0;
      run(LaunchRmsNorm({residual.get(), first ? Product{} : product, weight.get(), 1e-5f, kTokens,
                         kWidth, plain},
                        stream));
      run(LaunchRopeAppend(
          {.qkv = product,
           .tokens = kTokens,
           .heads = kHeads,
           .positions = positions.get(),
           .slots = slots.get(),
           .tables = {block_tables.get(), kPositions / kBlock},
           .rope = {.rotations = rotations.get(),
                    .dimensions = kHeadSize,
                    .interleaved = false,
                    .q_norm = weight.get(),
                    .k_norm = weight.get(),
                    .norm_epsilon = 1e-6f},
           .q = q.get(),
           .pages = {pages.get(), Type::kBf16, kBlockElements, kBlock, kKvHeads, kHeadSize, 1, 1}},
          stream));
      run(LaunchQuantize({q.get(),
                          kQWidth,
                          kTokens,
                          kQWidth,
                          {codes.get(), Type::kFp8, Scaling::kToken, kQWidth, code_scales.get()}},
                         stream));
      run(LaunchRmsNorm({residual.get(), product, weight.get(), 1e-5f, kTokens, kWidth, plain},
                        stream));
      for (const bool portable : {false, true}) {  // clusters where available, and CTAs
        run(LaunchGatedActivation(
            {product,
             kTokens,
             kGate,
             {gated.get() + portable * kTokens * kGate, Type::kFp8, Scaling::kToken, kGate,
              gated_scales.get() + portable * kTokens},
             portable},
            stream));
      }
    }
    run(LaunchGatherRows({plain,
                          kTokens,
                          wanted.get(),
                          kTokens,
                          {gathered.get(), Type::kBf16, Scaling::kNone, kWidth, nullptr}},
                         stream));
    run(LaunchSample({.logits = residual.get(),
                      .logits_stride = kWidth,
                      .vocab_size = kVocab,
                      .max_rows = kTokens,
                      .num_rows = rows.get(),
                      .rows = samples.get(),
                      .slots = sampling.get(),
                      .biases = nullptr,
                      .biases_stride = 0,
                      .history = nullptr,
                      .history_stride = 0,
                      .adjusted = nullptr,
                      .workspace = workspace.get(),
                      .last_tokens = last_tokens.get(),
                      .results = results.get(),
                      .tops = tops.get()},
                     stream));
    return launches + 1;  // sampling has two
  }

  // All outputs of a step.
  std::vector<std::vector<uint8_t>> State() const {
    std::vector<std::vector<uint8_t>> state;
    const auto add = [&](const auto& buffer) {
      std::vector<uint8_t> bytes(buffer.bytes());
      CheckCuda(cudaMemcpy(bytes.data(), buffer.get(), bytes.size(), cudaMemcpyDeviceToHost),
                "state");
      state.push_back(std::move(bytes));
    };
    add(last_tokens), add(residual), add(normed), add(q), add(pages), add(codes), add(code_scales);
    add(gated), add(gated_scales), add(gathered), add(results), add(tops);
    return state;
  }

 private:
  static constexpr int64_t kBlockElements = 2 * kKvHeads * kBlock * kHeadSize;
  DeviceBuffer<Bf16> table{ToBf16(RandomNormal(kVocab * kWidth, 1))};
  DeviceBuffer<float> weight{RandomNormal(kWidth, 2)};
  DeviceBuffer<float> channel_scales{RandomNormal(kWidth, 3)};
  DeviceBuffer<float2> rotations{kPositions * kHeadSize / 2};
  DeviceBuffer<int32_t> words{8 * kTokens + 1}, tokens{kTokens}, positions{kTokens}, slots{kTokens},
      row_first{kTokens + 1}, row_start{kTokens}, row_slot{kTokens}, wanted{kTokens}, rows{1},
      block_tables{kTokens * kPositions / kBlock}, last_tokens{kTokens};
  DeviceBuffer<SampleRow> samples{kTokens};
  DeviceBuffer<SlotSampling> sampling{kTokens};
  DeviceBuffer<float> residual{kTokens * kWidth}, code_scales{kTokens}, gated_scales{2 * kTokens};
  DeviceBuffer<Bf16> normed{kTokens * kWidth}, q{kTokens * kQWidth}, gathered{kTokens * kWidth};
  DeviceBuffer<Bf16> pages{kTokens * kPositions / kBlock * kBlockElements};
  DeviceBuffer<uint8_t> codes{kTokens * kQWidth}, gated{2 * kTokens * kGate};
  DeviceBuffer<uint8_t> workspace{SampleWorkspaceBytes(kTokens, kVocab)};
  DeviceBuffer<SampleResult> results{kTokens};
  DeviceBuffer<SampleTop> tops{kTokens * kMaxSampledTop};
};

TEST(Launch, StepsOfAllSmallKernelsKeepTheirBits) {
  const Stream s;
  SmallModel by_graph, one_by_one, eager;
  CheckCuda(cudaDeviceSynchronize(), "setting up");
  int launches = 0;
  CapturedGraph graph(s.stream, [&](cudaStream_t stream) { launches = by_graph.Launch(stream); });
  CapturedGraph plain(s.stream, [&](cudaStream_t stream) { one_by_one.Launch(stream); });
  const CapturedGraph::EdgeCount edges = graph.CountEdges();
  EXPECT_EQ(edges.all, static_cast<size_t>(launches - 1));
  EXPECT_EQ(edges.programmatic, edges.all);
  plain.MakeEdgesPlain();
  EXPECT_EQ(plain.CountEdges().programmatic, 0u);
  EXPECT_EQ(plain.CountEdges().all, edges.all);

  std::vector<std::vector<uint8_t>> before;
  for (int position = 0; position < kPositions; ++position) {
    for (SmallModel* model : {&by_graph, &one_by_one, &eager}) model->Upload(position);
    CheckCuda(cudaDeviceSynchronize(), "upload");
    graph.Replay(s.stream);
    plain.Replay(s.stream);
    eager.Launch(s.stream);
    CheckCuda(cudaStreamSynchronize(s.stream), "a step");
    const std::vector<std::vector<uint8_t>> expected = one_by_one.State();
    ASSERT_TRUE(by_graph.State() == expected) << "position " << position;
    ASSERT_TRUE(eager.State() == expected) << "position " << position;
    ASSERT_FALSE(before == expected) << "nothing changed at position " << position;
    before = expected;
  }
}

}  // namespace
}  // namespace millrace::kernels
