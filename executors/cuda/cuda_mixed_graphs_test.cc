// Tests steps with parts of prompts as graphs: they have the bits of steps whose kernels are
// launched one by one, on one rank and on virtual ones.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_points.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "executors/executor_driver_test_util.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// The outputs of sequences, and how many of the steps with prompts ran as graphs.
struct Outcome {
  std::vector<SequenceOutput> outputs;
  int mixed_steps = 0;
  int graphs = 0;
};

// Runs sequences that begin one after the other, each prompt in chunks beside all that decode, and
// frees their slots. Sizes of steps lie at bounds of the linears' plans and between them.
// `round` is larger at each run on the same executor. Blocks behind windows are kept in round 0
// alone.
Outcome RunMixed(Executor& executor, int round = 0) {
  constexpr int kLengths[] = {5, 17, 63, 64, 128, 130, 201, 33, 300, 3, 12, 500};
  constexpr int kChunk = 320;
  constexpr int kGenerated = 56;  // of each sequence, at most
  const StepLimits& limits = executor.info().limits;
  ExecutorDriver driver(executor, round * 1000);
  if (round > 0) driver.ReleaseBehindWindows();
  Outcome outcome;
  std::vector<SlotId> slots;
  for (const int wished : kLengths) {
    const int length = std::min(wished, limits.max_model_len - kGenerated);
    const int i = static_cast<int>(slots.size());
    SamplingParams sampling = kSampling;
    if (i % 3 == 1) sampling = {.temperature = 0, .top_logprobs = 2};
    if (i % 3 == 2) sampling.repetition_penalty = 1.3f;
    sampling.seed = i;
    const SlotId slot = driver.Add(Prompt(length, i, std::min(limits.vocab_size, 256)), sampling);
    for (int done = 0; done < length; done += kChunk) {
      std::vector<ExecutorDriver::Share> shares;
      for (const SlotId other : slots) shares.push_back({other, 1});
      // Prompts stand before, among and behind the rows that decode.
      shares.insert(shares.begin() + i / 2, {slot, std::min(kChunk, length - done)});
      const StepResult result = driver.Step(shares);
      ++outcome.mixed_steps;
      outcome.graphs += result.as_graph ? 1 : 0;
    }
    slots.push_back(slot);
    driver.Decode(slots, 2);
  }
  for (const SlotId slot : slots) outcome.outputs.push_back(driver.output(slot));
  for (const SlotId slot : slots) driver.Remove(slot);
  return outcome;
}

// Compares graphs with launches one by one, at the steps that load kernels, at those that are
// captured and at replays.
void ExpectTheBitsOfLaunches(const std::string& path, CudaSpec device) {
  device.enforce_eager = true;
  const Outcome eager = RunMixed(*Load(path, device));
  EXPECT_EQ(eager.graphs, 0);
  device.enforce_eager = false;
  device.graph_tokens = 0;
  const Outcome launched = RunMixed(*Load(path, device));
  EXPECT_EQ(launched.graphs, 0);
  EXPECT_EQ(launched.outputs, eager.outputs);
  device.graph_tokens = CudaSpec{}.graph_tokens;
  const std::unique_ptr<Executor> executor = Load(path, device);
  for (const int round : {1, 2, 3, 4}) {
    const Outcome graphs = RunMixed(*executor, round);
    EXPECT_EQ(graphs.outputs, eager.outputs) << "round " << round;
    if (round == 1) continue;
    EXPECT_EQ(graphs.graphs, graphs.mixed_steps) << "round " << round;
  }
}

class CudaMixedGraphsTest : public TinyModelTest {
 protected:
  ~CudaMixedGraphsTest() override { DisarmFaultPoints(); }
};

TEST_F(CudaMixedGraphsTest, DenseModels) {
  for (const bool fp8 : {false, true}) {
    SCOPED_TRACE(fp8 ? "fp8" : "as stored");
    CudaSpec device = Device();
    device.quantize_fp8 = fp8;
    device.kv_cache_fp8 = fp8;
    device.quantize_head = fp8;
    ExpectTheBitsOfLaunches(ModelPath(SmallModel(TensorType::kQ4_1, TensorType::kQ8_0)), device);
  }
  TinyLlama wide = SmallModel(TensorType::kBf16, TensorType::kBf16);
  wide.hidden = 256;
  wide.heads = 2;  // of 128, which sm_90a has kernels for
  wide.ffn = 384;
  for (const bool cublaslt : {false, true}) {
    SCOPED_TRACE(cublaslt ? "cuBLASLt" : "our linears");
    CudaSpec device = Device();
    device.cublaslt_linears = cublaslt;
    ExpectTheBitsOfLaunches(ModelPath(wide), device);
  }
}

TEST_F(CudaMixedGraphsTest, FourBitWeights) {
  for (const QuantScheme& scheme : PackedSchemes()) {
    SCOPED_TRACE(static_cast<int>(scheme.packing));
    ExpectTheBitsOfLaunches(Folder(GroupedModel(), {.quantization = scheme}), Device());
  }
}

