// Models with weights of four bits, as GPTQ, AWQ and compressed-tensors store them, against the
// same models with the floats that those stand for.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "executors/cpu/cpu_executor.h"
#include "executors/cpu/weight_placer.h"
#include "executors/executor_driver_test_util.h"
#include "executors/models/any_model.h"
#include "executors/models/family_reference.h"
#include "executors/tiny_model_test_util.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int kTokens = 60;

class PackedTest : public TinyModelTest {};

CpuSpec Device() {
  return {
      {.threads = 2, .kv_cache_memory = 4 << 20, .max_num_seqs = 4, .max_num_batched_tokens = 256}};
}

std::unique_ptr<Executor> LoadRanks(const std::string& path, int ranks,
                                    bool expert_parallel = false) {
  CpuSpec device = Device();
  device.kv_cache_memory = 16 << 20;
  device.kv_cache_float32 = true;
  device.tensor_parallel_size = ranks;
  device.expert_parallel = expert_parallel;
  auto executor = cpu::LoadCpuExecutor({path}, device);
  CheckOk(executor.status());
  return *std::move(executor);
}

std::vector<float> Logprobs(const std::string& path, const cpu::Kernels& kernels) {
  auto executor = cpu::LoadCpuExecutor({path}, Device(), kernels);
  CheckOk(executor.status());
  return PromptLogprobs(**executor, Prompt(kTokens), kTokens);
}

// Rows of q, k, v, gate and up that are read by tiles of one order or several; ffn has its own.
TinyLlama Model(int hidden = 256) {
  TinyLlama model = Tiny("llama");
  model.hidden = hidden;
  model.ffn = 256;
  return model;
}

// Returns the root mean square error, over the standard deviation of the reference's.
template <typename Reference>
double RelativeError(const std::vector<float>& logprobs, const std::vector<Reference>& reference) {
  const double mean = std::accumulate(reference.begin(), reference.end(), 0.0) /
                      static_cast<double>(reference.size());
  double off = 0, spread = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    off += std::pow(logprobs[i] - reference[i], 2);
    spread += std::pow(reference[i] - mean, 2);
  }
  return std::sqrt(off / spread);
}

// Activations in 8 bits move log-probabilities by about so much (LlamaTest has the same bound).
constexpr double kTolerance = 0.042;

void ExpectNear(const std::string& path, const std::vector<double>& reference) {
  const cpu::KernelList list = cpu::SupportedKernels();
  for (int i = 0; i < list.count; ++i) {
    EXPECT_LT(RelativeError(Logprobs(path, *list.tables[i]), reference), kTolerance)
        << list.tables[i]->name;
  }
}

TEST_F(PackedTest, FoldersOfEveryLayoutAnswerAsTheirDequantizedTwins) {
  const QuantScheme schemes[] = {
      {.group = {1, 128}, .packing = Packing::kGptq, .zeros_less_one = true},
      {.group = {1, 32}, .packing = Packing::kGptq, .symmetric = false},
      {.group = {1, 64}, .packing = Packing::kGptq, .reordered = true},
      {.group = {1, 128}, .packing = Packing::kGptq, .symmetric = false, .reordered = true},
      {.group = {1, 128}, .packing = Packing::kAwq, .symmetric = false},
      {.group = {1, 64}, .packing = Packing::kAwq, .symmetric = false},
      {.group = kPerChannel, .packing = Packing::kPackQuantized},
      {.group = {1, 32}, .packing = Packing::kPackQuantized, .symmetric = false},
      {.group = {1, 128}, .packing = Packing::kPackQuantized, .reordered = true}};
  for (const QuantScheme& scheme : schemes) {
    SCOPED_TRACE(PackedConfig(scheme).dump());
    const std::vector<double> reference = ReferenceLogprobs(
        Folder(Model(), {.quantization = scheme, .dequantized = true}), Prompt(kTokens));
    ExpectNear(Folder(Model(), {.files = 2, .quantization = scheme}), reference);
  }
}

