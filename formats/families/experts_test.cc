// Mixtures of experts: tensors that hold many are cut into those of one, whatever the file, and
// what is broken is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/families/families.h"
#include "formats/families/hf_names.h"
#include "formats/huggingface/safetensors.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/hf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Path(std::string_view name) {
  return StrCat(::testing::TempDir(), "experts_test_", getpid(), "_", name);
}

class ExpertsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    std::filesystem::remove_all(Path("folder"));
    std::filesystem::remove(Path("model.gguf"));
  }
};

bool HasExperts(const ModelConfig& model) {
  for (const LayerConfig& layer : model.layers) {
    if (std::holds_alternative<ExpertsFeedForward>(layer.feed_forward)) return true;
  }
  return false;
}

FamilyTwin Twin(std::string_view name) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (twin.name == name) return twin;
  }
  std::abort();
}

std::string Stored(const TensorSource& source, const TensorInfo& tensor) {
  std::string bytes(tensor.bytes, '\0');
  source.Read(tensor, 0, {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()});
  return bytes;
}

TEST_F(ExpertsTest, AFolderHoldsWhatItsGgufFileHolds) {
  std::set<std::string> families;
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (!twin.in_gguf) continue;
    WriteTwinFolder(twin, Path("folder"));
    WriteTwinGguf(twin, Path("model.gguf"));
    const absl::StatusOr<OpenedModel> folder = OpenModel(Path("folder"));
    const absl::StatusOr<OpenedModel> gguf = OpenModel(Path("model.gguf"));
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    if (!HasExperts(folder->config)) continue;
    families.emplace(twin.family->name);
    const bool qwen3next = twin.family->name == "qwen3next";  // whose files cut some tensors
    if (!qwen3next) {
      EXPECT_EQ(folder->tensors->tensors().size(), gguf->tensors->tensors().size()) << twin.name;
    }
    for (size_t i = 0; i < folder->config.layers.size(); ++i) {
      EXPECT_EQ(folder->config.layers[i].feed_forward.index(),
                gguf->config.layers[i].feed_forward.index());
      const auto* experts = std::get_if<ExpertsFeedForward>(&folder->config.layers[i].feed_forward);
      if (experts == nullptr) continue;
      const auto& same = std::get<ExpertsFeedForward>(gguf->config.layers[i].feed_forward);
      EXPECT_EQ(experts->router, same.router) << twin.name;
      EXPECT_EQ(experts->shared_size, same.shared_size) << twin.name;
    }
    for (const ModelTensor& tensor : twin.family->tensors(folder->config)) {
      // Rows of q and k may have another order.
      if (tensor.name.find("attn_q") != tensor.name.npos) continue;
      if (tensor.name.find("attn_k") != tensor.name.npos) continue;
      if (tensor.name.ends_with(".ssm_a")) continue;  // the logarithm, or not
      // Files of Qwen3.5 have the heads of values in another order, and norms as they are used, as
      // those of Qwen3-Next.
      const bool is_of_experts = tensor.name.find("ffn_") != tensor.name.npos &&
                                 tensor.name.find("ffn_norm") == tensor.name.npos;
      const bool as_used = twin.family->name == "qwen35moe" || qwen3next;
      if (as_used && !is_of_experts) continue;
      const TensorInfo* one = folder->tensors->FindTensor(tensor.name);
      const TensorInfo* other = gguf->tensors->FindTensor(tensor.name);
      ASSERT_TRUE(one != nullptr && other != nullptr) << twin.name << " " << tensor.name;
      EXPECT_EQ(one->type, other->type);
      EXPECT_EQ(Stored(*folder->tensors, *one), Stored(*gguf->tensors, *other))
          << twin.name << " " << tensor.name;
    }
  }
  EXPECT_THAT(families,
              ElementsAre("glm4moe", "gpt-oss", "granitehybrid", "granitemoe", "lfm2moe", "llama",
                          "nemotron_h", "olmoe", "qwen2moe", "qwen35moe", "qwen3moe", "qwen3next"));
}