// Mixtures of experts, layers with windows or states, norms of heads and sinks among them.
TEST_F(CudaMixedGraphsTest, Families) {
  for (const char* name : {"qwen3moe", "gpt_oss_mxfp4", "glm4moe", "olmo2", "qwen3_5",
                           "qwen3_5_moe", "lfm2", "lfm2moe", "granitehybrid_dense"}) {
    SCOPED_TRACE(name);
    FamilyTwin twin = FamilyTwinOf(name);
    twin.config = WithFactorsOfFour(Widened(twin.config));
    const std::string path = Path(name);
    WriteTwinFolder(twin, path);
    CudaSpec device = Device();
    device.max_model_len = twin.max_model_len;
    ExpectTheBitsOfLaunches(path, device);
  }
}

// All slots decode or compute prompts, so that padding comes on top of max_num_seqs rows; and steps
// may not have more tokens than the budget, whose size is no bound of a plan.
TEST_F(CudaMixedGraphsTest, FullBatchesAndOddBudgets) {
  CudaSpec device = Device();
  device.max_num_seqs = 12;
  device.max_num_batched_tokens = 331;  // 320, and eleven that decode
  ExpectTheBitsOfLaunches(ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16)), device);
}

TEST_F(CudaMixedGraphsTest, VirtualRanks) {
  const std::string path = ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16));
  CudaSpec device = Device();
  device.max_num_seqs = 16;
  device.tensor_parallel_size = 2;
  device.virtual_ranks = true;
  ExpectTheBitsOfLaunches(path, device);
  // A size that one rank cannot capture has a graph on none.
  const Outcome expected = RunMixed(*Load(path, device));
  const std::unique_ptr<Executor> executor = Load(path, device);
  RunMixed(*executor);
  const int sizes = expected.mixed_steps;
  CheckOk(ArmFaultPoints("cuda.graph_capture=1"));
  EXPECT_EQ(RunMixed(*executor, 1).outputs, expected.outputs);
  DisarmFaultPoints();
  const Outcome last = RunMixed(*executor, 2);
  EXPECT_EQ(last.outputs, expected.outputs);
  EXPECT_GT(last.graphs, 0);
  EXPECT_LT(last.graphs, sizes);
}

TEST_F(CudaMixedGraphsTest, WhatCannotBeCapturedIsLaunched) {
  const std::string path = ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16));
  const std::unique_ptr<Executor> executor = Load(path, Device());
  CheckOk(ArmFaultPoints("cuda.graph_capture=1000"));
  const Outcome first = RunMixed(*executor);
  for (const int round : {1, 2, 3}) {
    const Outcome again = RunMixed(*executor, round);
    EXPECT_EQ(again.outputs, first.outputs);
    EXPECT_EQ(again.graphs, 0);
  }
}

// Captures while the step before it runs, as a server does.
TEST_F(CudaMixedGraphsTest, CapturesBesideAStepThatRuns) {
  constexpr int kChunk = 64;
  constexpr int kChunks = 8;
  const std::string path = ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16));
  const std::vector<Token> prompt = Prompt(kChunk * kChunks, 7);
  const auto sample = [&](const CudaSpec& device, int& graphs) {
    const std::unique_ptr<Executor> executor = Load(path, device);
    const int blocks = kChunk / device.block_size;
    for (int i = 0; i < kChunks; ++i) {
      StepPlan plan;
      plan.id = i + 1;
      if (i == 0) plan.starts.push_back({0, std::make_shared<const SamplingParams>(kSampling)});
      plan.tokens.assign(prompt.begin() + i * kChunk, prompt.begin() + (i + 1) * kChunk);
      for (int b = 0; b < blocks; ++b) plan.blocks.push_back(i * blocks + b);
      plan.rows.push_back({.slot = 0,
                           .start = i * kChunk,
                           .num_tokens = kChunk,
                           .tokens = {0, kChunk},
                           .blocks = {0, blocks},
                           .logits = {0, i + 1 == kChunks ? 1 : 0}});
      if (i + 1 == kChunks) plan.logits.push_back({.offset = kChunk - 1});
      CheckOk(executor->Submit(std::move(plan)));
      if (i == 0) continue;
      const std::optional<StepResult> result = executor->Wait();
      CheckOk(result->status);
      graphs += result->as_graph ? 1 : 0;
    }
    const std::optional<StepResult> last = executor->Wait();
    CheckOk(last->status);
    return std::pair(last->tokens.at(0).token, last->tokens.at(0).logprob.value());
  };
  int graphs = 0;
  int launched = 0;
  CudaSpec eager = Device();
  eager.enforce_eager = true;
  EXPECT_EQ(sample(Device(), graphs), sample(eager, launched));
  EXPECT_EQ(graphs, kChunks - 2);  // but for the first, and for the last, which has logits
  EXPECT_EQ(launched, 0);
}

}  // namespace
}  // namespace millrace::cuda
