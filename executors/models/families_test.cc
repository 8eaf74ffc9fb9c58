// Every family on the CPU against transformers, and what must show when it is computed otherwise.
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/models/family_reference.h"
#include "executors/tiny_model_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Shares of the largest logit, against float64: with keys and values in float32; and in float16,
// which is compared with a reference that rounds them, too, and with one that does not.
constexpr double kTolerance = 1e-5;
constexpr double kHalfKvTolerance = 5e-4;
constexpr double kRoundedTolerance = 3e-3;
// The inputs of quantized linears are rounded to eight bits.
constexpr double kQuantizedTolerance = 3e-2;

constexpr TwinForm kForms[] = {TwinForm::kFolder, TwinForm::kGguf};

CpuSpec Device(bool float_kv, int max_model_len) {
  return {{.threads = 2,
           .kv_cache_memory = 32 << 20,
           .max_num_seqs = 130,
           .max_num_batched_tokens = 128,
           .max_model_len = max_model_len},
          /*kv_cache_float32=*/float_kv};
}

CpuSpec RankDevice(int max_model_len, int ranks, bool expert_parallel) {
  CpuSpec device = Device(true, max_model_len);
  device.kv_cache_memory = 64 << 20;  // heads are filled up to whole ones on every rank
  device.tensor_parallel_size = ranks;
  device.expert_parallel = expert_parallel;
  return device;
}

// The CPU with these kernels.
LoadTwin Loader(bool float_kv, const cpu::Kernels& kernels = cpu::BestKernels()) {
  return [float_kv, &kernels](const std::string& path, int max_model_len) {
    return cpu::LoadCpuExecutor({path}, Device(float_kv, max_model_len), kernels);
  };
}

class FamiliesTest : public TinyModelTest {};

TEST_F(FamiliesTest, AreWhatTransformersMakesOfThem) {
  for (const cpu::Kernels* kernels : {&cpu::PlainKernels(), &cpu::BestKernels()}) {
    for (const bool float_kv : {true, false}) {
      SCOPED_TRACE(StrCat(kernels->name, float_kv ? ", float32" : ", float16"));
      std::vector<TwinResult> results = RunFamilies(Loader(float_kv, *kernels), Path("twins"));
      EXPECT_EQ(results.size(), ReadFamilyReference().twins.size());
      const std::vector<TwinResult> files =
          RunFamilies(Loader(float_kv, *kernels), Path("twins"), TwinForm::kGguf);
      EXPECT_GT(files.size(), results.size() / 2);
      results.insert(results.end(), files.begin(), files.end());
      for (const TwinResult& result : results) {
        EXPECT_LT(result.error, result.quantized ? kQuantizedTolerance
                                : float_kv       ? kTolerance
                                                 : kRoundedTolerance)
            << result.name;
        EXPECT_TRUE(float_kv || result.quantized || result.half_kv_error < kHalfKvTolerance)
            << result.name << " " << result.half_kv_error;
        EXPECT_TRUE(result.same) << result.name;
        // For docs/accuracy.md's tables: --gtest_output=xml.
        RecordProperty(StrCat(result.name, float_kv ? "_float32" : "_float16"),
                       StrCat(result.error, " ", result.half_kv_error));
      }
    }
  }
}

TEST(FamilyReferenceTest, ANanIsWorst) {
  const std::vector<double> reference = {1, 2, 3};
  EXPECT_EQ(WorstError(std::vector<float>{1, 2.5f, 3}, reference), 0.5);
  for (size_t at = 0; at < reference.size(); ++at) {
    std::vector<float> logprobs = {1, 2.5f, 3};
    logprobs[at] = NAN;
    EXPECT_EQ(WorstError(logprobs, reference), INFINITY) << at;
  }
}

// Fields of an object and of the objects in it: "rope_scaling.factor".
void AddFields(const Json& object, const std::string& prefix, std::set<std::string>* fields) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      AddFields(value, StrCat(prefix, name, "."), fields);
    } else if (!value.is_null()) {
      fields->insert(prefix + name);
    }
  }
}

