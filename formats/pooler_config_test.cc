// Which decoders make embeddings, and how they pool them.
#include "formats/pooler_config.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/strings.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/gguf_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

FamilyTwin Named(std::string_view name) {
  for (const FamilyTwin& twin : PoolerTwins()) {
    if (twin.name == name) return twin;
  }
  ADD_FAILURE() << "there is no twin " << name;
  return {};
}

class PoolerConfigTest : public ::testing::Test {
 protected:
  ~PoolerConfigTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<ModelConfig> Open(ModelRunner runner = ModelRunner::kAuto) const {
    return Open(folder_, runner);
  }
  static absl::StatusOr<ModelConfig> Open(const std::string& path, ModelRunner runner) {
    absl::StatusOr<OpenedModel> model = OpenModel(path, runner);
    if (!model.ok()) return model.status();
    return model->config;
  }
  std::string Message(ModelRunner runner = ModelRunner::kAuto) const {
    return std::string(Open(runner).status().message());
  }
  void WritePooling(const std::string& text) const {
    WriteFile(folder_ + "/1_Pooling/config.json", text);
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "pooler_config_test_", getpid());
};

TEST_F(PoolerConfigTest, AFoldersModulesSayIt) {
  WriteTwinFolder(Named("qwen3_last"), folder_);
  absl::StatusOr<ModelConfig> config = Open();
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->pooler.has_value());
  EXPECT_EQ(config->pooler->pooling, Pooling::kLast);
  EXPECT_TRUE(config->pooler->normalize);
  EXPECT_FALSE(config->matryoshka.has_value());
  EXPECT_FALSE(Open(ModelRunner::kGenerate)->pooler.has_value());

  WritePooling(R"({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false})");
  EXPECT_EQ(Open()->pooler->pooling, Pooling::kMean);
  WritePooling(R"({"pooling_mode_weightedmean_tokens": true})");
  EXPECT_THAT(Message(), HasSubstr("\"weightedmean_tokens\" is not supported (supported: lasttoken "
                                   "or mean_tokens, alone)"));
  WritePooling(R"({"pooling_mode_cls_token": true})");
  EXPECT_THAT(Message(), HasSubstr("\"cls_token\" is not supported"));
}

TEST_F(PoolerConfigTest, AModelWithoutAHeadMakesEmbeddings) {
  WriteTwinFolder(Named("qwen3_mean"), folder_);
  EXPECT_EQ(Open()->pooler->pooling, Pooling::kMean);
  EXPECT_FALSE(Open()->pooler->normalize);
  EXPECT_EQ(Message(ModelRunner::kGenerate),
            "runner is generate, but the model, qwen3, has no head; allowed: auto, pooling");
  std::filesystem::remove(folder_ + "/modules.json");
  EXPECT_EQ(Open()->pooler->pooling, Pooling::kLast);
  EXPECT_TRUE(Open()->pooler->normalize);
}

TEST_F(PoolerConfigTest, AnyDecoderMakesEmbeddingsIfThatIsAskedFor) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    WriteTwinFolder(twin, folder_);
    EXPECT_FALSE(Open()->pooler.has_value());
    const absl::StatusOr<ModelConfig> pooled = Open(ModelRunner::kPooling);
    ASSERT_TRUE(pooled.ok()) << pooled.status();
    EXPECT_EQ(pooled->pooler->pooling, Pooling::kLast);
    EXPECT_TRUE(pooled->tied_embeddings) << "no head is read";
  }
}

TEST_F(PoolerConfigTest, EncodersDoNotGenerate) {
  WriteTwinFolder(EncoderTwins()[0], folder_);
  EXPECT_TRUE(Open(ModelRunner::kPooling).ok());
  EXPECT_EQ(Message(ModelRunner::kGenerate),
            "runner is generate, but the model, bert, is an encoder; allowed: auto, pooling");
}

TEST_F(PoolerConfigTest, AGgufFilesPoolingTypeSaysIt) {
  std::filesystem::create_directories(folder_);
  const std::string path = folder_ + "/model.gguf";
  for (const auto& [pooling, expected] :
       {std::pair{"lasttoken", Pooling::kLast}, {"mean_tokens", Pooling::kMean}}) {
    FamilyTwin twin = Named("qwen3_last");
    twin.pooling = pooling;
    WriteTwinGguf(twin, path);
    const absl::StatusOr<ModelConfig> config = Open(path, ModelRunner::kAuto);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->pooler->pooling, expected);
    EXPECT_TRUE(config->pooler->normalize);
    EXPECT_FALSE(Open(path, ModelRunner::kGenerate)->pooler.has_value());
    std::filesystem::remove(path);
  }
  FamilyTwin silent = Named("qwen3_last");
  silent.pooling = "";
  WriteTwinGguf(silent, path);
  EXPECT_FALSE(Open(path, ModelRunner::kAuto)->pooler.has_value());
  EXPECT_EQ(Open(path, ModelRunner::kPooling)->pooler->pooling, Pooling::kLast);
}

TEST_F(PoolerConfigTest, OtherPoolingTypesAreRefusedByName) {
  std::filesystem::create_directories(folder_);
  const std::string path = folder_ + "/model.gguf";
  FamilyTwin first = Named("qwen3_last");
  first.pooling = "cls_token";
  WriteTwinGguf(first, path);
  for (const ModelRunner runner : {ModelRunner::kAuto, ModelRunner::kPooling}) {
    EXPECT_THAT(std::string(Open(path, runner).status().message()),
                HasSubstr("key qwen3.pooling_type: 2 is not supported"));
  }
  EXPECT_TRUE(Open(path, ModelRunner::kGenerate).ok());
}

TEST_F(PoolerConfigTest, ReadsHowFarEmbeddingsMayBeCut) {
  FamilyTwin twin = Named("qwen3_last");
  const auto write = [&](const char* changes) {
    FamilyTwin changed = twin;
    changed.config.merge_patch(Json::parse(changes));
    WriteTwinFolder(changed, folder_);
  };
  write(R"({"is_matryoshka": true})");
  EXPECT_THAT(Open()->matryoshka->sizes, ::testing::IsEmpty());
  write(R"({"is_matryoshka": false})");
  EXPECT_FALSE(Open()->matryoshka.has_value());
  write(R"({"matryoshka_dimensions": [16, 32]})");
  EXPECT_THAT(Open()->matryoshka->sizes, ::testing::ElementsAre(16, 32));
  const std::string path = folder_ + "/config.json";
  Json config = twin.config;
  config["matryoshka_dimensions"] = {65};
  WriteFile(path, config.dump());
  EXPECT_THAT(Message(), HasSubstr("matryoshka_dimensions"));
}

}  // namespace
}  // namespace millrace