TEST_F(PackedTest, RowsThatBlocksDoNotDivideAnswerAsTheirDequantizedTwins) {
  for (const Packing packing : {Packing::kGptq, Packing::kPackQuantized}) {
    const QuantScheme scheme{.group = kPerChannel, .packing = packing};
    TinyLlama model = Model(80);
    model.ffn = 112;
    const std::vector<double> reference = ReferenceLogprobs(
        Folder(model, {.quantization = scheme, .dequantized = true}), Prompt(kTokens));
    ExpectNear(Folder(model, {.quantization = scheme}), reference);
  }
}

// q, k, v and the gate of Qwen3-Next are one tensor with the rows of each key head together, and
// are placed apart.
TEST_F(PackedTest, RowsKeyHeadByKeyHeadAnswerAsTheirDequantizedTwins) {
  FamilyTwin twin = FamilyTwinOf("qwen3_next");
  twin.config["mlp_only_layers"] = {0, 1, 2, 3};  // rounded inputs would choose other experts
  WriteTwinFolder(twin, Path("floats"));
  const QuantScheme schemes[] = {{.group = {1, 32}, .packing = Packing::kGptq, .symmetric = false},
                                 {.group = {1, 32}, .packing = Packing::kAwq, .symmetric = false},
                                 {.group = kPerChannel, .packing = Packing::kPackQuantized}};
  for (const QuantScheme& scheme : schemes) {
    SCOPED_TRACE(PackedConfig(scheme).dump());
    PackFolder(scheme, {.linears = {".in_proj_qkvz"}, .routers = {".in_proj_ba"}}, Path("floats"),
               Path("packed"), Path("twin"));
    for (const int ranks : {1, 2, 4}) {
      const auto logprobs = [&](const char* folder) {
        return PromptLogprobs(*LoadRanks(Path(folder), ranks), Prompt(kTokens, 0, 128), kTokens);
      };
      const std::vector<float> reference = logprobs("twin");
      EXPECT_LT(RelativeError(logprobs("packed"), reference), kTolerance) << ranks;
      EXPECT_GT(RelativeError(logprobs("floats"), reference), kTolerance) << ranks;
    }
  }
}

// v, up and down are left as they are, so that fused linears are made of both.
TEST_F(PackedTest, ModulesLeftAloneRunBesidePackedOnes) {
  for (const bool reordered : {false, true}) {
    const QuantScheme scheme{.group = {1, 64}, .packing = Packing::kGptq, .reordered = reordered};
    const HfForm plain{.quantization = scheme, .dequantized = true};
    const std::string path = Folder(Model(), plain);
    const std::vector<double> reference = ReferenceLogprobs(path, Prompt(kTokens));
    HfForm mixed{.quantization = scheme};
    mixed.change = [](std::vector<StoredTensor>& tensors) {
      for (const char* module : {"v_proj", "up_proj", "down_proj"}) {
        if (tensors[0].name.find(module) != std::string::npos) tensors.clear();
        if (tensors.empty()) return;  // the floats are written
      }
    };
    ExpectNear(Folder(Model(), mixed), reference);
  }
}

// Writes the twin of this name, wide enough for groups of 32 inputs, with changes to its config.
void WriteMixture(std::string_view name, const Json& changes, const std::string& folder) {
  FamilyTwin model = FamilyTwinOf(name);
  model.config.merge_patch({{"hidden_size", 64},
                            {"num_attention_heads", 4},
                            {"num_key_value_heads", 2},
                            {"head_dim", 16},
                            {"vocab_size", 320}});
  model.config.merge_patch(changes);
  WriteTwinFolder(model, folder);
}

