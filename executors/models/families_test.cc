// Every family on the CPU against transformers, and what must show when it is computed otherwise.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/executor_driver.h"
#include "executors/models/family_reference.h"
#include "executors/tiny_model_test_util.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Of the largest logit. Against float64 with keys and values in float16, as they are here; and
// without, where that rounding alone is worth as much (transformers' own with it are as far off).
constexpr double kHalfKvTolerance = 5e-4;
constexpr double kTolerance = 2e-3;

DeviceSpec Device(int max_model_len) {
  return {.threads = 2,
          .kv_cache_memory = 4 << 20,
          .max_num_seqs = 4,
          .max_num_batched_tokens = 64,
          .max_model_len = max_model_len};
}

class FamiliesTest : public TinyModelTest {};

TEST_F(FamiliesTest, AreWhatTransformersMakesOfThem) {
  for (const cpu::Kernels* kernels : {&cpu::PlainKernels(), &cpu::BestKernels()}) {
    SCOPED_TRACE(kernels->name);
    const auto load = [&](const std::string& path, int max_model_len) {
      return cpu::LoadCpuExecutor({path}, Device(max_model_len), *kernels);
    };
    std::vector<TwinResult> results = RunFamilies(load, Path("twins"));
    EXPECT_EQ(results.size(), ReadFamilyReference().twins.size());
    const std::vector<TwinResult> files = RunFamilies(load, Path("twins"), TwinForm::kGguf);
    EXPECT_GT(files.size(), results.size() / 2);
    results.insert(results.end(), files.begin(), files.end());
    for (const TwinResult& result : results) {
      EXPECT_LT(result.half_kv_error, kHalfKvTolerance) << result.name;
      EXPECT_LT(result.error, kTolerance) << result.name;
      EXPECT_TRUE(result.same) << result.name;
      // For README.md's table: --gtest_output=xml.
      RecordProperty(result.name, StrCat(result.error, " ", result.half_kv_error));
    }
  }
}

TEST(FamilyReferenceTest, ANanIsWorst) {
  const std::vector<double> reference = {1, 2, 3};
  EXPECT_EQ(WorstError(std::vector<float>{1, 2.5f, 3}, reference), 0.5);
  for (size_t at = 0; at < reference.size(); ++at) {
    std::vector<float> logprobs = {1, 2.5f, 3};
    logprobs[at] = NAN;
    EXPECT_EQ(WorstError(logprobs, reference), INFINITY) << at;
  }
}

// A wrong base, epsilon, grouping, scale, window, cap, factor … is no rounding error.
TEST_F(FamiliesTest, WhatIsComputedOtherwiseShows) {
  const FamilyReference reference = ReadFamilyReference();
  const std::string folder = Path("mutated");
  for (const FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    const FamilyReference::Twin& expected = reference.twins.at(twin.name);
    const auto error = [&](const FamilyTwin& mutated) {
      const auto executor = cpu::LoadCpuExecutor({folder}, Device(mutated.max_model_len));
      CheckOk(executor.status());
      return WorstError(PromptLogprobs(**executor, reference.prompt, 48),
                        expected.half_kv_logprobs) /
             expected.largest;
    };
    for (const Json& mutation : twin.mutations) {
      FamilyTwin mutated = twin;
      mutated.config.merge_patch(mutation);
      WriteTwinFolder(mutated, folder);
      EXPECT_GT(error(mutated), 10 * kHalfKvTolerance) << mutation.dump();
    }
    WriteTwinFolder(twin, folder, {.other_kv_heads = true});
    EXPECT_GT(error(twin), 10 * kHalfKvTolerance) << "another grouping of heads";
  }
}

}  // namespace
}  // namespace millrace
