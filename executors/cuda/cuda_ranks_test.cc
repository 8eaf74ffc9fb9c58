// The GPU executor on several ranks: virtual ones on one GPU, and real ones where there are
// several. Their numbers depend on how many there are and on nothing else, and are one rank's but
// for rounding.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_points.h"
#include "base/strings.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/family_refusals_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "executors/models/family_reference.h"
#include "executors/states_test_util.h"
#include "executors/windows_test_util.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

// CUDA reads these when a test first uses it, which may be before a model with ranks is loaded.
const bool kEnvironmentSet = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return true;
}();

int GpuCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

CudaSpec Ranks(int ranks, bool on_one_gpu = true) {
  CudaSpec device = Device();
  device.max_num_seqs = 16;
  device.tensor_parallel_size = ranks;
  device.virtual_ranks = on_one_gpu && ranks > 1;
  device.step_timeout = std::chrono::seconds(20);
  return device;
}

bool HasExperts(const FamilyTwin& twin) {
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (twin.config.value(name, 0) > 0) return true;
  }
  return false;
}

// Runs twelve sequences that begin one after the other, in steps of different sizes: all ranks
// sample the rows of the small ones, and the others' are dealt out.
std::vector<SequenceOutput> Twelve(Executor& executor, int chunk) {
  ExecutorDriver driver(executor);
  std::vector<SlotId> slots;
  std::vector<SequenceOutput> outputs;
  for (int i = 0; i < 12; ++i) {
    SamplingParams sampling = kSampling;
    if (i % 3 == 1) sampling = {.temperature = 0, .top_logprobs = 2};
    if (i % 3 == 2) sampling.repetition_penalty = 1.3f;
    sampling.seed = i;
    const SlotId slot = driver.Add(Prompt(21 + i, i), sampling);
    const int32_t length = 21 + i;
    for (int32_t done = 0; done < length; done += chunk) {
      driver.Step({{slot, std::min(chunk, length - done)}});
    }
    slots.push_back(slot);
    driver.Decode(slots, 3);
  }
  for (const SlotId slot : slots) outputs.push_back(driver.output(slot));
  return outputs;
}

class CudaRanksTest : public TinyModelTest {
 protected:
  ~CudaRanksTest() override { DisarmFaultPoints(); }

  std::string Write(const FamilyTwin& twin) {
    std::string path = Path(StrCat("twin", count_++));
    WriteTwinFolder(twin, path, TwinFault::kNone);
    return path;
  }

  // Compares the twin on `ranks` ranks with one rank, and with itself: in pieces, eagerly, and from
  // graphs.
  void Compare(const FamilyTwin& twin, const std::string& path, const std::vector<float>& expected,
               CudaSpec device) {
    device.max_model_len = twin.max_model_len;
    const auto executor = LoadExecutor({path}, device);
    ASSERT_TRUE(executor.ok()) << executor.status();
    const int all = static_cast<int>(prompt_.size());
    const std::vector<float> whole = PromptLogprobs(**executor, prompt_, all);
    EXPECT_LT(Distance(whole, expected), Tolerance(twin.name));
    EXPECT_EQ(PromptLogprobs(*Load(path, device), prompt_, 1), whole);
    device.enforce_eager = true;
    EXPECT_EQ(PromptLogprobs(*Load(path, device), prompt_, 7), whole);
  }

  const std::vector<Token> prompt_ = ReadFamilyReference().prompt;
  int count_ = 0;
};

