#include "executors/models/model.h"

#include "base/strings.h"
#include "executors/models/gemma.h"
#include "executors/models/llama.h"
#include "executors/models/olmo2.h"

namespace millrace {
namespace {

struct Family {
  std::string_view architecture;
  absl::StatusOr<std::unique_ptr<Model>> (*load)(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer);
};
constexpr Family kFamilies[] = {
    {"llama", LoadLlama},  {"qwen2", LoadLlama},   {"qwen3", LoadLlama},
    {"phi3", LoadLlama},   {"granite", LoadLlama}, {"smollm3", LoadLlama},
    {"gemma2", LoadGemma}, {"gemma3", LoadGemma},  {"olmo2", LoadOlmo2},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer) {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) {
    if (family.architecture == config.architecture) {
      return family.load(config, max_model_len, placer);
    }
    names.push_back(family.architecture);
  }
  return absl::UnimplementedError(
      StrCat("the model's architecture is ", config.architecture, ", allowed: ", JoinList(names)));
}

}  // namespace millrace
