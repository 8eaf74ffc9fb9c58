#include "executors/models/model.h"

#include "base/strings.h"
#include "executors/models/decoder.h"

namespace millrace {
namespace {

struct Family {
  std::string_view architecture;
  DecoderShape shape;
};
constexpr DecoderShape kLlama;
constexpr DecoderShape kOlmo2{.norms_before = false, .norms_after = true};
constexpr DecoderShape kGemma{.norms_after = true, .gate = GateFunction::kGeluTanh};
constexpr Family kFamilies[] = {
    {"llama", kLlama},  {"qwen2", kLlama},   {"qwen3", kLlama},
    {"phi3", kLlama},   {"granite", kLlama}, {"smollm3", kLlama},
    {"gemma2", kGemma}, {"gemma3", kGemma},  {"olmo2", kOlmo2},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer) {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) {
    if (family.architecture == config.architecture) {
      return LoadDecoder(family.shape, config, max_model_len, placer);
    }
    names.push_back(family.architecture);
  }
  return absl::UnimplementedError(
      StrCat("the model's architecture is ", config.architecture, ", allowed: ", JoinList(names)));
}

}  // namespace millrace
