// Encoders on the CPU against transformers (tests/reference/make_family_reference.py), and what
// must show when they are computed otherwise.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/executor_driver.h"
#include "executors/models/reference_forward.h"
#include "executors/tiny_model_test_util.h"
#include "formats/family_twins.h"
#include "formats/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using Embeddings = std::vector<std::vector<float>>;

// Of the largest value: keys and values are in float16 here.
constexpr double kHalfKvTolerance = 5e-4;
constexpr double kTolerance = 2e-3;

struct EncoderReference {
  std::vector<Token> prompt;
  Json twins;
};

EncoderReference ReadReference() {
  std::ifstream file("tests/reference/encoder_reference.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<Json> json = ParseJson(text, {});
  CheckOk(json.status());
  return {(*json)["prompt"].get<std::vector<Token>>(), (*json)["twins"]};
}

DeviceSpec Device(int threads = 2) {
  return {.threads = threads,
          .kv_cache_memory = 4 << 20,
          .max_num_seqs = 4,
          .max_num_batched_tokens = 128};
}

std::unique_ptr<Executor> Load(const std::string& path,
                               const cpu::Kernels& kernels = cpu::BestKernels(), int threads = 2) {
  auto loaded = cpu::LoadCpuExecutor({path}, Device(threads), kernels);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

// One step with a row for each text, in slots and blocks that nobody else uses.
StepPlan PlanOf(const std::vector<std::vector<Token>>& texts, int block_size, StepId id) {
  StepPlan plan{.id = id};
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto slot = static_cast<SlotId>(i);
    const auto tokens = static_cast<int32_t>(texts[i].size());
    plan.starts.push_back({slot, std::make_shared<const SamplingParams>()});
    StepRow row{.slot = slot, .start = 0, .num_tokens = tokens};
    row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
    plan.tokens.insert(plan.tokens.end(), texts[i].begin(), texts[i].end());
    row.tokens.end = static_cast<int32_t>(plan.tokens.size());
    row.blocks.begin = static_cast<int32_t>(plan.blocks.size());
    for (int32_t at = 0; at < tokens; at += block_size) {
      plan.blocks.push_back(static_cast<BlockId>(plan.blocks.size()));
    }
    row.blocks.end = static_cast<int32_t>(plan.blocks.size());
    plan.rows.push_back(row);
  }
  return plan;
}

Embeddings Embed(Executor& executor, const std::vector<std::vector<Token>>& texts, StepId id = 1) {
  CheckOk(executor.Submit(PlanOf(texts, executor.info().limits.block_size, id)));
  const std::optional<StepResult> result = executor.Wait();
  CheckOk(result->status);
  Embeddings embeddings;
  for (const RowResult& row : result->rows) {
    CheckOk(row.status);
    embeddings.emplace_back(result->embeddings.begin() + row.embedding.begin,
                            result->embeddings.begin() + row.embedding.end);
  }
  return embeddings;
}

// The largest difference, over the reference's largest value.
double Error(const std::vector<float>& embedding, const Json& reference) {
  const auto expected = reference.get<std::vector<double>>();
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  return WorstError(embedding, expected) / largest;
}

class EncodersTest : public TinyModelTest {
 protected:
  const EncoderReference reference_ = ReadReference();
};

TEST_F(EncodersTest, AreWhatTransformersMakesOfThem) {
  for (const FamilyTwin& twin : EncoderTwins()) {
    const std::string folder = Path(twin.name);
    const std::string gguf = folder + ".gguf";
    WriteTwinFolder(twin, folder);
    if (twin.in_gguf) WriteTwinGguf(twin, gguf);
    const cpu::KernelList kernels = cpu::SupportedKernels();
    for (int i = 0; i < kernels.count; ++i) {
      for (const std::string& path : {folder, gguf}) {
        if (path == gguf && !twin.in_gguf) continue;
        SCOPED_TRACE(StrCat(path, " ", kernels.tables[i]->name));
        const auto executor = Load(path, *kernels.tables[i]);
        EXPECT_EQ(executor->info().limits.embedding_size, 64);
        const std::vector<float> embedding = Embed(*executor, {reference_.prompt})[0];
        const Json& expected = reference_.twins[twin.name];
        EXPECT_LT(Error(embedding, expected["half_kv_embedding"]), kHalfKvTolerance);
        EXPECT_LT(Error(embedding, expected["embedding"]), kTolerance);
        RecordProperty(StrCat(twin.name, i),  // for README.md's table: --gtest_output=xml
                       StrCat(Error(embedding, expected["embedding"]), " ",
                              Error(embedding, expected["half_kv_embedding"])));
      }
    }
  }
}

TEST_F(EncodersTest, WhatIsComputedOtherwiseShows) {
  const std::string folder = Path("mutated");
  const auto error = [&](const FamilyTwin& twin, const FamilyTwin& mutated) {
    WriteTwinFolder(mutated, folder);
    return Error(Embed(*Load(folder), {reference_.prompt})[0],
                 reference_.twins[twin.name]["half_kv_embedding"]);
  };
  for (const FamilyTwin& twin : EncoderTwins()) {
    SCOPED_TRACE(twin.name);
    for (const Json& mutation : twin.mutations) {
      FamilyTwin mutated = twin;
      mutated.config.merge_patch(mutation);
      EXPECT_GT(error(twin, mutated), 10 * kHalfKvTolerance) << mutation.dump();
    }
    FamilyTwin mutated = twin;
    mutated.pooling = twin.pooling == "mean_tokens" ? "cls_token" : "mean_tokens";
    EXPECT_GT(error(twin, mutated), 10 * kHalfKvTolerance) << "another pooling";
    mutated = twin;
    mutated.normalize = !twin.normalize;
    EXPECT_GT(error(twin, mutated), 10 * kHalfKvTolerance) << "another length";
  }
}

TEST_F(EncodersTest, ATextsNumbersAreItsOwn) {
  const FamilyTwin twin = EncoderTwins()[0];
  const std::string folder = Path("alone");
  WriteTwinFolder(twin, folder);
  const std::vector<Token> other = {9, 8, 7};
  const auto executor = Load(folder);
  const std::vector<float> alone = Embed(*executor, {reference_.prompt}, 1)[0];
  const Embeddings together = Embed(*executor, {other, reference_.prompt, {5}}, 2);
  EXPECT_EQ(together[1], alone);
  EXPECT_EQ(together[0], Embed(*executor, {other}, 3)[0]);
  EXPECT_NE(together[0], together[2]);
  EXPECT_EQ(Embed(*Load(folder, cpu::BestKernels(), 1), {reference_.prompt})[0], alone)
      << "one thread";
  // A later token changes what comes of the earlier ones: attention is to the whole text.
  std::vector<Token> longer = reference_.prompt;
  longer.push_back(3);
  EXPECT_NE(Embed(*executor, {longer}, 4)[0], alone);
}

TEST_F(EncodersTest, QuantizedWhileLoadedIsCloseBy) {
  const FamilyTwin twin = EncoderTwins()[0];
  const std::string folder = Path("int8");
  WriteTwinFolder(twin, folder);
  DeviceSpec device = Device();
  device.weight_bits = 8;
  const auto loaded = cpu::LoadCpuExecutor({folder}, device);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const double error =
      Error(Embed(**loaded, {reference_.prompt})[0], reference_.twins[twin.name]["embedding"]);
  EXPECT_GT(error, kTolerance);
  EXPECT_LT(error, 0.1);
}

TEST_F(EncodersTest, RefusesRowsThatAreNoWholeTexts) {
  const std::string folder = Path("refused");
  WriteTwinFolder(EncoderTwins()[0], folder);
  const auto executor = Load(folder);
  StepPlan plan = PlanOf({{1, 2, 3}}, executor->info().limits.block_size, 1);
  plan.logits.push_back({.offset = 2, .target = std::nullopt});
  plan.rows[0].logits = {0, 1};
  EXPECT_THAT(std::string(executor->Submit(plan).message()),
              ::testing::HasSubstr("allowed of an encoder: whole sequences, without logits"));
}

}  // namespace
}  // namespace millrace
