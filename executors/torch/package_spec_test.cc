#include "executors/torch/package_spec.h"

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "base/strings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::aten {
namespace {

using ::testing::HasSubstr;

std::string Spec(std::string_view inputs) {
  return StrCat(R"({"version": 1, "torch": "2.11.0", "inputs": )", inputs,
                R"(, "outputs": [{"name": "y", "datatype": "FP32", "shape": []}]})");
}

std::string Error(std::string_view json) {
  const absl::StatusOr<PackageSpec> spec = ReadPackageSpec(json);
  EXPECT_FALSE(spec.ok()) << json;
  return std::string(spec.status().message());
}

TEST(PackageSpecTest, InputsHaveTypesShapesAndValues) {
  const absl::StatusOr<PackageSpec> spec =
      ReadPackageSpec(Spec(R"([{"name": "ids", "datatype": "INT32", "values": [-1, 9],
                "shape": [{"name": "batch", "min": 1, "max": 64}, 7]}])"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->torch, "2.11.0");
  ASSERT_EQ(spec->inputs.size(), 1u);
  const TensorSpec& ids = spec->inputs[0];
  EXPECT_EQ(ids.name, "ids");
  EXPECT_EQ(ids.type, DataType::kInt32);
  ASSERT_TRUE(ids.values.has_value());
  EXPECT_EQ(ids.values->min, -1);
  EXPECT_EQ(ids.values->max, 9);
  ASSERT_EQ(ids.shape.size(), 2u);
  EXPECT_EQ(ids.shape[0].name, "batch");
  EXPECT_EQ(ids.shape[0].min, 1);
  EXPECT_EQ(ids.shape[0].max, 64);
  EXPECT_EQ(ids.shape[1].name, "");
  EXPECT_EQ(ids.shape[1].min, 7);
  EXPECT_EQ(ids.shape[1].max, 7);
  ASSERT_EQ(spec->outputs.size(), 1u);
  EXPECT_TRUE(spec->outputs[0].shape.empty());
}

TEST(PackageSpecTest, DamageIsNamed) {
  EXPECT_THAT(Error("{"), HasSubstr("parse error"));
  EXPECT_EQ(Error("[]"), "is no object");
  EXPECT_EQ(Error(R"({"version": 2})"), "version: is 2, must be an integer from 1 to 1");
  EXPECT_EQ(Error(Spec("[]")), "inputs: must be a list that is not empty");
  EXPECT_EQ(Error(Spec("[3]")), "inputs[0] is 3, must be an object");
  EXPECT_THAT(Error(Spec(R"([{"name": "x", "datatype": "BYTES", "shape": []}])")),
              HasSubstr("inputs[0].datatype: is \"BYTES\", must be one of BOOL, UINT8"));
  EXPECT_EQ(Error(Spec(R"([{"name": "x", "datatype": "FP32"}])")),
            "inputs[0].shape: must be a list");
  EXPECT_THAT(Error(Spec(R"([{"name": "x", "datatype": "FP32", "shape": [-1]}])")),
              HasSubstr("inputs[0].shape[0] is -1"));
  EXPECT_THAT(Error(Spec(R"([{"name": "x", "datatype": "FP32",
                              "shape": [{"name": "n", "min": 4, "max": 3}]}])")),
              HasSubstr("inputs[0].shape[0].max: is 3"));
  EXPECT_EQ(Error(Spec(R"([{"name": "x", "datatype": "FP32",
                            "shape": [2000000000, 2000000000, 2]}])")),
            "inputs[0].shape: is too large");
  EXPECT_EQ(Error(Spec(R"([{"name": "x", "datatype": "INT8", "shape": [1], "values": [1]}])")),
            "inputs[0].values: must be the least and the most");
  EXPECT_EQ(Error(Spec(R"([{"name": "x", "datatype": "INT8", "shape": [1]},
                           {"name": "x", "datatype": "INT8", "shape": [1]}])")),
            "inputs[1].name: \"x\" stands there twice");
}

std::string LanguageModel(std::string_view layers) {
  return StrCat(R"({"version": 1, "torch": "2.11.0", "causal_lm": {"layers": )", layers,
                R"(, "kv_heads": 2, "head_size": 16, "vocab_size": 300, "context_length": 256,
                "end_tokens": [2, 299]}})");
}

TEST(PackageSpecTest, ALanguageModelSaysWhatItsCacheIsMadeOf) {
  const absl::StatusOr<PackageSpec> spec = ReadPackageSpec(LanguageModel("3"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->causal_lm.has_value());
  ASSERT_EQ(spec->causal_lm->num_layers(), 3);
  for (const LayerConfig& layer : spec->causal_lm->layers) {
    EXPECT_EQ(layer.softmax().kv_heads, 2);
    EXPECT_EQ(layer.softmax().head_size, 16);
  }
  EXPECT_EQ(spec->causal_lm->vocab_size, 300);
  EXPECT_EQ(spec->causal_lm->context_length, 256);
  EXPECT_EQ(spec->causal_lm->end_tokens, (std::vector<int32_t>{2, 299}));
  EXPECT_EQ(Error(LanguageModel("0")), "causal_lm.layers: is 0, must be an integer from 1 to 4096");
}

// Returns what Linux says that the processor has.
std::set<std::string> Flags() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

TEST(PackageSpecTest, AProcessorMustHaveWhatAPackageWasCompiledFor) {
  EXPECT_TRUE(CheckInstructionSets("").ok());
  EXPECT_EQ(CheckInstructionSets("AVX2").ok(),
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(CheckInstructionSets("AMX_TILE").ok(), Flags().contains("amx_tile"));
  EXPECT_EQ(CheckInstructionSets("SVE").code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(CheckInstructionSets("SVE").message()), HasSubstr("compiled for SVE"));
}

}  // namespace
}  // namespace millrace::aten
