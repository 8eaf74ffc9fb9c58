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

// Of the largest logit, against float64: with keys and values in float32; and in float16, which is
// compared with a reference that rounds them, too.
constexpr double kTolerance = 1e-5;
constexpr double kHalfKvTolerance = 5e-4;

DeviceSpec Device(int max_model_len, bool float_kv = false) {
  return {.threads = 2,
          .kv_cache_memory = 8 << 20,
          .max_num_seqs = 4,
          .max_num_batched_tokens = 64,
          .max_model_len = max_model_len,
          .kv_cache_float32 = float_kv};
}

class FamiliesTest : public TinyModelTest {};

TEST_F(FamiliesTest, AreWhatTransformersMakesOfThem) {
  for (const cpu::Kernels* kernels : {&cpu::PlainKernels(), &cpu::BestKernels()}) {
    for (const bool float_kv : {true, false}) {
      SCOPED_TRACE(StrCat(kernels->name, float_kv ? ", float32" : ", float16"));
      const auto load = [&](const std::string& path, int max_model_len) {
        return cpu::LoadCpuExecutor({path}, Device(max_model_len, float_kv), *kernels);
      };
      std::vector<TwinResult> results = RunFamilies(load, Path("twins"));
      EXPECT_EQ(results.size(), ReadFamilyReference().twins.size());
      const std::vector<TwinResult> files = RunFamilies(load, Path("twins"), TwinForm::kGguf);
      EXPECT_GT(files.size(), results.size() / 2);
      results.insert(results.end(), files.begin(), files.end());
      for (const TwinResult& result : results) {
        const double error = float_kv ? result.error : result.half_kv_error;
        EXPECT_LT(error, float_kv ? kTolerance : kHalfKvTolerance) << result.name;
        EXPECT_TRUE(result.same) << result.name;
        // For README.md's table: --gtest_output=xml.
        RecordProperty(StrCat(result.name, float_kv ? "_float32" : "_float16"),
                       StrCat(error, " ", result.error));
      }
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