TEST_F(ExpertsTest, RowsOfEveryFormAreReadByThemselves) {
  for (const char* name : {"granitemoeshared", "gpt_oss", "gpt_oss_mxfp4", "qwen3moe_dense"}) {
    WriteTwinFolder(Twin(name), Path("folder"));
    const absl::StatusOr<OpenedModel> model = OpenModel(Path("folder"));
    ASSERT_TRUE(model.ok()) << model.status();
    for (const TensorInfo& tensor : model->tensors->tensors()) {
      const std::string whole = Stored(*model->tensors, tensor);
      const uint64_t row = tensor.bytes / tensor.shape[0];
      const uint64_t begin = tensor.shape[0] / 3 * row;
      const uint64_t size = (tensor.shape[0] + 1) / 2 * row;
      std::vector<uint8_t> buffer;
      const auto part = model->tensors->Bytes(tensor, begin, size, &buffer);
      EXPECT_EQ(std::string(part.begin(), part.end()), whole.substr(begin, size)) << tensor.name;
      EXPECT_EQ(buffer.empty(), !tensor.scattered.has_value());
      if (!tensor.scattered.has_value()) {
        EXPECT_EQ(model->tensors->Data(tensor).data() + begin, part.data());
      }
      model->tensors->DropPages(tensor);
      EXPECT_EQ(Stored(*model->tensors, tensor), whole);
    }
  }
}

// Codes 0 to 15 and 15 to 0, the low nibble first: GGUF has element i and element i + 16 together.
TEST_F(ExpertsTest, BlocksOfMxfp4AreRepacked) {
  std::vector<float> codes;
  for (int i = 0; i < 32; i += 2) {
    const auto code = [](int element) { return element < 16 ? element : 31 - element; };
    codes.push_back(static_cast<float>(code(i) | code(i + 1) << 4));
  }
  std::vector<float> two_rows(16, 0.0f);
  two_rows.insert(two_rows.end(), codes.begin(), codes.end());
  std::filesystem::create_directories(Path("folder"));
  SafetensorsWriter()
      .Tensor("model.layers.0.mlp.experts.gate_up_proj_blocks", TensorType::kU8, {1, 2, 1, 16},
              two_rows)
      .Tensor("model.layers.0.mlp.experts.gate_up_proj_scales", TensorType::kU8, {1, 2, 1},
              std::vector<float>{100, 120})
      .Write(Path("folder") + "/model.safetensors");
  const auto folder = SafetensorsFolder::Open(Path("folder"), "folder", kGptOss);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const TensorInfo* up = (*folder)->FindTensor("blk.0.ffn_up.0.weight");
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->name, "model.layers.0.mlp.experts.gate_up_proj_blocks, expert 0 (ffn_up)");
  EXPECT_THAT(up->shape, ElementsAre(1, 32));
  std::string expected(1, 120);
  for (int i = 0; i < 16; ++i) expected += static_cast<char>(i | (15 - i) << 4);
  EXPECT_EQ(Stored(**folder, *up), expected);
  EXPECT_EQ(Stored(**folder, *(*folder)->FindTensor("blk.0.ffn_gate.0.weight"))[0], 100);
}

// The error of a twin's folder whose config, or tensors, were changed after it was written.
using Change = std::function<void(std::vector<std::pair<std::string, TensorInfo>>*)>;
std::string ErrorOf(const char* twin, const char* config_change, const Change& change = nullptr) {
  const FamilyTwin found = Twin(twin);
  const std::string folder = Path("folder");
  WriteTwinFolder(found, folder);
  Json config = found.config;
  config.merge_patch(Json::parse(config_change));
  std::ofstream(folder + "/config.json") << config.dump();
  if (change != nullptr) {
    const absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(folder + "/model.safetensors");
    std::vector<std::pair<std::string, TensorInfo>> tensors;
    for (const TensorInfo& tensor : file->tensors) tensors.emplace_back(tensor.name, tensor);
    change(&tensors);
    SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors) {
      const auto bytes = file->file.bytes().subspan(tensor.offset, tensor.bytes);
      std::vector<float> values(bytes.begin(), bytes.end());
      if (tensor.type != TensorType::kU8) values = DecodeTensor(tensor.type, bytes);
      writer.Tensor(name, tensor.type, tensor.shape, values);
    }
    writer.Write(folder + "/model.safetensors");
  }
  const absl::StatusOr<OpenedModel> model = OpenModel(folder);
  return model.ok() ? "no error" : std::string(model.status().message());
}

// Takes tensors away whose name has this in it, or gives them a shape of as many elements.
Change Without(const char* part) {
  return [part](auto* tensors) {
    std::erase_if(*tensors, [&](const auto& t) { return t.first.find(part) != t.first.npos; });
  };
}
Change Shaped(const char* part, const std::vector<int64_t>& shape) {
  return [part, shape](auto* tensors) {
    for (auto& [name, tensor] : *tensors) {
      if (name.find(part) != name.npos) tensor.shape = shape;
    }
  };
}