TEST_F(CudaRanksTest, FamiliesAreWhatOneRankMakesOfThem) {
  int ran = 0;
  for (FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    if (RefusalOf(twin.name).has_value()) continue;
    twin.config = WithFactorsOfFour(Widened(twin.config));
    const std::string path = Write(twin);
    if (twin.name == "granitehybrid") {  // Mamba-2 mixers and experts
      const absl::Status status = LoadExecutor({path}, Ranks(2)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(std::string(status.message()), HasSubstr("tensor_parallel_size is 2"));
      continue;
    }
    CudaSpec one = Ranks(1);
    one.max_model_len = twin.max_model_len;
    const std::vector<float> expected =
        PromptLogprobs(*Load(path, one), prompt_, static_cast<int>(prompt_.size()));
    ++ran;
    for (const int ranks : {2, 4, 8}) {
      SCOPED_TRACE(ranks);
      Compare(twin, path, expected, Ranks(ranks));
      if (!HasExperts(twin)) continue;
      SCOPED_TRACE("by expert");
      CudaSpec device = Ranks(ranks);
      device.expert_parallel = true;
      Compare(twin, path, expected, device);
    }
  }
  EXPECT_GE(ran, 19);
}

// Each rank has states of its own for recurrent layers, and some ranks of four have none.
TEST_F(CudaRanksTest, NothingChangesStates) {
  for (const char* const name :
       {"qwen3_5", "qwen3_5_tied", "qwen3_5_moe", "lfm2", "lfm2moe", "granitehybrid_dense"}) {
    FamilyTwin twin = FamilyTwinOf(name);
    twin.config = Widened(twin.config);
    const std::string path = Write(twin);
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(StrCat(name, " on ", ranks));
      CudaSpec device = Ranks(ranks);
      const std::vector<SequenceOutput> alone = StatesAlone(*Load(path, device));
      EXPECT_EQ(StatesInACrowd(*Load(path, device), 5), alone);
      EXPECT_EQ(StatesInMixedSteps(*Load(path, device)), alone);
      device.enforce_eager = true;
      EXPECT_EQ(StatesInACrowd(*Load(path, device), 64), alone);
    }
  }
}

TEST_F(CudaRanksTest, SequencesDependOnTheNumberOfRanksAlone) {
  for (const TensorType type : {TensorType::kBf16, TensorType::kQ4_0}) {
    const std::string path = ModelPath(SmallModel(type, TensorType::kBf16));
    for (const int ranks : {2, 3, 8}) {
      SCOPED_TRACE(StrCat(Traits(type).name, " on ", ranks));
      const auto executor = Load(path, Ranks(ranks));
      EXPECT_EQ(executor->info().tensor_parallel_size, ranks);
      EXPECT_EQ(executor->info().digest, Load(path, Ranks(1))->info().digest);
      const std::vector<SequenceOutput> outputs = Twelve(*executor, 100);
      EXPECT_EQ(Twelve(*Load(path, Ranks(ranks)), 5), outputs);
      CudaSpec device = Ranks(ranks);
      device.enforce_eager = true;
      device.max_num_batched_tokens = 16;
      EXPECT_EQ(Twelve(*Load(path, device), 16), outputs);
    }
  }
}

// Whole steps as graphs, with a rank that is late now and then.
TEST_F(CudaRanksTest, TenThousandReplaysGiveTheSameBits) {
  constexpr int kRounds = 100;
  constexpr int kSteps = 100;
  const auto executor = Load(ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16)), Ranks(2));
  EXPECT_EQ(executor->info().graphs_failed, 0);
  ExecutorDriver driver(*executor);
  std::vector<SequenceOutput> first;
  for (int round = 0; round < kRounds; ++round) {
    if (round % 4 == 1) CheckOk(ArmFaultPoints(StrCat("cuda.rank_late=40@", round)));
    std::vector<SlotId> slots;
    std::vector<ExecutorDriver::Share> prompts;
    for (int i = 0; i < 12; ++i) {
      SamplingParams sampling = kSampling;
      sampling.seed = i;
      if (i % 2 == 1) sampling.frequency_penalty = 0.5f;
      slots.push_back(driver.Add(Prompt(3 + i, i), sampling));
      prompts.push_back({slots.back(), 3 + i});
    }
    driver.Step(prompts);
    driver.Decode(slots, kSteps);
    std::vector<SequenceOutput> outputs;
    for (const SlotId slot : slots) outputs.push_back(driver.output(slot));
    for (const SlotId slot : slots) driver.Remove(slot);
    if (round == 0) first = outputs;
    ASSERT_EQ(outputs, first) << "round " << round;
  }
}

