// Encoders on the CPU against transformers (tests/reference/make_family_reference.py), and what
// must show when they are computed otherwise.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/models/encoder_reference.h"
#include "executors/tiny_model_test_util.h"
#include "formats/families/family.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Shares of the largest value, against float64: with keys and values in float32, and in float16
// where the reference rounds them, too; and in float16 where it does not. Where float32 rounds a
// key or a value to another float16 than the reference's float64, and the family amplifies that,
// the second may be more: up to twice what it is between transformers' own results in float32 and
// in float64 (half_kv_flips), and never more than kFlippedTolerance.
constexpr double kTolerance = 1e-5;
constexpr double kRoundedTolerance = 3e-4;
constexpr double kFlippedTolerance = 1e-4;
// llama.cpp's, whose GELU is an approximation in a table of float16, as are its keys and values.
constexpr double kLlamaCppTolerance = 1e-3;
constexpr double kLlamaCppLogitTolerance = 4e-3;  // no share
constexpr double kLogitTolerance = 1e-4;          // of one sum, in which much cancels

CpuSpec Device(int threads = 2, bool float_kv = false) {
  return {{.threads = threads,
           .kv_cache_memory = 4 << 20,
           .max_num_seqs = 4,
           .max_num_batched_tokens = 128},
          /*kv_cache_float32=*/float_kv};
}

std::unique_ptr<Executor> Load(const std::string& path, const CpuSpec& device = Device(),
                               const cpu::Kernels& kernels = cpu::BestKernels()) {
  auto loaded = cpu::LoadCpuExecutor({path}, device, kernels);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

class EncodersTest : public TinyModelTest {
 protected:
  const EncoderReference reference_ = ReadEncoderReference();
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
        const auto executor = Load(path, Device(), *kernels.tables[i]);
        EXPECT_EQ(executor->info().limits.embedding_size, 64);
        const std::vector<float> embedding = Embed(*executor, {reference_.prompt})[0];
        const Json& expected = reference_.twins[twin.name];
        const double half_kv = EmbeddingError(embedding, expected["half_kv_embedding"]);
        const bool amplifies = twin.family->name != "bert" || twin.name == "distilbert";
        const double flips = amplifies ? 2 * expected["half_kv_flips"].get<double>() : 0;
        EXPECT_LT(half_kv, std::clamp(flips, kTolerance, kFlippedTolerance));
        const double rounded = EmbeddingError(embedding, expected["embedding"]);
        EXPECT_LT(rounded, kRoundedTolerance);
        const auto precise = Load(path, Device(2, true), *kernels.tables[i]);
        const double error =
            EmbeddingError(Embed(*precise, {reference_.prompt})[0], expected["embedding"]);
        EXPECT_LT(error, kTolerance);
        RecordProperty(StrCat(twin.name, i),  // for docs/accuracy.md's tables: --gtest_output=xml
                       StrCat(error, " ", rounded, " ", half_kv));
      }
    }
  }
}

// A cross-encoder's one number is its logit of a pair.
TEST_F(EncodersTest, PairsAreWhatTransformersMakesOfThem) {
  for (const FamilyTwin& twin : ClassifierTwins()) {
    const Json& expected = reference_.twins[twin.name];
    const int second = expected["second_type"];
    const bool has_types = second < static_cast<int>(reference_.prompt.size());
    const auto logit = [&](const std::string& folder, const CpuSpec& device, bool types = true,
                           const cpu::Kernels& kernels = cpu::BestKernels()) {
      const auto executor = Load(folder, device, kernels);
      EXPECT_EQ(executor->info().limits.embedding_size, 1);
      StepPlan plan = TextsPlan({reference_.prompt}, executor->info().limits.block_size(), 1);
      if (has_types && types) plan.rows[0].second_type = second;
      return Embed(*executor, std::move(plan))[0];
    };
    const std::string folder = Path(twin.name);
    WriteTwinFolder(twin, folder);
    const cpu::KernelList kernels = cpu::SupportedKernels();
    for (int i = 0; i < kernels.count; ++i) {
      SCOPED_TRACE(StrCat(twin.name, " ", kernels.tables[i]->name));
      const std::vector<float> half = logit(folder, Device(), true, *kernels.tables[i]);
      EXPECT_LT(EmbeddingError(half, expected["half_kv_embedding"]), kLogitTolerance);
      const std::vector<float> exact = logit(folder, Device(2, true), true, *kernels.tables[i]);
      EXPECT_LT(EmbeddingError(exact, expected["embedding"]), kLogitTolerance);
    }
    for (const int ranks : {2, 3}) {
      CpuSpec device = Device(2, true);
      device.tensor_parallel_size = ranks;
      EXPECT_LT(EmbeddingError(logit(folder, device), expected["embedding"]), kLogitTolerance)
          << twin.name << " on " << ranks << " ranks";
    }
    if (has_types) {
      const std::vector<float> one_type = logit(folder, Device(2, true), /*types=*/false);
      EXPECT_GT(EmbeddingError(one_type, expected["embedding"]), 10 * kLogitTolerance);
    }
    for (const Json& mutation : twin.mutations) {
      FamilyTwin mutant = twin;
      mutant.config.merge_patch(mutation);
      WriteTwinFolder(mutant, Path("mutant"));
      EXPECT_GT(EmbeddingError(logit(Path("mutant"), Device(2, true)), expected["embedding"]),
                10 * kLogitTolerance)
          << twin.name << " " << mutation.dump();
    }
  }
}

