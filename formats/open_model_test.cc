#include "formats/open_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/families/families.h"
#include "formats/families/model_tensors.h"
#include "formats/huggingface/safetensors.h"
#include "formats/twins/hf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Folder() { return StrCat(::testing::TempDir(), "open_model_test_", getpid()); }

class OpenModelTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(Folder()); }
};

std::string ErrorOf(const absl::StatusOr<OpenedModel>& model) {
  if (model.ok()) return "no error";
  std::string message(model.status().message());
  EXPECT_THAT(message, Not(HasSubstr(::testing::TempDir())));
  return message;
}

std::string ErrorOf(const TinyLlama& model, const HfForm& form) {
  WriteHfFolder(model, Folder(), form);
  return ErrorOf(OpenModel(Folder()));
}

std::vector<float> Numbers(const TensorSource& source, std::string_view name) {
  const TensorInfo* tensor = source.FindTensor(name);
  return tensor == nullptr ? std::vector<float>{}
                           : DecodeTensor(tensor->type, source.Data(*tensor));
}

TEST_F(OpenModelTest, AFolderHoldsWhatItsGgufFileHolds) {
  TinyLlama model;
  model.architecture = "qwen3";  // whose rows lie in the same order in both
  model.tied = false;
  const std::string path = Folder() + ".gguf";
  TinyLlamaWriter(model).Write(path);
  const absl::StatusOr<OpenedModel> gguf = OpenModel(path);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  for (const int files : {1, 3}) {
    WriteHfFolder(model, Folder(), {.files = files});
    const absl::StatusOr<OpenedModel> folder = OpenModel(Folder() + "/");
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ(folder->tensors->base_name(), StrCat("open_model_test_", getpid()));
    EXPECT_EQ(folder->tensors->tensors().size(), gguf->tensors->tensors().size());
    for (const TensorInfo& tensor : gguf->tensors->tensors()) {
      const TensorInfo* same = folder->tensors->FindTensor(tensor.name);
      ASSERT_NE(same, nullptr) << tensor.name;
      EXPECT_EQ(same->name, folder->tensors->NameInFile(tensor.name));
      EXPECT_EQ(same->shape, tensor.shape);
      EXPECT_EQ(Numbers(*folder->tensors, tensor.name), Numbers(*gguf->tensors, tensor.name));
      // A loader that streams reads these bytes.
      for (const auto& [source, info] :
           {std::pair{gguf->tensors.get(), &tensor}, std::pair{folder->tensors.get(), same}}) {
        std::string bytes(info->bytes, '\0');
        ASSERT_EQ(pread(source->FileDescriptor(*info), bytes.data(), bytes.size(),
                        static_cast<off_t>(info->offset)),
                  static_cast<ssize_t>(bytes.size()));
        const absl::Span<const uint8_t> data = source->Data(*info);
        EXPECT_EQ(bytes, std::string(data.begin(), data.end()));
      }
    }
    const ModelConfig& config = folder->config;
    EXPECT_EQ(config.architecture, "qwen3");
    const SoftmaxAttention& attention = config.layers[0].softmax();
    EXPECT_EQ(attention.head_size, gguf->config.layers[0].softmax().head_size);
    EXPECT_EQ(attention.rope, gguf->config.layers[0].softmax().rope);
    EXPECT_EQ(config.context_length, gguf->config.context_length);
    folder->tensors->DropPages();
    EXPECT_FALSE(Numbers(*folder->tensors, "output_norm.weight").empty());
  }
  unlink(path.c_str());
}

TEST_F(OpenModelTest, AGenerationConfigSaysWhatEndsAnAnswer) {
  WriteHfFolder({}, Folder(), {});
  EXPECT_THAT(OpenModel(Folder())->config.end_tokens, IsEmpty());
  std::ofstream(Folder() + "/generation_config.json") << R"({"eos_token_id": [3, 5]})";
  EXPECT_THAT(OpenModel(Folder())->config.end_tokens, ElementsAre(3, 5));
  std::ofstream(Folder() + "/generation_config.json") << "[]";
  EXPECT_THAT(ErrorOf(OpenModel(Folder())), HasSubstr("generation_config.json: is "));
}