TEST_F(CudaRanksTest, WeightsThatAreQuantizedOnTheWayStayWithinTheirRounding) {
  const std::string path = ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16));
  const std::vector<float> plain = PromptLogprobs(*Load(path, Ranks(1)), prompt_, 100);
  for (const bool fp8 : {true, false}) {
    CudaSpec device = Ranks(1);
    device.quantize_fp8 = fp8;
    device.quantize_int4 = !fp8;
    device.quantize_head = true;
    const std::vector<float> one = PromptLogprobs(*Load(path, device), prompt_, 100);
    device.tensor_parallel_size = 2;
    device.virtual_ranks = true;
    const std::vector<float> two = PromptLogprobs(*Load(path, device), prompt_, 100);
    EXPECT_LT(Distance(two, plain), 1.3 * Distance(one, plain)) << (fp8 ? "fp8" : "int4");
    RecordProperty(fp8 ? "fp8" : "int4", StrCat(Distance(one, plain), " ", Distance(two, plain)));
    EXPECT_EQ(PromptLogprobs(*Load(path, device), prompt_, 3), two);
  }
}

// Folders with weights that are quantized already: packed four bits, and FP8 in blocks.
TEST_F(CudaRanksTest, QuantizedWeightsAreDivided) {
  const TinyLlama model = GroupedModel();
  std::vector<QuantScheme> schemes = PackedSchemes();
  schemes.push_back({.group = kPerTensor});
  schemes.push_back({.group = kFp8Blocks});
  for (const QuantScheme& scheme : schemes) {
    SCOPED_TRACE(StrCat(static_cast<int>(scheme.packing), " ", scheme.group.columns));
    const std::string path = Folder(model, {.quantization = scheme});
    const auto one = Load(path, Ranks(1));
    const std::vector<float> expected = PromptLogprobs(*one, prompt_, 100);
    for (const int ranks : {2, 4}) {
      const auto executor = Load(path, Ranks(ranks));
      EXPECT_EQ(executor->info().digest, one->info().digest);
      const std::vector<float> whole = PromptLogprobs(*executor, prompt_, 100);
      // A BF16 rounding moves some FP8 inputs by a step, which is 16 times as large.
      EXPECT_LT(Distance(whole, expected), scheme.packed() ? 0.5 : 1.3);
      EXPECT_EQ(PromptLogprobs(*Load(path, Ranks(ranks)), prompt_, 1), whole);
    }
  }
}

TEST_F(CudaRanksTest, LongPromptsAreAddedInPieces) {
  TinyLlama model = SmallModel(TensorType::kBf16, TensorType::kBf16);
  model.hidden = 2048;
  model.head_size = 64;
  model.context = 4096;
  const std::string path = ModelPath(model);
  const std::vector<Token> prompt = Prompt(2000, 1);
  const auto logprobs = [&](int ranks, int chunk) {
    return PromptLogprobs(*Load(path, Ranks(ranks)), prompt, chunk);
  };
  const std::vector<float> two = logprobs(2, 2000);
  EXPECT_EQ(logprobs(2, 300), two);
  EXPECT_LT(Distance(two, logprobs(1, 2000)), 0.32);
}

// Every rank has the same blocks of each group of layers.
TEST_F(CudaRanksTest, BlocksBehindWindowsAreReleased) {
  for (const char* const name : {"gpt_oss", "ministral"}) {
    SCOPED_TRACE(name);
    FamilyTwin twin = FamilyTwinOf(name);
    twin.config = WithFactorsOfFour(Widened(twin.config));
    const std::string path = WriteWindowTwin(std::move(twin), 20, Path(name));
    CudaSpec device = Ranks(2);
    device.max_num_seqs = 8 * kWindowSequences;
    const auto kept = GenerateInWindows(*Load(path, device), /*release=*/false, 64);
    ASSERT_EQ(Load(path, device)->info().limits.state.num_groups(), 2);
    const auto expect_released = [&](const CudaSpec& spec) {
      EXPECT_EQ(GenerateInWindows(*Load(path, spec), /*release=*/true, 16), kept);
      ExpectForkSeesCopies(ForkTwoGroups(*Load(path, spec)));
    };
    expect_released(device);
    device.enforce_eager = true;
    expect_released(device);
    if (GpuCount() < 2) continue;
    CudaSpec real = Ranks(2, /*on_one_gpu=*/false);
    real.max_num_seqs = device.max_num_seqs;
    expect_released(real);
    CheckOk(ArmFaultPoints("cuda.no_peer_access=1000"));  // over NCCL
    expect_released(real);
    DisarmFaultPoints();
  }
}