// Every field of a twin's config is changed by a mutation of its own or of another of its family,
// but for those that say which family it is, how large it is, which tensors it has, what a request
// ends with, and how a folder stores it.
TEST(FamilyTwinsTest, EveryNumberIsChanged) {
  const std::set<std::string> others = {"architectures",
                                        "attention_bias",
                                        "mlp_bias",
                                        "model_type",
                                        "hidden_size",
                                        "intermediate_size",
                                        "vocab_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "num_key_value_heads",
                                        "head_dim",
                                        "hidden_act",
                                        "hidden_activation",
                                        "tie_word_embeddings",
                                        "torch_dtype",
                                        "bos_token_id",
                                        "eos_token_id",
                                        "max_position_embeddings",
                                        "num_local_experts",
                                        "num_experts",
                                        "n_routed_experts",
                                        "moe_intermediate_size",
                                        "shared_expert_intermediate_size",
                                        "shared_intermediate_size",
                                        "n_shared_experts",
                                        "decoder_sparse_step",
                                        "mlp_only_layers",
                                        "first_k_dense_replace",
                                        "num_nextn_predict_layers",
                                        "qkv_bias",
                                        "use_qk_norm",
                                        "full_attention_interval",
                                        "linear_num_key_heads",
                                        "linear_num_value_heads",
                                        "linear_key_head_dim",
                                        "linear_value_head_dim",
                                        "linear_conv_kernel_dim",  // others are refused
                                        "full_attn_idxs",
                                        "block_ff_dim",
                                        "block_auto_adjust_ff_dim",
                                        "block_multiple_of",
                                        "block_ffn_dim_multiplier",
                                        "conv_L_cache",
                                        "conv_bias",
                                        "num_dense_layers",
                                        "use_expert_bias",
                                        "tie_embedding",
                                        "mamba_n_heads",
                                        "mamba_d_head",
                                        "mamba_n_groups",
                                        "mamba_d_state",
                                        "mamba_d_conv",
                                        "mamba_expand",
                                        "mamba_conv_bias",
                                        "mamba_proj_bias",
                                        "mamba_num_heads",
                                        "mamba_head_dim",
                                        "n_groups",
                                        "ssm_state_size",
                                        "conv_kernel",
                                        "use_conv_bias",
                                        "use_bias",
                                        "time_step_min",  // transformers' alone
                                        "hybrid_override_pattern",
                                        "layers_block_type",
                                        "moe_shared_expert_intermediate_size",
                                        "mlp_hidden_act",  // others are refused
                                        "swiglu_limit",    // others are refused
                                        "quantization_config.quant_method",
                                        "quantization_config.modules_to_not_convert",
                                        "rope_scaling.type",
                                        "rope_scaling.rope_type"};
  std::map<std::string, std::set<std::string>> changed;
  const auto family = [](const FamilyTwin& twin) {
    const Json& scaling = twin.config.value("rope_scaling", Json::object());
    return StrCat(twin.config["architectures"][0].get<std::string>(), " ",
                  scaling.value("rope_type", ""));
  };
  for (const FamilyTwin& twin : FamilyTwins()) {
    for (const Json& mutation : twin.mutations) AddFields(mutation, "", &changed[family(twin)]);
  }
  for (const FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    std::set<std::string> fields;
    AddFields(twin.config, "", &fields);
    for (const std::string& field : fields) {
      // Where some layers are recurrent, this says which tensors there are.
      if (field == "layer_types" && (twin.config.contains("conv_L_cache") ||
                                     twin.config["model_type"] == "granitemoehybrid")) {
        continue;
      }
      EXPECT_TRUE(others.contains(field) || changed[family(twin)].contains(field)) << field;
    }
  }
}

// A model whose weights are divided among ranks is the same model, but for the order of sums.
TEST_F(FamiliesTest, RanksGiveTheLogitsOfOne) {
  const FamilyReference reference = ReadFamilyReference();
  for (const FamilyTwin& twin : FamilyTwins()) {
    const std::string path = Path(twin.name);
    WriteTwinFolder(twin, path);
    const auto one = Loader(true)(path, twin.max_model_len);
    ASSERT_TRUE(one.ok()) << one.status();
    const std::vector<float> whole = TwinLogprobs(**one, reference);
    const bool mixture = twin.config.contains("num_experts_per_tok");
    for (const int ranks : {2, 3, 4, 8}) {
      for (const bool expert_parallel : {false, true}) {
        if (expert_parallel && !mixture) continue;
        const auto divided =
            cpu::LoadCpuExecutor({path}, RankDevice(twin.max_model_len, ranks, expert_parallel));
        ASSERT_TRUE(divided.ok()) << divided.status();
        EXPECT_EQ((*divided)->info().digest, (*one)->info().digest);
        EXPECT_LT(WorstError(TwinLogprobs(**divided, reference), whole) /
                      reference.twins.at(twin.name).largest,
                  kTolerance)
            << twin.name << " on " << ranks << " ranks" << (expert_parallel ? ", by expert" : "");
      }
    }
  }
}

// A wrong base, epsilon, grouping, scale, window, cap, factor … is no rounding error.
TEST_F(FamiliesTest, WhatIsComputedOtherwiseShows) {
  for (const bool float_kv : {true, false}) {
    for (const TwinForm form : kForms) {
      SCOPED_TRACE(
          StrCat(float_kv ? "float32" : "float16", form == TwinForm::kGguf ? ", GGUF" : ""));
      const MutantResults mutants = RunMutants(Loader(float_kv), Path("mutants"), form);
      for (const TwinResult& result : mutants.results) {
        if (result.quantized) {
          EXPECT_GT(result.error, kQuantizedTolerance) << result.name << " " << result.change;
          continue;
        }
        EXPECT_GT(float_kv ? result.error : result.half_kv_error,
                  10 * (float_kv ? kTolerance : kHalfKvTolerance))
            << result.name << " " << result.change;
        EXPECT_GT(result.error, float_kv ? kTolerance : kRoundedTolerance)
            << result.name << " " << result.change;
      }
      if (form == TwinForm::kFolder) {
        EXPECT_THAT(mutants.unsaid, IsEmpty());
        continue;
      }
      // llama.cpp knows these by the architecture's name, and its converter does not write them.
      EXPECT_THAT(
          mutants.unsaid,
          ElementsAre(
              R"(llama_yarn {"rope_scaling":{"attention_factor":1.0}})",
              R"(gemma2 {"query_pre_attn_scalar":24})", HasSubstr(R"(gemma2 {"layer_types":)"),
              R"(gemma3 {"rope_local_base_freq":500.0})", R"(gemma3 {"query_pre_attn_scalar":24})",
              R"(gemma3 {"sliding_window_pattern":5})", HasSubstr(R"(smollm3 {"no_rope_layers":)"),
              R"(smollm3 {"no_rope_layer_interval":3})", R"(qwen2moe {"norm_topk_prob":true})",
              R"(qwen3moe {"norm_topk_prob":false})", R"(qwen3_next {"norm_topk_prob":false})",
              R"(lfm2moe {"norm_topk_prob":false})", R"(lfm2moe {"routed_scaling_factor":1.5})",
              R"(olmoe {"norm_topk_prob":true})", HasSubstr(R"(gpt_oss {"layer_types":)"),
              R"(gpt_oss {"rope_scaling":{"truncate":true}})"));
    }
  }
}

}  // namespace
}  // namespace millrace
