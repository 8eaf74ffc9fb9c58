#include "hub/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Names = std::vector<std::string>;

std::string ErrorOf(const absl::Status& status) {
  return status.ok() ? "no error" : std::string(status.message());
}

TEST(SelectionTest, TakesWhatAModelIsMadeOfAndNoMore) {
  const Names files = {
      "README.md",          "config.json",    "generation_config.json", "model.safetensors",
      "pytorch_model.bin",  "tokenizer.json", "onnx/model.onnx",        "original/x.safetensors",
      "chat_template.jinja"};
  const auto model = Select(files, "", HubContent::kModel);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->files,
              UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors",
                                   "tokenizer.json", "chat_template.jinja"));
  EXPECT_FALSE(model->has_index);
  EXPECT_THAT(Select(files, "", HubContent::kConfig)->files,
              UnorderedElementsAre("config.json", "generation_config.json", "tokenizer.json",
                                   "chat_template.jinja"));
  EXPECT_THAT(
      Select(files, "", HubContent::kText)->files,
      UnorderedElementsAre("generation_config.json", "tokenizer.json", "chat_template.jinja"));
}

TEST(SelectionTest, TakesWhatSaysHowAnEncoderIsPooled) {
  const Names files = {"config.json",
                       "model.safetensors",
                       "modules.json",
                       "2_Dense/model.bin",
                       "sentence_bert_config.json",
                       "1_Pooling/config.json",
                       "data_config.json",
                       "config_sentence_transformers.json"};
  EXPECT_THAT(Select(files, "", HubContent::kModel)->files,
              UnorderedElementsAre("config.json", "model.safetensors", "modules.json",
                                   "sentence_bert_config.json", "1_Pooling/config.json",
                                   "config_sentence_transformers.json"));
  EXPECT_THAT(Select({"tokenizer.json", "modules.json"}, "", HubContent::kText)->files,
              ElementsAre("tokenizer.json"));
}

TEST(SelectionTest, TakesTheTokenizerThatWillBeRead) {
  const auto selected = [](const Names& files, HubContent content) {
    return Select(files, "", content)->files;
  };
  EXPECT_THAT(selected({"config.json", "tokenizer.model", "model.safetensors"}, HubContent::kModel),
              UnorderedElementsAre("config.json", "tokenizer.model", "model.safetensors"));
  EXPECT_THAT(selected({"tekken.json", "tokenizer.model"}, HubContent::kText),
              ElementsAre("tekken.json"));
  EXPECT_THAT(selected({"tokenizer.model", "tokenizer.json"}, HubContent::kText),
              ElementsAre("tokenizer.json"));
  EXPECT_THAT(selected({"tokenizer.model"}, HubContent::kText), ElementsAre("tokenizer.model"));
  EXPECT_THAT(ErrorOf(Select({"vocab.json"}, "", HubContent::kText).status()),
              HasSubstr("has neither tokenizer.json nor a .gguf file"));
}

TEST(SelectionTest, AnIndexNamesTheShards) {
  const auto model =
      Select({"config.json", "model.safetensors.index.json", "consolidated.safetensors"}, "",
             HubContent::kModel);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->has_index);
  EXPECT_THAT(model->files, UnorderedElementsAre("config.json", "model.safetensors.index.json"));
  const auto shards = Shards(R"({"metadata": {}, "weight_map": {"a": "m-2.safetensors",
      "b": "m-1.safetensors", "c": "m-2.safetensors"}})");
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_THAT(*shards, ElementsAre("m-1.safetensors", "m-2.safetensors"));
}

TEST(SelectionTest, AnIndexThatLiesIsRefused) {
  for (const char* index :
       {"", "[]", "{}", R"({"weight_map": {}})", R"({"weight_map": {"a": "../x.safetensors"}})",
        R"({"weight_map": {"a": "/x.safetensors"}})", R"({"weight_map": {"a": "b/x.safetensors"}})",
        R"({"weight_map": {"a": "x.sh"}})", R"({"weight_map": {"a": 1}})"}) {
    EXPECT_THAT(ErrorOf(Shards(index).status()), HasSubstr("model.safetensors.index.json"))
        << index;
  }
}

TEST(SelectionTest, AGgufFileIsNamedOrHasATagOrIsTheOnlyOne) {
  const Names files = {"README.md", "m-Q4_K_M.gguf", "m-IQ4_K_M.gguf", "m-q8_0.gguf", "m.f16.gguf"};
  const auto gguf = [&](const std::string& wanted) {
    return Select(files, wanted, HubContent::kModel)->gguf.value_or("none");
  };
  EXPECT_EQ(gguf("m-q8_0.gguf"), "m-q8_0.gguf");
  EXPECT_EQ(gguf("Q4_K_M"), "m-Q4_K_M.gguf");
  EXPECT_EQ(gguf("F16"), "m.f16.gguf");
  EXPECT_EQ(Select({"a.gguf"}, "", HubContent::kModel)->gguf, "a.gguf");
  EXPECT_THAT(ErrorOf(Select(files, "", HubContent::kModel).status()),
              HasSubstr("several .gguf files: name one behind a colon; there are m-Q4_K_M.gguf, "));
  EXPECT_THAT(ErrorOf(Select(files, "Q5_0", HubContent::kModel).status()),
              HasSubstr("has no file or tag \"Q5_0\"; it has m-Q4_K_M.gguf"));
  EXPECT_THAT(ErrorOf(Select(files, "README.md", HubContent::kModel).status()),
              HasSubstr("README.md is no .gguf file"));
}

TEST(SelectionTest, AllFilesOfAModelThatIsSplitAreSelected) {
  const Names files = {"Q8/m-Q8_0-00001-of-00002.gguf", "Q8/m-Q8_0-00002-of-00002.gguf",
                       "m-Q4_0.gguf", "m-F16-00002-of-00003.gguf", "m-F16-00003-of-00003.gguf"};
  for (const char* wanted :
       {"Q8_0", "Q8/m-Q8_0-00001-of-00002.gguf", "Q8/m-Q8_0-00002-of-00002.gguf"}) {
    const auto model = Select(files, wanted, HubContent::kModel);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->gguf, files[0]);
    EXPECT_THAT(model->files, ElementsAre(files[0], files[1]));
  }
  EXPECT_THAT(ErrorOf(Select(files, "F16", HubContent::kModel).status()),
              HasSubstr("has no m-F16-00001-of-00003.gguf"));
  EXPECT_THAT(ErrorOf(Select(files, "", HubContent::kModel).status()),
              HasSubstr("there are Q8/m-Q8_0-00001-of-00002.gguf, m-Q4_0.gguf, m-F16-00001-of-"));
  EXPECT_EQ(Select({files[0], files[1]}, "", HubContent::kModel)->gguf, files[0]);
}

TEST(SelectionTest, SaysWhatAModelLacks) {
  EXPECT_THAT(ErrorOf(Select({"README.md"}, "", HubContent::kModel).status()),
              HasSubstr("has neither config.json nor a .gguf file"));
  EXPECT_THAT(
      ErrorOf(Select({"config.json", "pytorch_model.bin"}, "", HubContent::kModel).status()),
      HasSubstr("has no model.safetensors"));
}

}  // namespace
}  // namespace millrace