TEST_F(ExpertsTest, BrokenCheckpointsAreRefusedByTheTensor) {
  EXPECT_EQ(ErrorOf("qwen3moe", "{}"), "no error");
  EXPECT_THAT(ErrorOf("qwen3moe", R"({"num_experts": 9})"),
              HasSubstr("tensor model.layers.0.mlp.gate.weight: shape [8, 64], must be [9, 64]"));
  EXPECT_THAT(ErrorOf("qwen3moe", "{}", Without("layers.1.mlp.experts.5.up_proj")),
              HasSubstr("tensor model.layers.1.mlp.experts.5.up_proj.weight: is missing"));
  EXPECT_THAT(ErrorOf("mixtral", "{}", Without("layers.1.block_sparse_moe.experts.5.w2")),
              HasSubstr("tensor model.layers.1.block_sparse_moe.experts.5.w2.weight: is missing"));
  EXPECT_THAT(ErrorOf("qwen3moe", R"({"moe_intermediate_size": 16})"),
              HasSubstr("tensor model.layers.0.mlp.experts.0.gate_proj.weight: shape [32, 64], "
                        "must be [16, 64]"));
  EXPECT_THAT(ErrorOf("qwen3moe_dense", R"({"mlp_only_layers": []})"),
              HasSubstr("tensor model.layers.3.mlp.gate.weight: is missing"));
  EXPECT_THAT(ErrorOf("glm4moe", "{}", Without("layers.2.mlp.gate.e_score")),
              HasSubstr("tensor model.layers.2.mlp.gate.e_score_correction_bias: is missing"));
  EXPECT_THAT(ErrorOf("qwen2moe", "{}", Without("layers.0.mlp.shared_expert_gate")),
              HasSubstr("tensor model.layers.0.mlp.shared_expert_gate.weight: is missing"));
}