TEST_F(OpenModelTest, ChecksTensorsAgainstTheConfig) {
  const TinyLlama model;
  EXPECT_EQ(ErrorOf(model, {}), "no error");
  EXPECT_EQ(ErrorOf(model, {.type = TensorType::kBf16}), "no error");
  EXPECT_THAT(ErrorOf(model, {.config = {{"intermediate_size", 96}}}),
              HasSubstr("tensor model.layers.0.mlp.gate_proj.weight: shape [128, 64], must be "
                        "[96, 64]"));
  EXPECT_THAT(ErrorOf(model, {.config = {{"tie_word_embeddings", false}}}),
              HasSubstr("tensor lm_head.weight: is missing"));
  EXPECT_THAT(ErrorOf(model, {.config = {{"num_hidden_layers", 1}}}),
              HasSubstr("tensor model.layers.1.input_layernorm.weight: is not one that a llama"));
  EXPECT_THAT(ErrorOf(model, {.config = {{"architectures", Json::array({"Qwen3ForCausalLM"})}}}),
              HasSubstr("tensor model.layers.0.self_attn.q_norm.weight: is missing"));
  // A tied model's head may be there twice.
  TinyLlama untied;
  untied.tied = false;
  EXPECT_EQ(ErrorOf(untied, {.config = {{"tie_word_embeddings", true}}}), "no error");
}

// As in transformers: a tied config whose files have another head uses that.
TEST_F(OpenModelTest, ATiedModelUsesTheHeadThatItsFilesHave) {
  TinyLlama model;
  model.tied = false;
  const auto open = [&](const std::function<void(const std::string&, StoredTensor*)>& change) {
    WriteHfFolder(model, Folder(), {.config = {{"tie_word_embeddings", true}}});
    std::vector<StoredTensor> tensors;
    {
      const absl::StatusOr<SafetensorsFile> file =
          SafetensorsFile::Open(Folder() + "/model.safetensors");
      std::string embedding;
      for (const TensorInfo& tensor : file->tensors) {
        const auto data = file->file.bytes().subspan(tensor.offset, tensor.bytes);
        StoredTensor stored{std::string(tensor.name), std::string(Traits(tensor.type).name),
                            tensor.shape, std::string(data.begin(), data.end())};
        if (stored.name == "model.embed_tokens.weight") embedding = stored.bytes;
        tensors.push_back(std::move(stored));
      }
      for (StoredTensor& tensor : tensors) change(embedding, &tensor);
    }
    std::erase_if(tensors, [](const StoredTensor& tensor) { return tensor.name.empty(); });
    SafetensorsWriter writer;
    for (const StoredTensor& tensor : tensors) writer.Stored(tensor);
    writer.Write(Folder() + "/model.safetensors");
    absl::StatusOr<OpenedModel> opened = OpenModel(Folder());
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened;
  };
  const auto other = open([](const std::string&, StoredTensor*) {});
  EXPECT_FALSE(other->config.tied_embeddings);
  const auto same = open([](const std::string& embedding, StoredTensor* tensor) {
    if (tensor->name == "lm_head.weight") tensor->bytes = embedding;
  });
  EXPECT_TRUE(same->config.tied_embeddings);
  const auto head_alone = open([](const std::string&, StoredTensor* tensor) {
    if (tensor->name == "model.embed_tokens.weight") tensor->name.clear();
  });
  EXPECT_TRUE(head_alone->config.tied_embeddings);
  EXPECT_EQ(head_alone->tensors->FindTensor("token_embd.weight"),
            head_alone->tensors->FindTensor("output.weight"));
  EXPECT_EQ(Numbers(*head_alone->tensors, "token_embd.weight"),
            Numbers(*other->tensors, "output.weight"));
}

