#include "formats/open_model.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/model_tensors.h"
#include "formats/files/folder_file.h"
#include "formats/files/other_files.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf_model.h"
#include "formats/huggingface/encoder_config.h"
#include "formats/huggingface/hf_config.h"
#include "formats/huggingface/packed_tensors.h"
#include "formats/huggingface/safetensors.h"
#include "formats/pooler_config.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kConfig[] = "config.json";
constexpr char kGenerationConfig[] = "generation_config.json";  // may be missing
constexpr size_t kMaxConfigBytes = 1 << 20;
// Early versions of AutoGPTQ and AutoAWQ wrote these.
constexpr const char* kQuantizeConfigs[] = {"quantize_config.json", "quant_config.json"};

absl::StatusOr<HfConfig> ReadConfig(const fs::path& folder, ModelRunner runner) {
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile file,
                            OpenFolderFile(folder, kConfig, kMaxConfigBytes));
  MILLRACE_ASSIGN_OR_RETURN(HfConfig config, ReadHfConfig(file.text(), kConfig));
  MILLRACE_RETURN_IF_ERROR(ChoosePooler(folder, runner, &config.model));
  if (config.model.encoder.has_value() || config.model.pooler.has_value()) {
    MILLRACE_RETURN_IF_ERROR(ReadSentenceTransformer(folder, &config.model));
    return config;
  }
  for (const char* name : kQuantizeConfigs) {
    const bool known = config.model.quantization.has_value() || config.types.experts.has_value();
    if (known || !HasFolderFile(folder, name)) continue;
    MILLRACE_ASSIGN_OR_RETURN(const MappedFile file, OpenFolderFile(folder, name, kMaxConfigBytes));
    MILLRACE_RETURN_IF_ERROR(ReadQuantizeConfig(file.text(), name, &config));
  }
  if (!HasFolderFile(folder, kGenerationConfig)) return config;
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile generation,
                            OpenFolderFile(folder, kGenerationConfig, kMaxConfigBytes));
  MILLRACE_ASSIGN_OR_RETURN(std::vector<int32_t> ends,
                            ReadEndTokens(generation.text(), kGenerationConfig));
  if (!ends.empty()) config.model.end_tokens = std::move(ends);
  return config;
}

bool HasSafetensors(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return true;
  }
  return false;
}

// Returns whether a module is the head, a norm or a router: of a config without tensors, these are
// not quantized.
bool IsNoLinear(std::string_view module) {
  if (module.find("lm_head") != module.npos) return true;
  for (const char* end : {"norm", ".gate", ".router", ".shared_expert_gate"}) {
    if (module.ends_with(end)) return true;
  }
  return false;
}

// Returns whether the files of a model whose config ties head and embedding have a head of other
// values, which it was trained with: transformers does not tie them then, either.
bool HasOtherHead(const ModelConfig& config, const TensorSource& tensors) {
  const TensorInfo* head = tensors.FindTensor("output.weight");
  const TensorInfo* embedding = tensors.FindTensor("token_embd.weight");
  if (!config.tied_embeddings || config.pooler.has_value() || head == nullptr ||
      embedding == nullptr || head == embedding) {
    return false;
  }
  if (head->type != embedding->type || head->shape != embedding->shape) return true;
  const absl::Span<const uint8_t> a = tensors.Data(*head), b = tensors.Data(*embedding);
  const bool same = std::equal(a.begin(), a.end(), b.begin(), b.end());
  tensors.DropPages(*head);
  return !same;
}

absl::StatusOr<OpenedModel> OpenFolder(const fs::path& folder, const std::string& base_name,
                                       ModelRunner runner) {
  MILLRACE_RETURN_IF_ERROR(CheckFolderIsModel(folder));
  MILLRACE_ASSIGN_OR_RETURN(HfConfig config, ReadConfig(folder, runner));
  if (HasSafetensors(folder)) {
    MILLRACE_ASSIGN_OR_RETURN(
        std::unique_ptr<SafetensorsFolder> files,
        SafetensorsFolder::Open(folder, base_name, *config.family, config.model.tied_embeddings));
    if (config.model.encoder.has_value()) {
      const std::vector<DenseLayer>& dense = config.model.encoder->dense;
      for (size_t i = 0; i < dense.size(); ++i) {
        MILLRACE_RETURN_IF_ERROR(files->AddModule(folder, dense[i].folder, StrCat("dense.", i)));
      }
    }
    std::unique_ptr<const TensorSource> tensors = std::move(files);
    if (HasOtherHead(config.model, *tensors)) config.model.tied_embeddings = false;
    if (config.model.quantization.has_value() && config.model.quantization->packed()) {
      MILLRACE_ASSIGN_OR_RETURN(
          tensors, PresentPackedWeights(config.model, *config.family, std::move(tensors)));
    }
    MILLRACE_RETURN_IF_ERROR(ValidateTensors(config.model, *config.family, *tensors));
    return OpenedModel{std::move(config.model), std::move(tensors)};
  }
  MILLRACE_RETURN_IF_ERROR(CheckNoOtherWeights(folder));
  // Which modules those are, only their tensors would say.
  for (const std::string& module : config.unquantized) {
    if (IsNoLinear(module)) continue;
    return absl::UnimplementedError(StrCat(kConfig, ": quantization_config leaves ",
                                           Printable(module),
                                           " unquantized, which is supported only with the "
                                           "model's tensors beside it"));
  }
  auto shapes = MakeTensorShapes(config.model, *config.family, config.types, base_name);
  return OpenedModel{std::move(config.model), std::move(shapes)};
}

absl::StatusOr<OpenedModel> OpenGguf(const std::string& path, ModelRunner runner) {
  MILLRACE_ASSIGN_OR_RETURN(GgufFile file, OpenGgufModel(path));
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(file));
  MILLRACE_RETURN_IF_ERROR(ChoosePooler(file, runner, &config));
  return OpenedModel{std::move(config), std::make_unique<GgufFile>(std::move(file))};
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(const std::string& path, ModelRunner runner) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return OpenGguf(path, runner);
  const fs::path folder = fs::path(path).lexically_normal();
  const fs::path name = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  return OpenFolder(folder, name, runner);
}

}  // namespace millrace