// Real ranks give the bits of virtual ones.
TEST_F(CudaRanksTest, GpusGiveTheBitsOfRanksOnOne) {
  if (GpuCount() < 2) GTEST_SKIP() << "there are not two GPUs";
  for (int ranks = 2; ranks <= GpuCount(); ranks *= 2) {
    for (const TensorType type : {TensorType::kBf16, TensorType::kQ4_0}) {
      SCOPED_TRACE(StrCat(ranks, " GPUs, ", static_cast<int>(type)));
      const std::string path = ModelPath(SmallModel(type, TensorType::kBf16));
      const std::vector<SequenceOutput> outputs = Twelve(*Load(path, Ranks(ranks)), 100);
      CudaSpec real = Ranks(ranks, /*on_one_gpu=*/false);
      for (int run = 0; run < 3; ++run) EXPECT_EQ(Twelve(*Load(path, real), 4 + run), outputs);
      for (int i = ranks - 1; i >= 0; --i) real.devices.push_back(i);
      EXPECT_EQ(Twelve(*Load(path, real), 30), outputs);
    }
  }
}

TEST_F(CudaRanksTest, GpusWithoutPeerAccessGiveTheSameBits) {
  if (GpuCount() < 2) GTEST_SKIP() << "there are not two GPUs";
  for (const TensorType type : {TensorType::kBf16, TensorType::kQ4_0}) {
    const std::string path = ModelPath(SmallModel(type, TensorType::kBf16));
    const std::vector<SequenceOutput> outputs = Twelve(*Load(path, Ranks(2)), 100);
    CheckOk(ArmFaultPoints("cuda.no_peer_access=1000"));
    CudaSpec real = Ranks(2, /*on_one_gpu=*/false);
    EXPECT_EQ(Twelve(*Load(path, real), 100), outputs);
    real.enforce_eager = true;
    EXPECT_EQ(Twelve(*Load(path, real), 7), outputs);
    DisarmFaultPoints();
  }
}

// The GPU with the least memory says how many blocks all of them have.
TEST_F(CudaRanksTest, GpusMayDifferInFreeMemory) {
  if (GpuCount() < 2) GTEST_SKIP() << "there are not two GPUs";
  const std::string path = ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16));
  CudaSpec device = Ranks(2, /*on_one_gpu=*/false);
  device.kv_cache_memory = 0;
  const auto blocks = [&] { return Load(path, device)->info().limits.num_blocks[0]; };
  const int32_t before = blocks();
  void* taken = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&taken, size_t{24} << 30), cudaSuccess);
  const int32_t after = blocks();
  EXPECT_LT(after, before * 0.9);
  EXPECT_GT(after, before * 0.5);
  ASSERT_EQ(cudaFree(taken), cudaSuccess);
}

TEST_F(CudaRanksTest, FamiliesOnGpus) {
  if (GpuCount() < 2) GTEST_SKIP() << "there are not two GPUs";
  for (FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    if (RefusalOf(twin.name).has_value()) continue;
    twin.config = WithFactorsOfFour(Widened(twin.config));
    const std::string path = Write(twin);
    for (int ranks = 2; ranks <= std::min(GpuCount(), 4); ranks *= 2) {
      SCOPED_TRACE(ranks);
      CudaSpec device = Ranks(ranks);
      device.max_model_len = twin.max_model_len;
      const std::vector<float> expected = PromptLogprobs(*Load(path, device), prompt_, 100);
      device.virtual_ranks = false;
      EXPECT_EQ(PromptLogprobs(*Load(path, device), prompt_, 1), expected);
    }
  }
}

