#include "formats/huggingface/packed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "formats/open_model.h"
#include "formats/tensors/packed_reader.h"
#include "formats/tensors/packed_weight.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/hf_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Returns a change of the tensors whose names end so; one that it leaves without a name is left
// out.
std::function<void(std::vector<StoredTensor>&)> ChangeOf(
    const std::string& suffix, const std::function<void(StoredTensor&)>& change) {
  return [=](std::vector<StoredTensor>& tensors) {
    for (StoredTensor& tensor : tensors) {
      if (tensor.name.ends_with(suffix)) change(tensor);
    }
    std::erase_if(tensors, [](const StoredTensor& tensor) { return tensor.name.empty(); });
  };
}

class PackedTensorsTest : public ::testing::Test {
 protected:
  ~PackedTensorsTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<OpenedModel> Open(const HfForm& form, int hidden = 64) {
    TinyLlama model;
    model.layers = 1;
    model.hidden = hidden;
    WriteHfFolder(model, folder_, form);
    return OpenModel(folder_);
  }

  // The error after a change to up's tensor of this suffix.
  std::string Error(const QuantScheme& scheme, const std::string& suffix,
                    const std::function<void(StoredTensor&)>& change) {
    const absl::StatusOr<OpenedModel> opened =
        Open({.quantization = scheme, .change = ChangeOf("mlp.up_proj" + suffix, change)});
    return opened.ok() ? "no error" : std::string(opened.status().message());
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "packed_tensors_test_", getpid());
};

void Remove(StoredTensor& tensor) { tensor.name.clear(); }
void Transpose(StoredTensor& tensor) { std::swap(tensor.shape[0], tensor.shape[1]); }

TEST_F(PackedTensorsTest, LinearsArePresentedAsOneTensorEach) {
  for (const Packing packing : {Packing::kGptq, Packing::kAwq, Packing::kPackQuantized}) {
    HfForm form{.quantization =
                    QuantScheme{.group = {1, 32}, .packing = packing, .symmetric = false}};
    form.change = [](std::vector<StoredTensor>& tensors) {  // q's floats are written
      if (tensors[0].name.find("q_proj") != std::string::npos) tensors.clear();
    };
    const auto opened = Open(form);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const TensorSource& source = *opened->tensors;
    // 7 linears, 2 norms, the last norm and the embedding, which is the head, too.
    EXPECT_EQ(source.tensors().size(), 11);
    const TensorInfo* const q = source.FindTensor("blk.0.attn_q.weight");
    ASSERT_NE(q, nullptr);
    EXPECT_EQ(q->type, TensorType::kF32);
    EXPECT_EQ(source.Packed(*q), nullptr);
    EXPECT_EQ(source.Data(*q).size(), 64 * 64 * 4);
    const TensorInfo* const down = source.FindTensor("blk.0.ffn_down.weight");
    ASSERT_NE(down, nullptr);
    EXPECT_EQ(down->name, "model.layers.0.mlp.down_proj.weight");
    EXPECT_EQ(down->shape, (std::vector<int64_t>{64, 128}));
    EXPECT_EQ(down->bytes, 64 * 4 * 24);
    const PackedWeight* const weight = source.Packed(*down);
    ASSERT_NE(weight, nullptr);
    EXPECT_EQ(weight->rows, 64);
    EXPECT_EQ(weight->columns, 128);
    EXPECT_EQ(weight->num_groups(), 4);
    EXPECT_EQ(weight->Stored().size(), packing == Packing::kGptq ? 4 : 3);
    for (const TensorInfo* stored : weight->Stored()) {
      EXPECT_EQ(source.Data(*stored).size(), stored->bytes);
    }
    EXPECT_EQ(source.FindTensor("blk.0.ffn_down.scales"), nullptr);
  }
}