// llama.cpp's numbers of the same files (tests/reference/make_gguf_model_reference.py): its heads
// read the first token, or of ModernBERT the mean, by functions that no key names.
TEST_F(EncodersTest, GgufFilesAreWhatLlamaCppMakesOfThem) {
  std::ifstream file("tests/reference/gguf_model_reference.json");
  const absl::StatusOr<Json> expected =
      ParseJson(std::string(std::istreambuf_iterator<char>(file), {}), {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto prompt = (*expected)["prompt"].get<std::vector<Token>>();
  size_t files = 0;
  for (const auto& twins : {EncoderTwins(), ClassifierTwins()}) {
    for (const FamilyTwin& twin : twins) {
      if (!twin.in_gguf) continue;
      SCOPED_TRACE(twin.name);
      const std::string path = Path(twin.name) + ".gguf";
      WriteTwinGguf(twin, path);
      const auto executor = Load(path, Device(2, /*float_kv=*/true));
      const std::vector<float> made = Embed(*executor, {prompt})[0];
      ++files;
      if (made.size() == 1) {
        EXPECT_NEAR(made[0], (*expected)[twin.name][0], kLlamaCppLogitTolerance);
      } else {
        EXPECT_LT(EmbeddingError(made, (*expected)[twin.name]), kLlamaCppTolerance);
      }
    }
  }
  EXPECT_EQ(files + 1, expected->size());
}

// A model whose weights are divided among ranks is the same model, but for the order of sums.
TEST_F(EncodersTest, RanksGiveTheEmbeddingsOfOne) {
  for (const FamilyTwin& twin : EncoderTwins()) {
    const std::string folder = Path(twin.name);
    WriteTwinFolder(twin, folder);
    const std::vector<float> whole = Embed(*Load(folder, Device(2, true)), {reference_.prompt})[0];
    for (const int ranks : {2, 3, 4, 8}) {
      CpuSpec device = Device(2, true);
      device.tensor_parallel_size = ranks;
      const auto divided = Load(folder, device);
      const std::vector<float> embedding = Embed(*divided, {reference_.prompt})[0];
      EXPECT_LT(EmbeddingError(embedding, Json(whole)), kTolerance)
          << twin.name << " on " << ranks << " ranks";
    }
  }
}

TEST_F(EncodersTest, WhatIsComputedOtherwiseShows) {
  for (const FamilyTwin& twin : EncoderTwins()) {
    const Json& expected = reference_.twins[twin.name];
    const auto expect_wrong = [&](const std::string& path, const std::string& change) {
      SCOPED_TRACE(StrCat(twin.name, " ", change));
      const auto embed = [&](bool float_kv) {
        return Embed(*Load(path, Device(2, float_kv)), {reference_.prompt})[0];
      };
      EXPECT_GT(EmbeddingError(embed(true), expected["embedding"]), 10 * kTolerance);
      const std::vector<float> half = embed(false);
      EXPECT_GT(EmbeddingError(half, expected["half_kv_embedding"]), 10 * kTolerance);
      EXPECT_GT(EmbeddingError(half, expected["embedding"]), 10 * kRoundedTolerance);
    };
    for (const EncoderMutant& mutant : EncoderMutants(twin)) {
      WriteTwinFolder(mutant.twin, Path("mutant"), mutant.fault);
      expect_wrong(Path("mutant"), mutant.change);
      if (!twin.in_gguf || mutant.twin.normalize != twin.normalize) continue;
      std::filesystem::remove(Path("mutant.gguf"));
      WriteTwinGguf(mutant.twin, Path("mutant.gguf"), mutant.fault);
      expect_wrong(Path("mutant.gguf"), mutant.change + " in GGUF");
    }
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
  EXPECT_EQ(Embed(*Load(folder, Device(1)), {reference_.prompt})[0], alone) << "one thread";
  // A later token changes what comes of the earlier ones: attention is to the whole text.
  std::vector<Token> longer = reference_.prompt;
  longer.push_back(3);
  EXPECT_NE(Embed(*executor, {longer}, 4)[0], alone);
}

TEST_F(EncodersTest, QuantizedWhileLoadedIsCloseBy) {
  const FamilyTwin twin = EncoderTwins()[0];
  const std::string folder = Path("int8");
  WriteTwinFolder(twin, folder);
  CpuSpec device = Device();
  device.weight_bits = 8;
  const auto loaded = cpu::LoadCpuExecutor({folder}, device);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const double error = EmbeddingError(Embed(**loaded, {reference_.prompt})[0],
                                      reference_.twins[twin.name]["embedding"]);
  EXPECT_GT(error, kRoundedTolerance);
  EXPECT_LT(error, 0.1);
}

TEST_F(EncodersTest, RefusesRowsThatAreNoWholeTexts) {
  const std::string folder = Path("refused");
  WriteTwinFolder(EncoderTwins()[0], folder);
  const auto executor = Load(folder);
  StepPlan plan = TextsPlan({{1, 2, 3}}, executor->info().limits.block_size(), 1);
  plan.logits.push_back({.offset = 2, .target = std::nullopt});
  plan.rows[0].logits = {0, 1};
  EXPECT_THAT(std::string(executor->Submit(plan).message()),
              ::testing::HasSubstr("allowed of an encoder: whole sequences, without logits"));
}

}  // namespace
}  // namespace millrace