// The first rank of four, which plays the others, runs steps; its tokens mean nothing.
TEST_F(CudaRanksTest, ALoneRankRuns) {
  const std::string path = ModelPath(SmallModel(TensorType::kBf16, TensorType::kBf16));
  CudaSpec device = Ranks(4, /*on_one_gpu=*/false);
  device.lone_rank = true;
  const auto executor = Load(path, device);
  EXPECT_EQ(executor->info().tensor_parallel_size, 4);
  EXPECT_EQ(Twelve(*executor, 100).size(), 12u);
}

TEST_F(CudaRanksTest, DevicesThatAreNotThereAreRefused) {
  const std::string path = ModelPath(SmallModel(TensorType::kF32, TensorType::kF32));
  CudaSpec device = Ranks(2, /*on_one_gpu=*/false);
  device.devices = {0, 77};
  EXPECT_THAT(std::string(LoadExecutor({path}, device).status().message()),
              HasSubstr("GPU 77 is needed"));
  device.devices = {0, 0};
  EXPECT_THAT(std::string(LoadExecutor({path}, device).status().message()),
              HasSubstr("devices name GPU 0 twice"));
  device = Ranks(2);
  device.expert_parallel = true;
  EXPECT_THAT(std::string(LoadExecutor({path}, device).status().message()),
              HasSubstr("is no mixture of experts"));
}

// Runs two steps on `ranks` ranks, of which the first meets `fault`. Exits with 70, or with the
// number of the check that failed.
[[noreturn]] void FailOnRanks(int ranks, const std::string& fault, const std::string& reason) {
  alarm(60);
  CudaSpec device = Ranks(ranks);
  device.step_timeout = std::chrono::milliseconds(800);
  std::unique_ptr<Executor> executor =
      Load(ModelPath(SmallModel(TensorType::kF32, TensorType::kF32)), device);
  CheckOk(ArmFaultPoints(fault));
  ExecutorDriver driver(*executor);
  StepPlan plan;
  plan.id = 1;
  plan.starts.push_back({0, std::make_shared<const SamplingParams>(kSampling)});
  plan.rows.push_back({.slot = 0,
                       .start = 0,
                       .num_tokens = 4,
                       .tokens = {0, 4},
                       .blocks = {0, 1},
                       .logits = {0, 1}});
  plan.tokens = Prompt(4, 0);
  plan.blocks = {0};
  plan.logits.push_back({.offset = 3});
  CheckOk(executor->Submit(plan));
  const absl::Status status = executor->Wait()->status;
  if (status.code() != absl::StatusCode::kUnavailable) std::_Exit(1);
  if (status.message().find(reason) == std::string::npos) {
    fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    std::_Exit(2);
  }
  if (executor->Submit(plan).code() != absl::StatusCode::kUnavailable) std::_Exit(3);
  executor.reset();
  std::_Exit(70);
}

class CudaRanksDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaRanksDeathTest, ARankThatLaunchesNothingEndsTheOthersWaits) {
  EXPECT_EXIT(FailOnRanks(2, "cuda.rank_stall", "--step-timeout"), ExitedWithCode(70), "");
}

TEST_F(CudaRanksDeathTest, ARankWhoseKernelNeverEndsFailsTheStep) {
  EXPECT_EXIT(FailOnRanks(2, "cuda.hang", "did not end in 0.8 s"), ExitedWithCode(70), "");
}

TEST_F(CudaRanksDeathTest, ARankWhoseDeviceFailsFailsTheStep) {
  EXPECT_EXIT(FailOnRanks(2, "cuda.device_error", "CUDA error"), ExitedWithCode(70), "");
}

}  // namespace
}  // namespace millrace::cuda