TEST_F(PackedTensorsTest, BrokenTensorsAreNamed) {
  QuantScheme scheme{.group = {1, 32}, .packing = Packing::kGptq, .reordered = true};
  const std::string up = "tensor model.layers.0.mlp.up_proj";
  const auto type = [](StoredTensor& tensor) {
    tensor.dtype = "F16";
    tensor.shape.back() *= 2;
  };
  EXPECT_EQ(Error(scheme, ".none", Remove), "no error");
  EXPECT_THAT(Error(scheme, ".qweight", Remove), HasSubstr(up + ".weight: is missing"));
  EXPECT_THAT(Error(scheme, ".qweight",
                    [](StoredTensor& tensor) {  // of no module
                      tensor.name = ".qweight";
                    }),
              HasSubstr(up + ".weight: is missing"));
  EXPECT_THAT(Error(scheme, ".scales", Remove), HasSubstr(up + ".scales: is missing"));
  EXPECT_THAT(Error(scheme, ".qzeros", Remove), HasSubstr(up + ".qzeros: is missing"));
  EXPECT_THAT(Error(scheme, ".g_idx", Remove), HasSubstr(up + ".g_idx: is missing"));
  EXPECT_THAT(Error(scheme, ".qweight", Transpose),
              HasSubstr(up + ".qweight: is I32 [128, 8], must be I32 [8, 128]"));
  EXPECT_THAT(Error(scheme, ".qweight", type),
              HasSubstr(up + ".qweight: is F16 [8, 256], must be I32 [8, 128]"));
  EXPECT_THAT(Error(scheme, ".scales", Transpose),
              HasSubstr(up + ".scales: is F16 [128, 2], must be F16, BF16, F32 [2, 128]"));
  EXPECT_THAT(Error(scheme, ".qzeros", Transpose), HasSubstr(up + ".qzeros: is I32 [16, 2]"));
  const auto larger =
      Open({.quantization = scheme, .config = {{"quantization_config", {{"group_size", 128}}}}});
  EXPECT_THAT(
      std::string(larger.status().message()),
      HasSubstr("q_proj.qweight: has 64 inputs, must be a multiple of the groups' size, 128"));
  scheme = {.group = {1, 32}, .packing = Packing::kAwq, .symmetric = false};
  EXPECT_THAT(Error(scheme, ".qweight", Transpose),
              HasSubstr(up + ".qweight: is I32 [16, 64], must be I32 [64, 16]"));
  scheme = {
      .group = {1, 32}, .packing = Packing::kPackQuantized, .symmetric = false, .reordered = true};
  for (const char* part :
       {".weight_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape"}) {
    EXPECT_THAT(Error(scheme, part, Remove), HasSubstr(StrCat(up, part, ": is missing")));
  }
  EXPECT_THAT(Error(scheme, ".weight_packed", Transpose),
              HasSubstr(up + ".weight_packed: is I32 [8, 128], must be I32 [128, 8]"));
}

// Early versions of AutoGPTQ and AutoAWQ wrote their settings into a file beside config.json.
TEST_F(PackedTensorsTest, SettingsMayLieBesideTheConfig) {
  for (const Packing packing : {Packing::kGptq, Packing::kAwq}) {
    const bool gptq = packing == Packing::kGptq;
    const QuantScheme scheme{.group = {1, 32}, .packing = packing, .symmetric = false};
    const HfForm form{.quantization = scheme, .config = {{"quantization_config", nullptr}}};
    EXPECT_THAT(std::string(Open(form).status().message()),
                HasSubstr("tensor model.layers.0.self_attn.q_proj.qweight: has packed weights, but "
                          "the config says nothing of them"));
    const std::string beside = folder_ + (gptq ? "/quantize_config.json" : "/quant_config.json");
    std::ofstream(beside) << (gptq ? R"({"bits": 4, "group_size": 32, "sym": false,
                                         "desc_act": false, "model_name_or_path": null,
                                         "model_file_base_name": "model"})"
                                   : R"({"w_bit": 4, "q_group_size": 32, "zero_point": true,
                                         "version": "GEMM"})");
    const auto opened = OpenModel(folder_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->config.quantization->packing, packing);
    EXPECT_EQ(opened->config.quantization->group, scheme.group);
    EXPECT_EQ(opened->config.quantization->zeros_less_one, gptq);
    std::ofstream(beside) << R"({"bits": 3, "group_size": 32})";
    EXPECT_THAT(std::string(OpenModel(folder_).status().message()),
                HasSubstr(gptq ? "quantize_config.json: bits: 3" : "quant_config.json: bits: 3"));
  }
}