// Every token goes through all experts, as errors of activations may change a choice.
TEST_F(PackedTest, ExpertsAnswerAsTheirDequantizedTwins) {
  WriteMixture("qwen3moe", {{"moe_intermediate_size", 96}, {"num_experts_per_tok", 8}},
               Path("floats"));
  for (const bool reordered : {false, true}) {
    const QuantScheme scheme{
        .group = {1, 32}, .packing = Packing::kGptq, .symmetric = false, .reordered = reordered};
    PackFolder(scheme, {.linears = {"_proj"}, .routers = {".gate"}}, Path("floats"), Path("packed"),
               Path("twin"));
    const std::vector<float> reference = Logprobs(Path("twin"), cpu::BestKernels());
    ExpectNear(Path("packed"), {reference.begin(), reference.end()});
    if (reordered) continue;  // down's columns are divided, too
    const auto one = LoadRanks(Path("packed"), 1);
    const std::vector<float> whole = PromptLogprobs(*one, Prompt(kTokens), kTokens);
    for (const bool expert_parallel : {false, true}) {
      const auto two = LoadRanks(Path("packed"), 2, expert_parallel);
      EXPECT_EQ(two->info().digest, one->info().digest);
      EXPECT_LT(RelativeError(PromptLogprobs(*two, Prompt(kTokens), kTokens), whole), 0.01)
          << (expert_parallel ? "by expert" : "");
    }
  }
}

// Routers become the floats that they stand for, rounded: nothing else is packed here, so that the
// answers are the same bits.
TEST_F(PackedTest, RoutersAnswerAsTheirDequantizedTwins) {
  struct Mixture {
    const char* family;
    std::vector<std::string> routers;
  };
  const Mixture mixtures[] = {{"qwen3moe", {".gate"}},
                              {"qwen2moe", {".gate", ".shared_expert_gate"}},
                              {"mixtral", {"block_sparse_moe.gate"}},
                              {"granitemoe", {"router.layer"}}};
  const QuantScheme scheme{
      .group = {1, 32}, .packing = Packing::kPackQuantized, .symmetric = false, .reordered = true};
  for (const Mixture& mixture : mixtures) {
    SCOPED_TRACE(mixture.family);
    WriteMixture(mixture.family, Json::object(), Path("floats"));
    PackFolder(scheme, {.routers = mixture.routers}, Path("floats"), Path("packed"), Path("twin"));
    const std::vector<float> answer = Logprobs(Path("packed"), cpu::BestKernels());
    EXPECT_EQ(answer, Logprobs(Path("twin"), cpu::BestKernels()));
    EXPECT_NE(answer, Logprobs(Path("floats"), cpu::BestKernels()));
  }
}

// Granite stores a shared expert's gate and up as one.
TEST_F(PackedTest, SharedExpertsAnswerAsTheirDequantizedTwins) {
  WriteMixture("granitemoeshared", {{"num_experts_per_tok", 6}}, Path("floats"));
  for (const Packing packing : {Packing::kGptq, Packing::kAwq, Packing::kPackQuantized}) {
    const QuantScheme scheme{.group = {1, 32}, .packing = packing, .symmetric = false};
    PackFolder(scheme,
               {.linears = {"_proj", "shared_mlp.input_linear", "shared_mlp.output_linear"}},
               Path("floats"), Path("packed"), Path("twin"));
    const std::vector<float> reference = Logprobs(Path("twin"), cpu::BestKernels());
    ExpectNear(Path("packed"), {reference.begin(), reference.end()});
    const auto one = LoadRanks(Path("packed"), 1), two = LoadRanks(Path("packed"), 2);
    EXPECT_EQ(two->info().digest, one->info().digest);
    EXPECT_LT(RelativeError(PromptLogprobs(*two, Prompt(kTokens), kTokens),
                            PromptLogprobs(*one, Prompt(kTokens), kTokens)),
              0.01);
  }
}