// Each bias of a GGUF file may be missing, but not a router's correction, which is none.
TEST_F(ExpertsTest, AGgufFileWithoutACorrectionIsRefused) {
  WriteTwinGguf(Twin("glm4moe"), Path("model.gguf"));
  std::ifstream file(Path("model.gguf"), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  const size_t name = bytes.find("blk.2.exp_probs_b.bias");
  ASSERT_NE(name, bytes.npos);
  bytes.replace(name, 5, "old.2");
  std::ofstream(Path("model.gguf"), std::ios::binary) << bytes;
  EXPECT_THAT(OpenModel(Path("model.gguf")).status().message(),
              HasSubstr("tensor blk.2.exp_probs_b.bias: is missing"));
}

TEST_F(ExpertsTest, BrokenStacksAreRefusedByTheTensor) {
  EXPECT_EQ(ErrorOf("granitemoe", "{}"), "no error");
  const char* input = "layers.1.block_sparse_moe.input_linear";
  EXPECT_THAT(ErrorOf("granitemoe", "{}", Without(input)),
              HasSubstr("tensor model.layers.1.block_sparse_moe.input_linear.weight, expert 0: is "
                        "missing"));
  // As many elements, but of 4 experts and of 16.
  EXPECT_THAT(ErrorOf("granitemoe", "{}", Shaped(input, {16, 32, 64})),
              HasSubstr("tensor model.layers.1.block_sparse_moe.input_linear.weight, expert 0 "
                        "(ffn_gate): shape [16, 64], must be [32, 64]"));
  EXPECT_THAT(ErrorOf("granitemoe", "{}", Shaped(input, {512, 64})),
              HasSubstr("input_linear.weight: shape [512, 64], must have 3 dimensions"));
  EXPECT_THAT(ErrorOf("granitemoe", "{}", Shaped(input, {8192, 2, 2})),
              HasSubstr("input_linear.weight: 8192 experts, must be at most 4096"));
  EXPECT_THAT(ErrorOf("granitemoe", "{}", Shaped(input, {512, 1, 64})),
              HasSubstr("input_linear.weight: shape [512, 1, 64]: 1 rows of gate and up"));
  EXPECT_THAT(
      ErrorOf("granitemoeshared", "{}", Shaped("layers.0.shared_mlp.input_linear", {2, 64, 64})),
      HasSubstr("input_linear.weight: shape [2, 64, 64], must be [2 * rows, columns]"));
  EXPECT_THAT(ErrorOf("gpt_oss_mxfp4", "{}", Without("layers.1.mlp.experts.down_proj_scales")),
              HasSubstr("tensor model.layers.1.mlp.experts.down_proj_blocks: has no scales"));
  EXPECT_THAT(ErrorOf("gpt_oss_mxfp4", "{}", Without("layers.1.mlp.experts.down_proj_blocks")),
              HasSubstr("tensor model.layers.1.mlp.experts.down_proj, expert 0: is missing"));
  EXPECT_THAT(
      ErrorOf("gpt_oss_mxfp4", "{}", Shaped("layers.1.mlp.experts.down_proj_scales", {6, 2, 64})),
      HasSubstr("down_proj_scales: is U8 [6, 2, 64], must be U8 [6, 64, 2]"));
  EXPECT_THAT(ErrorOf("gpt_oss_mxfp4", "{}",
                      Shaped("layers.1.mlp.experts.down_proj_blocks", {6, 64, 4, 8})),
              HasSubstr("down_proj_blocks: is U8 [6, 64, 4, 8], must be U8 [experts, rows"));
  EXPECT_THAT(ErrorOf("gpt_oss_mxfp4", "{}",
                      [](auto* tensors) {
                        for (auto& [name, tensor] : *tensors) {
                          if (name == "model.layers.0.mlp.experts.down_proj_scales") {
                            tensors->emplace_back("model.layers.0.mlp.router.scale", tensor);
                            return;
                          }
                        }
                      }),
              HasSubstr("tensor model.layers.0.mlp.router.scale: is not one that a gpt-oss"));
}

TEST_F(ExpertsTest, AnExpertThatComesTwiceIsRefused) {
  GgufWriter writer;
  const std::vector<float> values(4 * 32);
  writer.String("general.architecture", "llama")
      .Tensor("blk.0.ffn_up.1.weight", TensorType::kF32, {2, 32}, std::vector<float>(64))
      .Tensor("blk.0.ffn_up_exps.weight", TensorType::kF32, {2, 2, 32}, values);
  writer.Write(Path("model.gguf"));
  const absl::StatusOr<GgufFile> file = GgufFile::Open(Path("model.gguf"));
  EXPECT_THAT(file.status().message(),
              HasSubstr("tensor blk.0.ffn_up_exps.weight: has expert 1 (ffn_up), which comes"));
}

TEST_F(ExpertsTest, LayersThatPredictFurtherTokensAreLeftAlone) {
  const Change add = [](auto* tensors) {
    for (const char* name : {"model.layers.3.eh_proj.weight", "model.layers.3.mlp.gate.weight",
                             "model.layers.3.shared_head.norm.weight"}) {
      tensors->emplace_back(name, tensors->front().second);
    }
  };
  EXPECT_EQ(ErrorOf("glm4moe", R"({"num_nextn_predict_layers": 1})", add), "no error");
  EXPECT_THAT(ErrorOf("qwen3moe", "{}", add),
              HasSubstr("tensor model.layers.3.eh_proj.weight: is not one that a qwen3moe"));
}

// A config alone opens, for dummy weights: gpt-oss-20b's, with experts in MXFP4.
TEST_F(ExpertsTest, APublishedGptOssConfigGivesShapes) {
  std::filesystem::create_directories(Path("folder"));
  std::ofstream(Path("folder") + "/config.json") << R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "quantization_config": {"modules_to_not_convert": [
      "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
      "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
      "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": false, "vocab_size": 201088})";
  const absl::StatusOr<OpenedModel> model = OpenModel(Path("folder"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->config.context_length, 131072);
  EXPECT_NEAR(model->config.layers[0].softmax().rope->magnitude, 1.34657, 1e-5);
  EXPECT_EQ(model->config.layers[22].softmax().window, 128);
  EXPECT_EQ(model->config.layers[23].softmax().window, 0);
  const TensorInfo* down = model->tensors->FindTensor("blk.23.ffn_down.31.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->type, TensorType::kMxfp4);
  EXPECT_EQ(down->bytes, 2880 * 2880 / 32 * 17);
  const TensorInfo* router = model->tensors->FindTensor("blk.23.ffn_gate_inp.weight");
  ASSERT_NE(router, nullptr);
  EXPECT_EQ(router->type, TensorType::kBf16);
}

// Routers and norms, which FP8 checkpoints name as modules that were left alone, always are.
TEST_F(ExpertsTest, AnFp8ConfigOfAMixtureGivesShapes) {
  Json config = Twin("qwen3moe").config;
  config["quantization_config"] = {
      {"quant_method", "fp8"},
      {"fmt", "e4m3"},
      {"activation_scheme", "dynamic"},
      {"weight_block_size", {128, 128}},
      {"modules_to_not_convert",
       {"lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate"}}};
  std::filesystem::create_directories(Path("folder"));
  std::ofstream(Path("folder") + "/config.json") << config.dump();
  const absl::StatusOr<OpenedModel> model = OpenModel(Path("folder"));
  ASSERT_TRUE(model.ok()) << model.status();
  const TensorSource& tensors = *model->tensors;
  EXPECT_EQ(tensors.FindTensor("blk.1.ffn_up.7.weight")->type, TensorType::kFp8E4m3);
  EXPECT_NE(tensors.FindTensor("blk.1.ffn_up.7.weight_scale"), nullptr);
  EXPECT_EQ(tensors.FindTensor("blk.1.ffn_gate_inp.weight")->type, TensorType::kF32);
  EXPECT_EQ(tensors.FindTensor("blk.1.ffn_gate_inp.weight_scale"), nullptr);
  config["quantization_config"]["modules_to_not_convert"].push_back("model.layers.0.mlp.experts.3");
  std::ofstream(Path("folder") + "/config.json") << config.dump();
  EXPECT_THAT(OpenModel(Path("folder")).status().message(),
              HasSubstr("leaves model.layers.0.mlp.experts.3 unquantized"));
}

TEST(ExpertNamesTest, AreTranslatedBothWays) {
  EXPECT_THAT(HfNames("blk.12.ffn_gate.7.weight", kQwen3Moe),
              ElementsAre("model.layers.12.mlp.experts.7.gate_proj.weight"));
  EXPECT_EQ(HfNames("blk.12.ffn_down.7.weight_scale", kLlama)[0],
            "model.layers.12.block_sparse_moe.experts.7.w2.weight_scale");
  EXPECT_EQ(HfNames("blk.1.ffn_gate.weight", kGlm4Moe)[0], "model.layers.1.mlp.gate_proj.weight");
  EXPECT_EQ(HfNames("blk.1.attn_sinks.weight", kGptOss)[0], "model.layers.1.self_attn.sinks");
  EXPECT_THAT(HfNames("blk.1.ssm_conv1d.weight", kQwen35Moe),
              ElementsAre("model.layers.1.linear_attn.conv1d.weight",
                          "model.language_model.layers.1.linear_attn.conv1d.weight"));
  EXPECT_THAT(HfNames("output.weight", kQwen35Moe), ElementsAre("lm_head.weight"));
  for (const char* model : {"model", "model.language_model"}) {
    EXPECT_EQ(StackedGgufName(StrCat(model, ".layers.12.mlp.experts.gate_up_proj"), kQwen35Moe),
              "blk.12.ffn_gate_up_exps.weight");
  }
  EXPECT_EQ(StackedGgufName("model.layers.12.mlp.experts.gate_up_proj_bias", kGptOss),
            "blk.12.ffn_gate_up_exps.bias");
  EXPECT_EQ(StackedGgufName("model.layers.3.block_sparse_moe.output_linear.weight", kGraniteMoe),
            "blk.3.ffn_down_exps.weight");
  for (const char* other : {"model.layers.x.mlp.experts.gate_up_proj", "model.norm.weight",
                            "model.layers.3.mlp.experts.gate_up_projx", "model.layers.3"}) {
    EXPECT_EQ(StackedGgufName(other, kGptOss), "") << other;
  }
  EXPECT_EQ(GgufName("blk.3.post_attention_norm.weight", &kGptOss), "blk.3.ffn_norm.weight");
  EXPECT_EQ(GgufName("blk.3.post_attention_norm.weight", &kGlm4),
            "blk.3.post_attention_norm.weight");
  const StackedName stacked = StackedNameOf("blk.3.ffn_up.17.bias");
  EXPECT_THAT(stacked.tensors,
              ElementsAre("blk.3.ffn_up_exps.bias", "blk.3.ffn_gate_up_exps.bias"));
  EXPECT_EQ(stacked.expert, "17");
  EXPECT_THAT(StackedNameOf("blk.3.ffn_up.weight").tensors, IsEmpty());
  EXPECT_THAT(StackedNameOf("blk.3.attn.k_scale").tensors, IsEmpty());
}

}  // namespace
}  // namespace millrace