TEST_F(PackedTensorsTest, AnotherFormatThanTheConfigsIsNamed) {
  HfForm form{.quantization = QuantScheme{.group = {1, 32}, .packing = Packing::kPackQuantized}};
  Json config = PackedConfig({.group = {1, 32}, .packing = Packing::kGptq});
  for (const char* other : {"format", "ignore", "config_groups"}) config[other] = nullptr;
  form.config = {{"quantization_config", config}};
  EXPECT_THAT(
      std::string(Open(form).status().message()),
      HasSubstr("q_proj.weight_packed: has packed weights, but not in the config's format"));
}

// AutoGPTQ's old writer left biases of zeros beside linears without one.
TEST_F(PackedTensorsTest, BiasesOfZerosThatAModelDoesNotHaveAreLeftOut) {
  for (const char value : {'\0', '\1'}) {
    HfForm form{.quantization = QuantScheme{.group = {1, 32}, .packing = Packing::kGptq}};
    form.change = [&](std::vector<StoredTensor>& tensors) {
      if (!tensors[0].name.ends_with("up_proj.qweight")) return;
      tensors.push_back({"model.layers.0.mlp.up_proj.bias", "F16", {128}, std::string(256, value)});
    };
    const auto opened = Open(form);
    if (value == 0) {
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_EQ(opened->tensors->FindTensor("blk.0.ffn_up.bias"), nullptr);
    } else {
      EXPECT_THAT(std::string(opened.status().message()), HasSubstr("up_proj.bias: is not one"));
    }
  }
}

TEST_F(PackedTensorsTest, IntegersAreNoWeights) {
  HfForm form{.quantization = QuantScheme{.group = {1, 32}, .packing = Packing::kGptq}};
  form.change = [](std::vector<StoredTensor>& tensors) {
    if (!tensors[0].name.ends_with("up_proj.qweight")) return;
    tensors = {{"model.layers.0.mlp.up_proj.weight", "I32", {128, 64}, std::string(128 * 256, 0)}};
  };
  EXPECT_THAT(std::string(Open(form).status().message()),
              HasSubstr("up_proj.weight: type I32, which a model"));
}

// The twin of this name, with 64 inputs and 8 experts.
FamilyTwin Mixture(std::string_view name) {
  FamilyTwin twin = FamilyTwinOf(name);
  twin.config["hidden_size"] = 64;
  twin.config[twin.config.contains("num_experts") ? "num_experts" : "num_local_experts"] = 8;
  return twin;
}

std::vector<float> Floats(const TensorSource& source, const TensorInfo& tensor) {
  std::vector<uint8_t> bytes(tensor.bytes);
  source.Read(tensor, 0, absl::MakeSpan(bytes));
  return DecodeTensor(tensor.type, bytes);
}

const QuantScheme kSchemes[] = {
    {.group = {1, 32}, .packing = Packing::kGptq, .zeros_less_one = true},
    {.group = {1, 32}, .packing = Packing::kGptq, .symmetric = false, .zeros_less_one = true},
    {.group = {1, 32}, .packing = Packing::kGptq, .symmetric = false, .reordered = true},
    {.group = {1, 32}, .packing = Packing::kAwq, .symmetric = false},
    {.group = kPerChannel, .packing = Packing::kPackQuantized},
    {.group = {1, 32}, .packing = Packing::kPackQuantized, .symmetric = false}};