TEST_F(OpenModelTest, ChecksShards) {
  const TinyLlama model;
  const auto broken = [&](const std::string& from, const std::string& to) {
    WriteHfFolder(model, Folder(), {.files = 2});
    const std::string path = Folder() + "/model.safetensors.index.json";
    const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
    std::string text(file->bytes().begin(), file->bytes().end());
    text.replace(text.find(from), from.size(), to);
    WriteFile(path, text);
    return ErrorOf(OpenModel(Folder()));
  };
  const std::string entry = "\"model.norm.weight\":\"model-";
  EXPECT_THAT(broken(entry + "2", entry + "3"), HasSubstr("model-3-of-2.safetensors: open"));
  // transformers reads all tensors of the files, whatever the index says of them.
  EXPECT_EQ(broken("\"model.norm.weight\"", "\"model.norm\""), "no error");
  EXPECT_EQ(broken(entry + "2", entry + "1"), "no error");
  EXPECT_THAT(broken("\"model-1-of-2.safetensors\"", "\"../model-1-of-2.safetensors\""),
              HasSubstr("must be the name of a .safetensors file of the folder"));
  EXPECT_THAT(broken("\"model-1-of-2.safetensors\"", "7"), HasSubstr("is 7, must be the name"));
  EXPECT_THAT(broken("weight_map", "weights"), HasSubstr("weight_map: is missing"));
  EXPECT_THAT(broken("{", "["), HasSubstr("model.safetensors.index.json: index: "));

  WriteHfFolder(model, Folder(), {.files = 2});
  std::filesystem::copy_file(Folder() + "/model-1-of-2.safetensors",
                             Folder() + "/model-2-of-2.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(ErrorOf(OpenModel(Folder())), HasSubstr("is in model-1-of-2.safetensors as well"));
  unlink((Folder() + "/model.safetensors.index.json").c_str());
  EXPECT_THAT(ErrorOf(OpenModel(Folder())),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
}

TEST_F(OpenModelTest, AConfigAloneHasShapes) {
  TinyLlama model;
  model.hidden = 192;
  model.heads = model.kv_heads = 3;
  model.ffn = 160;
  for (const auto activations : {ActivationScaling::kStatic, ActivationScaling::kDynamic}) {
    const bool is_static = activations == ActivationScaling::kStatic;
    const HfForm form{.quantization = QuantScheme{.group = is_static ? kPerTensor : kFp8Blocks,
                                                  .activations = activations}};
    WriteHfFolder(model, Folder(), form);
    const absl::StatusOr<OpenedModel> whole = OpenModel(Folder());
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_TRUE(whole->tensors->has_data());
    unlink((Folder() + "/model.safetensors").c_str());
    const absl::StatusOr<OpenedModel> shapes = OpenModel(Folder());
    ASSERT_TRUE(shapes.ok()) << shapes.status();
    EXPECT_FALSE(shapes->tensors->has_data());
    EXPECT_EQ(shapes->tensors->tensors().size(), whole->tensors->tensors().size());
    for (const TensorInfo& tensor : shapes->tensors->tensors()) {
      const TensorInfo* real = whole->tensors->FindTensor(tensor.name);
      ASSERT_NE(real, nullptr) << tensor.name;
      EXPECT_EQ(tensor.bytes == real->bytes, tensor.type == real->type) << tensor.name;
      EXPECT_EQ(tensor.shape, real->shape) << tensor.name;
    }
    EXPECT_EQ(shapes->tensors->FindTensor("token_embd.weight")->type, TensorType::kBf16);
    EXPECT_EQ(shapes->tensors->FindTensor("blk.1.ffn_up.weight")->type, TensorType::kFp8E4m3);
    EXPECT_EQ(shapes->tensors->FindTensor("blk.7.ffn_up.weight"), nullptr);
    EXPECT_TRUE(ValidateTensors(shapes->config, kLlama, *shapes->tensors).ok());
  }
  WriteHfFolder(model, Folder(),
                {.quantization = QuantScheme{},
                 .config = {{"quantization_config",
                             {{"ignore", Json::array({"lm_head", "re:.*down_proj"})}}}}});
  EXPECT_EQ(ErrorOf(OpenModel(Folder())), "no error");
  unlink((Folder() + "/model.safetensors").c_str());
  EXPECT_THAT(ErrorOf(OpenModel(Folder())), HasSubstr("leaves re:.*down_proj unquantized"));
}

TEST_F(OpenModelTest, Fp8ScalesAreCheckedAndFound) {
  TinyLlama model;
  model.hidden = 192;  // one block and a half
  model.heads = model.kv_heads = 3;
  model.ffn = 160;
  using enum ActivationScaling;
  for (const auto& [group, activations] : {std::pair{kPerTensor, kStatic},
                                           {kPerTensor, kDynamic},
                                           {kPerChannel, kDynamic},
                                           {kFp8Blocks, kDynamic}}) {
    for (const bool compressed_tensors : {true, false}) {
      if (!compressed_tensors && group == kPerChannel) continue;
      const HfForm form{.quantization = QuantScheme{.group = group, .activations = activations},
                        .compressed_tensors = compressed_tensors};
      WriteHfFolder(model, Folder(), form);
      const absl::StatusOr<OpenedModel> opened = OpenModel(Folder());
      ASSERT_TRUE(opened.ok()) << opened.status();
      const TensorSource& tensors = *opened->tensors;
      EXPECT_EQ(tensors.FindTensor("blk.0.ffn_up.weight")->type, TensorType::kFp8E4m3);
      const size_t scales = group == kPerTensor ? 1 : group == kFp8Blocks ? 4 : 160;
      EXPECT_EQ(Numbers(tensors, "blk.0.ffn_up.weight_scale").size(), scales);
      EXPECT_EQ(Numbers(tensors, "blk.0.ffn_up.input_scale").size(),
                activations == kStatic ? 1 : 0);
      EXPECT_EQ(tensors.NameInFile("blk.0.ffn_up.weight_scale"),
                StrCat("model.layers.0.mlp.up_proj.weight_scale",
                       group == kFp8Blocks && !compressed_tensors ? "_inv" : ""));
    }
  }
  // A config that says other than the file.
  const HfForm channels{.quantization = QuantScheme{.group = kPerChannel}};
  HfForm lies = channels;
  lies.config["quantization_config"] = nullptr;
  EXPECT_THAT(ErrorOf(model, lies), HasSubstr("type F8_E4M3, but the config says nothing of it"));
  lies = channels;
  Json& group = lies.config["quantization_config"]["config_groups"]["group_0"];
  group["weights"]["strategy"] = "tensor";
  EXPECT_THAT(ErrorOf(model, lies),
              HasSubstr("q_proj.weight_scale: is F32 [192, 1], must be F32, F16 or BF16 []"));
  group["input_activations"] = {{"strategy", "tensor"}, {"dynamic", false}};
  group["weights"]["strategy"] = "channel";
  EXPECT_THAT(ErrorOf(model, lies), HasSubstr("q_proj.input_scale: is missing"));
}

TEST_F(OpenModelTest, RefusesByName) {
  EXPECT_EQ(OpenModel("/nonexistent/model").status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove_all(Folder());
  std::filesystem::create_directories(Folder());
  EXPECT_THAT(ErrorOf(OpenModel(Folder())), HasSubstr("config.json: open"));
  WriteFile(Folder() + "/config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(ErrorOf(OpenModel(Folder())), HasSubstr("config.json: 1048577 bytes"));
}

}  // namespace
}  // namespace millrace
