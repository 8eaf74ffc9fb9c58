// Embeddings of decoders on the CPU against transformers
// (tests/reference/make_family_reference.py), and what must show when they are computed otherwise.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/models/encoder_reference.h"
#include "executors/tiny_model_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// As families_test.cc has them, but of the largest value.
constexpr double kTolerance = 1e-5;
constexpr double kHalfKvTolerance = 5e-4;
constexpr double kRoundedTolerance = 3e-3;

CpuSpec Device(int threads = 2, bool float_kv = false) {
  return {{.threads = threads,
           .kv_cache_memory = 4 << 20,
           .max_num_seqs = 4,
           .max_num_batched_tokens = 256},
          /*kv_cache_float32=*/float_kv};
}

std::unique_ptr<Executor> Load(const std::string& path, const CpuSpec& device = Device(),
                               const cpu::Kernels& kernels = cpu::BestKernels()) {
  auto loaded = cpu::LoadCpuExecutor({path}, device, kernels);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

// Embeds `text` in steps of `chunk` tokens, in slot 0.
std::vector<float> EmbedByParts(Executor& executor, const std::vector<Token>& text, int chunk) {
  const int block_size = executor.info().limits.block_size();
  StepPlan whole = TextsPlan({text}, block_size, 1);
  std::vector<float> embedding;
  const auto size = static_cast<int32_t>(text.size());
  for (int32_t begin = 0; begin < size; begin += chunk) {
    const int32_t end = std::min(begin + chunk, size);
    StepPlan plan{.id = static_cast<StepId>(begin / chunk + 1)};
    if (begin == 0) {
      plan.starts = whole.starts;
      plan.blocks = whole.blocks;
    }
    plan.tokens.assign(text.begin() + begin, text.begin() + end);
    StepRow row{.slot = 0, .start = begin, .num_tokens = end - begin};
    row.tokens = {0, end - begin};
    row.blocks = {0, static_cast<int32_t>(plan.blocks.size())};
    plan.rows.push_back(row);
    embedding = Embed(executor, std::move(plan))[0];
  }
  return embedding;
}

class PoolersTest : public TinyModelTest {
 protected:
  const EncoderReference reference_ = ReadEncoderReference();
};

TEST_F(PoolersTest, AreWhatTransformersMakesOfThem) {
  EXPECT_EQ(PoolerTwins().size(), 2u);
  for (const FamilyTwin& twin : PoolerTwins()) {
    const std::string folder = Path(twin.name);
    const std::string gguf = folder + ".gguf";
    WriteTwinFolder(twin, folder);
    const bool in_gguf = twin.in_gguf && twin.normalize;  // a GGUF file's always are
    if (in_gguf) WriteTwinGguf(twin, gguf);
    const cpu::KernelList kernels = cpu::SupportedKernels();
    for (int i = 0; i < kernels.count; ++i) {
      for (const std::string& path : {folder, gguf}) {
        if (path == gguf && !in_gguf) continue;
        SCOPED_TRACE(StrCat(path, " ", kernels.tables[i]->name));
        const auto executor = Load(path, Device(), *kernels.tables[i]);
        EXPECT_EQ(executor->info().limits.embedding_size, 64);
        EXPECT_EQ(executor->info().embedding.normalized, twin.normalize);
        const std::vector<float> embedding = Embed(*executor, {reference_.prompt})[0];
        const Json& expected = reference_.twins[twin.name];
        const double half_kv = EmbeddingError(embedding, expected["half_kv_embedding"]);
        EXPECT_LT(half_kv, kHalfKvTolerance);
        const double rounded = EmbeddingError(embedding, expected["embedding"]);
        EXPECT_LT(rounded, kRoundedTolerance);
        const auto precise = Load(path, Device(2, true), *kernels.tables[i]);
        const double error =
            EmbeddingError(Embed(*precise, {reference_.prompt})[0], expected["embedding"]);
        EXPECT_LT(error, kTolerance);
        RecordProperty(StrCat(twin.name, i), StrCat(error, " ", rounded, " ", half_kv));
      }
    }
  }
}

TEST_F(PoolersTest, TheLastTokensIsTheSameHoweverATextIsCut) {
  const FamilyTwin twin = PoolerTwins()[0];
  ASSERT_EQ(twin.pooling, "lasttoken");
  const std::string folder = Path("parts");
  WriteTwinFolder(twin, folder);
  const cpu::KernelList kernels = cpu::SupportedKernels();
  for (int i = 0; i < kernels.count; ++i) {
    SCOPED_TRACE(kernels.tables[i]->name);
    const auto load = [&] { return Load(folder, Device(), *kernels.tables[i]); };
    const std::vector<float> whole = Embed(*load(), {reference_.prompt})[0];
    for (const int chunk : {1, 7, 16, 36}) {
      EXPECT_EQ(EmbedByParts(*load(), reference_.prompt, chunk), whole) << chunk;
    }
    const Embeddings together = Embed(*load(), {{9, 8, 7}, reference_.prompt, {5}});
    EXPECT_EQ(together[1], whole);
    EXPECT_NE(together[0], together[2]);
  }
}

// A model whose weights are divided among ranks is the same model, but for the order of sums.
TEST_F(PoolersTest, RanksGiveTheEmbeddingsOfOne) {
  for (const FamilyTwin& twin : PoolerTwins()) {
    const std::string folder = Path(twin.name);
    WriteTwinFolder(twin, folder);
    const std::vector<float> whole = Embed(*Load(folder, Device(2, true)), {reference_.prompt})[0];
    for (const int ranks : {2, 3}) {
      CpuSpec device = Device(2, true);
      device.tensor_parallel_size = ranks;
      device.kv_cache_memory = 16 << 20;
      const std::vector<float> embedding = Embed(*Load(folder, device), {reference_.prompt})[0];
      EXPECT_LT(EmbeddingError(embedding, Json(whole)), kTolerance)
          << twin.name << " on " << ranks << " ranks";
    }
  }
}

TEST_F(PoolersTest, WhatIsComputedOtherwiseShows) {
  for (const FamilyTwin& twin : PoolerTwins()) {
    const Json& expected = reference_.twins[twin.name];
    for (EncoderMutant& mutant : EncoderMutants(twin)) {
      if (mutant.change == "another pooling") {
        mutant.twin.pooling = twin.pooling == "lasttoken" ? "mean_tokens" : "lasttoken";
      }
      SCOPED_TRACE(StrCat(twin.name, " ", mutant.change));
      WriteTwinFolder(mutant.twin, Path("mutant"), mutant.fault);
      const auto executor = Load(Path("mutant"), Device(2, true));
      EXPECT_GT(EmbeddingError(Embed(*executor, {reference_.prompt})[0], expected["embedding"]),
                10 * kTolerance);
    }
  }
}

// Every family's decoders, mixtures among them, end in the same op.
TEST_F(PoolersTest, EveryDecoderMakesEmbeddingsOfLengthOne) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    const std::string folder = Path(twin.name);
    WriteTwinFolder(twin, folder);
    CpuSpec device = Device();
    device.max_model_len = twin.max_model_len;
    auto executor = cpu::LoadCpuExecutor({.path = folder, .runner = ModelRunner::kPooling}, device);
    ASSERT_TRUE(executor.ok()) << executor.status();
    const std::vector<float> embedding = Embed(**executor, {reference_.prompt})[0];
    double squares = 0;
    for (const float value : embedding) squares += double{value} * value;
    EXPECT_NEAR(squares, 1, 1e-5);
  }
}

TEST_F(PoolersTest, RefusesWhatAMeanOrAnEmbeddingCannotBeMadeOf) {
  const std::string folder = Path("refused");
  WriteTwinFolder(PoolerTwins()[1], folder);
  ASSERT_EQ(PoolerTwins()[1].pooling, "mean_tokens");
  const auto mean = Load(folder);
  StepPlan part = TextsPlan({{1, 2, 3}}, mean->info().limits.block_size(), 1);
  part.rows[0].start = 1;
  EXPECT_THAT(std::string(mean->Submit(part).message()), HasSubstr("whole sequences"));
  WriteTwinFolder(PoolerTwins()[0], folder);
  const auto last = Load(folder);
  StepPlan sampled = TextsPlan({{1, 2, 3}}, last->info().limits.block_size(), 1);
  sampled.logits.push_back({.offset = 2, .target = std::nullopt});
  sampled.rows[0].logits = {0, 1};
  EXPECT_THAT(std::string(last->Submit(sampled).message()),
              HasSubstr("allowed of a model of embeddings: none"));
}

}  // namespace
}  // namespace millrace