TEST_F(PackedTensorsTest, RoutersBecomeNumbers) {
  WriteTwinFolder(Mixture("qwen2moe"), folder_ + "/floats");
  for (const QuantScheme& scheme : kSchemes) {
    SCOPED_TRACE(PackedConfig(scheme).dump());
    PackedModules modules{.routers = {".gate"}};
    // GPTQ and AWQ store the zeros of eight rows together, and this has one row.
    if (scheme.packing == Packing::kPackQuantized) modules.routers.push_back(".shared_expert_gate");
    PackFolder(scheme, modules, folder_ + "/floats", folder_ + "/packed", folder_ + "/twin");
    const auto opened = OpenModel(folder_ + "/packed"), twin = OpenModel(folder_ + "/twin");
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(twin.ok()) << twin.status();
    EXPECT_EQ(opened->tensors->tensors().size(), twin->tensors->tensors().size());
    for (int layer = 0; layer < 2; ++layer) {
      for (const char* router : {"ffn_gate_inp", "ffn_gate_inp_shexp"}) {
        const std::string name = StrCat("blk.", layer, ".", router, ".weight");
        const TensorInfo* const tensor = opened->tensors->FindTensor(name);
        const TensorInfo* const expected = twin->tensors->FindTensor(name);
        ASSERT_TRUE(tensor != nullptr && expected != nullptr) << name;
        const bool packed = router == std::string("ffn_gate_inp") || modules.routers.size() == 2;
        EXPECT_EQ(tensor->type, packed ? TensorType::kBf16 : TensorType::kF32) << name;
        EXPECT_EQ(tensor->name, expected->name);
        EXPECT_EQ(tensor->shape, expected->shape);
        EXPECT_EQ(opened->tensors->Packed(*tensor), nullptr);
        EXPECT_EQ(Floats(*opened->tensors, *tensor), Floats(*twin->tensors, *expected)) << name;
        opened->tensors->DropPages(*tensor);
      }
    }
    opened->tensors->DropPages();
  }
}

TEST_F(PackedTensorsTest, BrokenRoutersAreNamed) {
  WriteTwinFolder(Mixture("qwen2moe"), folder_ + "/floats");
  // The error after a change to a tensor of this suffix of the first layer's router.
  const auto error = [&](const QuantScheme& scheme, const std::string& suffix, const auto& change) {
    PackFolder(scheme, {.routers = {"0.mlp.gate"}}, folder_ + "/floats", folder_ + "/packed",
               folder_ + "/twin", ChangeOf(suffix, change));
    return std::string(OpenModel(folder_ + "/packed").status().message());
  };
  const QuantScheme scheme{.group = {1, 32}, .packing = Packing::kGptq, .reordered = true};
  const std::string gate = "tensor model.layers.0.mlp.gate.";
  const auto sixteen = [](StoredTensor& tensor) {
    tensor.shape[1] *= 2;
    tensor.bytes += tensor.bytes;
  };
  EXPECT_EQ(error(scheme, ".none", Remove), "");
  EXPECT_THAT(error(scheme, ".qweight", sixteen),
              HasSubstr(gate + "qweight: is I32 [8, 16], must be I32 [8, 8]"));
  EXPECT_THAT(error(scheme, ".qweight", Remove), HasSubstr(gate + "weight: is missing"));
  EXPECT_THAT(error(scheme, ".qzeros", Remove), HasSubstr(gate + "qzeros: is missing"));
  EXPECT_THAT(error(scheme, ".scales", Transpose),
              HasSubstr(gate + "scales: is BF16 [8, 2], must be F16, BF16, F32 [2, 8]"));
  EXPECT_THAT(error(scheme, ".g_idx", [](StoredTensor& tensor) { tensor.bytes[4] = 2; }),
              HasSubstr(gate + "g_idx holds 2 for input 1, allowed: groups 0 to 1"));
  EXPECT_THAT(error(scheme, ".qzeros", [](StoredTensor& tensor) { tensor.bytes[0] = 0; }),
              HasSubstr(gate + "qzeros holds 88888800, allowed for symmetric weights"));
  EXPECT_THAT(error({.group = {1, 32}, .packing = Packing::kAwq, .symmetric = false}, ".qweight",
                    [](StoredTensor& tensor) {
                      tensor.shape = {8, 8};
                    }),
              HasSubstr(gate + "qweight: is I32 [8, 8], must be I32 [64, 1]"));
}

