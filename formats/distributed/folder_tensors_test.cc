#include "formats/distributed/folder_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Shape = std::vector<int64_t>;

CheckpointMetadata Checkpoint(const std::vector<std::pair<std::string, Shape>>& tensors) {
  CheckpointMetadata metadata;
  for (const auto& [name, shape] : tensors) {
    metadata.tensors.push_back(
        {.name = name, .type = FindTorchType("torch.float32"), .shape = shape, .chunks = {}});
  }
  return metadata;
}

std::vector<std::string> NamesOf(const absl::StatusOr<FolderTensors>& made) {
  if (!made.ok()) return {std::string(made.status().message())};
  std::vector<std::string> names;
  for (const FolderTensor& tensor : made->tensors) names.push_back(tensor.name);
  return names;
}

const FolderFacts kLlama{.model_type = "llama", .heads = 4, .kv_heads = 2};

TEST(FolderTensorsTest, HuggingFacesNamesStayAndLoseNests) {
  for (const std::string nest : {"", "model.", "app.model.", "model.module."}) {
    EXPECT_THAT(NamesOf(NameTensors(Checkpoint({{nest + "model.embed_tokens.weight", {8, 4}},
                                                {nest + "model._orig_mod.norm.weight", {4}},
                                                {nest + "lm_head.weight", {8, 4}}}),
                                    kLlama, nullptr)),
                ElementsAre("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"))
        << nest;
  }
}

TEST(FolderTensorsTest, TorchtitansLlamaIsRotated) {
  const absl::StatusOr<FolderTensors> made =
      NameTensors(Checkpoint({{"model.tok_embeddings.weight", {8, 16}},
                              {"model.layers.10.attention.wq.weight", {16, 16}},
                              {"model.layers.10.attention.qkv_linear.wk.weight", {8, 16}},
                              {"model.layers.10.feed_forward.w3.weight", {32, 16}},
                              {"model.output.weight", {8, 16}}}),
                  kLlama, nullptr);
  EXPECT_THAT(NamesOf(made),
              ElementsAre("model.embed_tokens.weight", "model.layers.10.self_attn.q_proj.weight",
                          "model.layers.10.self_attn.k_proj.weight",
                          "model.layers.10.mlp.up_proj.weight", "lm_head.weight"));
  EXPECT_EQ(made->tensors[0].rotary_heads, 0);
  EXPECT_EQ(made->tensors[1].rotary_heads, 4);
  EXPECT_EQ(made->tensors[2].rotary_heads, 2);
}

TEST(FolderTensorsTest, TorchtitansQwenHasExpertsAndIsNotRotated) {
  const FolderFacts facts{.model_type = "qwen3_moe", .heads = 4, .kv_heads = 2, .tied = true};
  const absl::StatusOr<FolderTensors> made =
      NameTensors(Checkpoint({{"tok_embeddings.weight", {8, 16}},
                              {"layers.0.attention.wq.weight", {16, 16}},
                              {"layers.0.moe.experts.w1", {2, 32, 16}},
                              {"output.weight", {8, 16}}}),
                  facts, nullptr);
  EXPECT_THAT(NamesOf(made),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.mlp.experts.0.gate_proj.weight",
                          "model.layers.0.mlp.experts.1.gate_proj.weight"));
  EXPECT_EQ(made->tensors[1].rotary_heads, 0);
  EXPECT_THAT(made->tensors[3].shape, ElementsAre(32, 16));
  EXPECT_EQ(made->left_out, 1);
}

TEST(FolderTensorsTest, WhatIsNotKnownIsNamed) {
  const auto error = [](const std::vector<std::pair<std::string, Shape>>& tensors,
                        const FolderFacts& facts) {
    return NamesOf(NameTensors(Checkpoint(tensors), facts, nullptr))[0];
  };
  EXPECT_THAT(error({{"transformer.wte.weight", {2}}}, kLlama),
              HasSubstr("(the first is transformer.wte.weight): --rules can name them"));
  EXPECT_THAT(error({{"tok_embeddings.weight", {2}}}, {.model_type = "gemma3"}),
              HasSubstr("model_type is \"gemma3\""));
  EXPECT_THAT(error({{"tok_embeddings.weight", {2}}, {"layers.0.odd", {2}}}, kLlama),
              HasSubstr("tensor layers.0.odd: no rule names it"));
  EXPECT_THAT(
      error({{"tok_embeddings.weight", {2}}, {"layers.0.attention.wq.weight", {12, 4}}}, kLlama),
      HasSubstr("its rows are not 4 heads of an even size"));
  EXPECT_THAT(error({{"tok_embeddings.weight", {2}},
                     {"layers.0.attention.wv.weight", {2}},
                     {"layers.0.attention.qkv_linear.wv.weight", {2}}},
                    kLlama),
              HasSubstr("would be model.layers.0.self_attn.v_proj.weight, as would"));
}

TEST(NameRulesTest, ATableNamesTensors) {
  const absl::StatusOr<std::vector<NameRule>> rules = ParseNameRules(
      "# a comment\n\nblocks.#.q\t model.layers.#.q.weight  rotary-q\nextra.* -\nrest.* model.*\n"
      "e.#  x.#.#.w experts\n",
      "my.rules");
  ASSERT_TRUE(rules.ok()) << rules.status();
  const auto made = NameTensors(
      Checkpoint({{"blocks.12.q", {8, 2}}, {"extra.a.b", {2}}, {"rest.a.b", {2}}, {"e.3", {2, 5}}}),
      kLlama, &*rules);
  EXPECT_THAT(NamesOf(made),
              ElementsAre("model.layers.12.q.weight", "model.a.b", "x.3.0.w", "x.3.1.w"));
  EXPECT_EQ(made->tensors[0].rotary_heads, 4);
  EXPECT_EQ(made->left_out, 1);
}

TEST(NameRulesTest, FaultsNameTheLine) {
  const auto error = [](std::string_view text) {
    const auto rules = ParseNameRules(text, "r");
    return rules.ok() ? "(no error)" : std::string(rules.status().message());
  };
  EXPECT_THAT(error("a\n"), HasSubstr("r:1: got 1 words"));
  EXPECT_THAT(error("a b\n\na b turn\n"), HasSubstr("r:3: got action \"turn\""));
  EXPECT_THAT(error("a - untied"), HasSubstr("none behind -"));
  EXPECT_THAT(error("a.#.# b.#"), HasSubstr("as many #"));
  EXPECT_THAT(error("a.# b.# experts"), HasSubstr("one # more"));
  EXPECT_THAT(error("a.* b"), HasSubstr("both names must end with *"));
  EXPECT_THAT(error("a.*.b c.*.d"), HasSubstr("* may only stand at the end"));
  EXPECT_THAT(error("# nothing\n"), HasSubstr("has no rules"));
}

}  // namespace
}  // namespace millrace
