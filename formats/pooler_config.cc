#include "formats/pooler_config.h"

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/strings.h"
#include "formats/huggingface/encoder_config.h"

namespace millrace {
namespace {

// llama.cpp's numbers of <architecture>.pooling_type; 2 is the first token's, 4 ranks pairs.
constexpr int64_t kNoPooling = 0;
constexpr int64_t kMeanPooling = 1;
constexpr int64_t kLastPooling = 3;

absl::Status RefuseGenerate(const ModelConfig& config, std::string_view what) {
  return absl::InvalidArgumentError(StrCat("runner is generate, but the model, ",
                                           config.architecture, ", ", what,
                                           "; allowed: auto, pooling"));
}

absl::Status CheckEncoder(ModelRunner runner, const ModelConfig& config) {
  if (runner != ModelRunner::kGenerate) return absl::OkStatus();
  return RefuseGenerate(config, "is an encoder");
}

void SetPooler(Pooling pooling, ModelConfig* config) {
  config->pooler = PoolerConfig{.pooling = pooling, .normalize = true};
  config->tied_embeddings = true;
}

}  // namespace

absl::Status ChoosePooler(const std::filesystem::path& folder, ModelRunner runner,
                          ModelConfig* config) {
  if (config->encoder.has_value()) return CheckEncoder(runner, *config);
  const bool headless = config->pooler.has_value();
  if (runner == ModelRunner::kGenerate) {
    return headless ? RefuseGenerate(*config, "has no head") : absl::OkStatus();
  }
  bool pools = headless || runner == ModelRunner::kPooling;
  if (!pools) {
    MILLRACE_ASSIGN_OR_RETURN(pools, HasPoolingModule(folder));
  }
  if (pools) SetPooler(Pooling::kLast, config);
  return absl::OkStatus();
}

absl::Status ChoosePooler(const GgufFile& file, ModelRunner runner, ModelConfig* config) {
  if (config->encoder.has_value()) return CheckEncoder(runner, *config);
  if (runner == ModelRunner::kGenerate) return absl::OkStatus();
  const std::string key = config->architecture + ".pooling_type";
  int64_t type = kNoPooling;
  if (file.Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(type, file.Int(key, 0, 1 << 16));
  }
  if (type == kNoPooling && runner == ModelRunner::kAuto) return absl::OkStatus();
  if (type != kNoPooling && type != kMeanPooling && type != kLastPooling) {
    return absl::UnimplementedError(
        StrCat(file.base_name(), ": key ", key, ": ", type,
               " is not supported (supported: 1, the mean, and 3, the last token's; --runner "
               "generate serves the model for text)"));
  }
  SetPooler(type == kMeanPooling ? Pooling::kMean : Pooling::kLast, config);
  return absl::OkStatus();
}

}  // namespace millrace