TEST_F(PackedTensorsTest, GatesAndUpsThatAreStoredAsOneAreTwoWeights) {
  WriteTwinFolder(Mixture("granitemoeshared"), folder_ + "/floats");
  const PackedModules modules{.linears = {".input_linear", ".output_linear"},
                              .routers = {".layer"}};
  for (const QuantScheme& scheme : kSchemes) {
    SCOPED_TRACE(PackedConfig(scheme).dump());
    PackFolder(scheme, modules, folder_ + "/floats", folder_ + "/packed", folder_ + "/twin");
    const auto opened = OpenModel(folder_ + "/packed"), twin = OpenModel(folder_ + "/twin");
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(twin.ok()) << twin.status();
    EXPECT_EQ(opened->tensors->tensors().size(), twin->tensors->tensors().size());
    for (const char* linear : {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"}) {
      const std::string name = StrCat("blk.1.", linear, ".weight");
      const TensorInfo* const tensor = opened->tensors->FindTensor(name);
      const TensorInfo* const expected = twin->tensors->FindTensor(name);
      ASSERT_TRUE(tensor != nullptr && expected != nullptr) << name;
      EXPECT_EQ(tensor->shape, expected->shape);
      const PackedWeight* const weight = opened->tensors->Packed(*tensor);
      ASSERT_NE(weight, nullptr);
      const auto reader = PackedReader::Open(*opened->tensors, *weight);
      ASSERT_TRUE(reader.ok()) << reader.status();
      std::vector<float> values(tensor->shape[0] * tensor->shape[1]);
      for (int64_t row = 0; row < tensor->shape[0]; ++row) {
        reader->ReadFloats(row, &values[row * tensor->shape[1]]);
      }
      EXPECT_EQ(values, Floats(*twin->tensors, *expected)) << name;
    }
  }
  const auto error = [&](const std::string& suffix, const auto& change) {
    PackFolder(kSchemes[2], modules, folder_ + "/floats", folder_ + "/packed", folder_ + "/twin",
               ChangeOf("0.shared_mlp.input_linear" + suffix, change));
    return std::string(OpenModel(folder_ + "/packed").status().message());
  };
  const std::string both = "tensor model.layers.0.shared_mlp.input_linear.";
  EXPECT_THAT(error(".qweight", Remove), HasSubstr(both + "weight: is missing"));
  EXPECT_THAT(error(".qzeros", Remove), HasSubstr(both + "qzeros: is missing"));
  EXPECT_THAT(error(".qweight", Transpose),
              HasSubstr(both + "qweight: is I32 [128, 8], must be I32 [8, 128]"));
}

// Zeros of GPTQ and AWQ come eight to a word, one for each row.
TEST_F(PackedTensorsTest, GatesOfOneRowAreRefusedWhereWordsHaveEight) {
  WriteTwinFolder(Mixture("qwen2moe"), folder_ + "/floats");
  PackFolder({.group = {1, 32}, .packing = Packing::kPackQuantized},
             {.routers = {"shared_expert_gate"}}, folder_ + "/floats", folder_ + "/packed",
             folder_ + "/twin", [](std::vector<StoredTensor>& tensors) {
               const std::string& name = tensors[0].name;
               tensors[0].name = name.substr(0, name.rfind('.')) + ".qweight";
             });
  std::ifstream file(folder_ + "/packed/config.json");
  Json config = Json::parse(file);
  config["quantization_config"] = PackedConfig({.group = {1, 32}, .packing = Packing::kGptq});
  WriteFile(folder_ + "/packed/config.json", config.dump());
  EXPECT_THAT(std::string(OpenModel(folder_ + "/packed").status().message()),
              HasSubstr("0.mlp.shared_expert_gate.qweight: holds a weight [1, 64], must be of "
                        "multiples of 8"));
}

// For dummy weights: the presented tensors without those that they would be made of.
TEST_F(PackedTensorsTest, AConfigAloneHasItsShapes) {
  TinyLlama model;
  model.hidden = 256;
  WriteHfFolder(model, folder_,
                {.quantization = QuantScheme{.group = {1, 128}, .packing = Packing::kGptq}});
  std::filesystem::remove(folder_ + "/model.safetensors");
  const auto opened = OpenModel(folder_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const TensorInfo* const q = opened->tensors->FindTensor("blk.0.attn_q.weight");
  EXPECT_EQ(q->type, TensorType::kInt4x128);
  EXPECT_EQ(q->bytes, 256 * 2 * 72);
  EXPECT_EQ(opened->tensors->Packed(*q), nullptr);
}

}  // namespace
}  // namespace millrace
