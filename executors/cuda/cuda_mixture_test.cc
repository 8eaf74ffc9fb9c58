// Tests what a GPU executor tells of its mixtures of experts: how many experts steps touch, with
// dummy weights of both routings, and the read rate.
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executors/cuda/cuda_test_util.h"
#include "executors/executor_driver_test_util.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kExperts = 64;
constexpr int kChosen = 4;
constexpr int kRows = 32;
constexpr int kVocab = 2000;  // so large that few rows have the same token

class CudaMixtureTest : public TinyModelTest {
 protected:
  // Writes a small model with two mixtures, whose router has sigmoids if it is GLM-4.5's.
  std::string Write(const std::string& name) {
    for (FamilyTwin& twin : FamilyTwins()) {
      if (twin.name != name) continue;
      twin.config["hidden_size"] = 256;
      if (twin.config.contains("head_dim")) twin.config["head_dim"] = 64;
      const char* const experts =
          twin.config.contains("n_routed_experts") ? "n_routed_experts" : "num_experts";
      twin.config[experts] = kExperts;
      twin.config["num_experts_per_tok"] = kChosen;
      twin.config["vocab_size"] = kVocab;
      std::string path = Path(name);
      WriteTwinFolder(twin, path);
      return path;
    }
    ADD_FAILURE() << "no twin " << name;
    return "";
  }
};

std::vector<MixtureUse> Uses(const Executor& executor) {
  const absl::StatusOr<std::vector<MixtureUse>> uses = executor.MixtureUses();
  CheckOk(uses.status());
  return *uses;
}

// Returns the experts of each mixture that `steps` decoding steps of `rows` sequences touch, the
// mean of a step. Tokens are drawn uniformly from the vocabulary.
std::vector<double> Touched(Executor& executor, int rows, int steps) {
  ExecutorDriver driver(executor);
  std::vector<SlotId> slots;
  for (int i = 0; i < rows; ++i) {
    const SamplingParams sampling{.temperature = 1, .seed = static_cast<uint64_t>(i + 1)};
    slots.push_back(driver.Add(Prompt(20, i, kVocab), sampling));
  }
  driver.Generate(slots, 1, 1000);
  const std::vector<MixtureUse> before = Uses(executor);
  driver.Decode(slots, steps);
  const std::vector<MixtureUse> after = Uses(executor);
  std::vector<double> touched;
  for (size_t i = 0; i < before.size(); ++i) {
    touched.push_back(static_cast<double>(after[i].touched - before[i].touched) / steps);
  }
  return touched;
}

TEST_F(CudaMixtureTest, CountsTheExpertsThatStepsTouch) {
  const std::string path = Write("qwen3moe");
  for (const bool eager : {false, true}) {
    CudaSpec device = Device();
    device.enforce_eager = eager;
    const std::unique_ptr<Executor> executor = Load(path, device);
    const std::vector<MixtureUse> uses = Uses(*executor);
    ASSERT_EQ(uses.size(), 2u);
    for (const MixtureUse& use : uses) {
      EXPECT_EQ(use.experts, kExperts);
      EXPECT_GE(use.expert_bytes, 3 * 256 * 32 * 2);
    }
    // A row that decodes touches its token's experts. Graphs are of 1, 2, 4 ... rows.
    for (const double touched : Touched(*executor, 1, 10)) EXPECT_EQ(touched, kChosen);
  }
}

// More pairs than LaunchRoute assigns itself.
TEST_F(CudaMixtureTest, CountsTheExpertsOfPrompts) {
  const std::unique_ptr<Executor> executor = Load(Write("qwen3moe"), Device());
  const std::vector<MixtureUse> before = Uses(*executor);
  ExecutorDriver driver(*executor);
  driver.Generate({driver.Add(Prompt(200, 1, kVocab), kSampling)}, 1, 1000);
  const std::vector<MixtureUse> after = Uses(*executor);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_GT(after[i].touched, before[i].touched + kChosen);
    EXPECT_LE(after[i].touched, before[i].touched + kExperts);
  }
}

TEST_F(CudaMixtureTest, DummyRoutersLoadExpertsAlikeOrAsTrainedOnes) {
  const double expected = kExperts * (1 - std::pow(1 - double{kChosen} / kExperts, kRows));
  for (const char* name : {"qwen3moe", "glm4moe"}) {
    SCOPED_TRACE(name);
    const std::string path = Write(name);
    CudaSpec device = Device();
    device.dummy_weights = true;
    const std::vector<double> uniform = Touched(*Load(path, device), kRows, 20);
    device.skewed_routers = true;
    const std::unique_ptr<Executor> executor = Load(path, device);
    const std::vector<double> skewed = Touched(*executor, kRows, 20);
    ASSERT_FALSE(uniform.empty());
    for (size_t i = 0; i < uniform.size(); ++i) {
      EXPECT_GT(uniform[i], 0.85 * expected);
      EXPECT_LT(skewed[i], 0.9 * uniform[i]);
      EXPECT_GT(skewed[i], 0.5 * uniform[i]);
    }
    EXPECT_EQ(Touched(*Load(path, device), kRows, 20), skewed);
    device.skewed_routers = false;
    EXPECT_NE(Load(path, device)->info().digest, executor->info().digest);
  }
}

TEST_F(CudaMixtureTest, RefusesARoutingWithoutMixtures) {
  CudaSpec device = Device();
  device.dummy_weights = device.skewed_routers = true;
  const absl::Status status =
      LoadExecutor({ModelPath(SmallModel(TensorType::kF32, TensorType::kF16))}, device).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("routing is real, but the model has no"));
}

TEST_F(CudaMixtureTest, MeasuresTheReadRate) {
  CudaSpec device = Device();
  const std::string path = ModelPath(SmallModel(TensorType::kF32, TensorType::kF16));
  EXPECT_FALSE(Load(path, device)->MeasureReadRate().has_value());  // 64 MiB of keys and values
  device.kv_cache_memory = int64_t{1} << 30;
  const std::optional<double> rate = Load(path, device)->MeasureReadRate();
  ASSERT_TRUE(rate.has_value());
  EXPECT_GT(*rate, 1e11);
  EXPECT_LT(*rate, 1e14);
}

}  // namespace
}  // namespace millrace::cuda