// However a prompt is cut, on any number of threads: the same bits.
TEST_F(PackedTest, OrderedInputsGiveTheSameBitsInEveryStep) {
  const QuantScheme scheme{
      .group = {1, 32}, .packing = Packing::kGptq, .symmetric = false, .reordered = true};
  const std::string path = Folder(Model(), {.quantization = scheme});
  const std::vector<float> whole = Logprobs(path, cpu::BestKernels());
  for (const int threads : {1, 2}) {
    CpuSpec device = Device();
    device.threads = threads;
    for (const int chunk : {1, 7, 32}) {
      auto executor = cpu::LoadCpuExecutor({path}, device);
      CheckOk(executor.status());
      EXPECT_EQ(PromptLogprobs(**executor, Prompt(kTokens), chunk), whole) << chunk;
    }
  }
}

TEST_F(PackedTest, RanksOfPackedWeightsAreOneModel) {
  TinyLlama model = Model();
  model.heads = 8;
  model.kv_heads = 4;
  model.ffn = 640;
  for (const int group : {0, 32, 128}) {
    const std::string path =
        Folder(model, {.quantization = QuantScheme{
                           .group = {1, group}, .packing = Packing::kAwq, .symmetric = false}});
    const auto one = LoadRanks(path, 1);
    const std::vector<float> whole = PromptLogprobs(*one, Prompt(kTokens), kTokens);
    for (const int ranks : {2, 3}) {
      const auto divided = LoadRanks(path, ranks);
      EXPECT_EQ(divided->info().digest, one->info().digest);
      EXPECT_LT(RelativeError(PromptLogprobs(*divided, Prompt(kTokens), kTokens), whole), 0.01)
          << "groups of " << group << " on " << ranks << " ranks";
    }
  }
}

TEST_F(PackedTest, RanksThatDivideReorderedInputsAreRefusedByName) {
  const std::string path =
      Folder(Model(), {.quantization = QuantScheme{
                           .group = {1, 64}, .packing = Packing::kGptq, .reordered = true}});
  const absl::StatusOr<OpenedModel> opened = OpenModel(path);
  CheckOk(opened.status());
  cpu::CpuWeightPlacer placer(*opened->tensors, cpu::BestKernels(), 0, {.rank = 0, .size = 2});
  const absl::Status status = LoadAnyModel(opened->config, 64, placer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("o_proj.weight has groups of any inputs, and ranks divide its inputs"));
}

TEST_F(PackedTest, TheDigestIsOfAllTensors) {
  const QuantScheme scheme{
      .group = {1, 64}, .packing = Packing::kGptq, .symmetric = false, .reordered = true};
  const auto digest = [&](const std::string& changed) {
    HfForm form{.quantization = scheme};
    form.change = [&](std::vector<StoredTensor>& tensors) {
      for (StoredTensor& tensor : tensors) {
        if (!tensor.name.ends_with("1.mlp.up_proj" + changed) || changed.empty()) continue;
        if (changed == ".g_idx") {  // two inputs change groups
          std::swap_ranges(tensor.bytes.begin(), tensor.bytes.begin() + 4, tensor.bytes.end() - 4);
        } else {
          tensor.bytes[9] ^= 1;
        }
      }
    };
    auto executor = cpu::LoadCpuExecutor({Folder(Model(), form)}, Device());
    CheckOk(executor.status());
    return (*executor)->info().digest;
  };
  const auto whole = digest("");
  EXPECT_EQ(digest(""), whole);
  for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"}) {
    EXPECT_NE(digest(part), whole) << part;
  }
}

TEST_F(PackedTest, BrokenCheckpointsEndTheLoadByName) {
  const QuantScheme scheme{.group = {1, 64}, .packing = Packing::kGptq, .reordered = true};
  const std::string path =
      Folder(Model(), {.quantization = scheme, .change = [](std::vector<StoredTensor>& tensors) {
                         if (!tensors[0].name.ends_with("1.mlp.down_proj.qweight")) return;
                         tensors[3].bytes[0] = 77;
                       }});
  EXPECT_THAT(std::string(cpu::LoadCpuExecutor({path}, Device()).status().message()),
              HasSubstr("tensor model.layers.1.mlp.down_proj.g_idx holds 77 for input 0"));
}

}  // namespace
}  // namespace millrace
