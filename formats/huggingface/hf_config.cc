#include "formats/huggingface/hf_config.h"

#include <optional>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/families.h"
#include "formats/huggingface/hf_packed_quantization.h"
#include "formats/huggingface/hf_quantization.h"
#include "formats/json/json_fields.h"

namespace millrace {
namespace {

absl::StatusOr<Json> ParseObject(std::string_view json, const std::string& file) {
  absl::StatusOr<Json> parsed = ParseJson(json, JsonLimits{});
  if (!parsed.ok()) return Annotate(parsed.status(), file);
  if (!parsed->is_object()) {
    return absl::InvalidArgumentError(
        StrCat(file, ": is ", Describe(*parsed), ", must be an object"));
  }
  return parsed;
}

struct Found {
  const Family* family;
  const HfArchitecture* architecture;
  bool headless = false;  // its name is that of a decoder without its head: "Qwen3Model"
};

// Returns whether `name` is a decoder's `architecture` without its head.
bool IsHeadless(std::string_view name, std::string_view architecture) {
  constexpr std::string_view kModel = "Model";
  constexpr std::string_view kCausal = "ForCausalLM";
  return name.ends_with(kModel) && architecture.ends_with(kCausal) &&
         name.substr(0, name.size() - kModel.size()) ==
             architecture.substr(0, architecture.size() - kCausal.size());
}

absl::StatusOr<Found> FindArchitecture(const JsonFields& fields) {
  constexpr char kName[] = "architectures";
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, fields.Strings(kName));
  std::vector<std::string_view> supported;
  std::optional<Found> headless;
  for (const Family* family : Families()) {
    for (const HfArchitecture& architecture : family->hf) {
      if (names.size() == 1 && names[0] == architecture.name) return Found{family, &architecture};
      if (names.size() == 1 && IsHeadless(names[0], architecture.name)) {
        headless = Found{family, &architecture, /*headless=*/true};
      }
      supported.push_back(architecture.name);
    }
  }
  if (headless.has_value()) return *headless;
  return fields.Unsupported(kName,
                            StrCat("\"", Printable(JoinList(names)),
                                   "\" is not supported (supported: ", JoinList(supported), ")"));
}

// gpt-oss's own quantization, of its experts alone; which those are, the names of their tensors
// say.
absl::StatusOr<bool> ReadMxfp4(const JsonFields& quantization, HfConfig* config) {
  constexpr char kMethod[] = "quant_method";
  constexpr char kUnquantized[] = "modules_to_not_convert";
  if (quantization.Find(kMethod) == nullptr || *quantization.Find(kMethod) != Json("mxfp4")) {
    return false;
  }
  if (config->family->gate_order != GateOrder::kTurns) {
    return quantization.Unsupported(kMethod,
                                    StrCat("\"mxfp4\" is not supported of ", config->family->name));
  }
  config->types.experts = TensorType::kMxfp4;
  if (quantization.Find(kUnquantized) == nullptr) return true;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> modules,
                            quantization.Strings(kUnquantized));
  for (const std::string& module : modules) {
    if (module.find("experts") == module.npos) continue;
    return quantization.Unsupported(
        kUnquantized, StrCat("\"", Printable(module), "\" is not supported, experts are MXFP4"));
  }
  return true;
}

absl::Status ReadTypes(const JsonFields& fields, HfConfig* config) {
  for (const char* name : {"dtype", "torch_dtype"}) {
    if (fields.Find(name) == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(std::string_view type, fields.String(name));
    if (type == "auto") continue;  // the tensors' own
    if (constexpr std::string_view kTorch = "torch."; type.starts_with(kTorch)) {
      type.remove_prefix(kTorch.size());
    }
    if (type == "bfloat16") {
      config->types.all = TensorType::kBf16;
    } else if (type == "float16" || type == "half") {
      config->types.all = TensorType::kF16;
    } else if (type == "float32" || type == "float") {
      config->types.all = TensorType::kF32;
    } else {
      return fields.Unsupported(
          name, StrCat("\"", Printable(type),
                       "\" is not supported (supported: ", "auto, bfloat16, float16, float32)"));
    }
  }
  for (const char* name : {"quantization_config", "compression_config"}) {
    if (fields.Find(name) == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields quantization, fields.Object(name));
    MILLRACE_ASSIGN_OR_RETURN(const bool mxfp4, ReadMxfp4(quantization, config));
    if (mxfp4) continue;
    MILLRACE_ASSIGN_OR_RETURN(HfQuantization read, ReadHfQuantization(quantization));
    config->model.quantization = read.scheme;
    config->unquantized = std::move(read.unquantized);
  }
  return absl::OkStatus();
}

// Reads which first numbers of an embedding are one, too, by the fields that vLLM reads.
absl::Status ReadMatryoshka(const JsonFields& fields, ModelConfig* model) {
  constexpr char kSizes[] = "matryoshka_dimensions";
  MILLRACE_ASSIGN_OR_RETURN(const bool any, fields.BoolOr("is_matryoshka", false));
  if (any) model->matryoshka.emplace();
  if (fields.Find(kSizes) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            fields.Ints(kSizes, 1, model->hidden_size));
  model->matryoshka.emplace().sizes.assign(sizes.begin(), sizes.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfConfig> ReadHfConfig(std::string_view json, const std::string& file) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseObject(json, file));
  const JsonFields fields(parsed, file + ": ");
  MILLRACE_ASSIGN_OR_RETURN(const Found found, FindArchitecture(fields));
  HfConfig config{.family = found.family, .model = {}, .types = {}, .unquantized = {}};
  MILLRACE_ASSIGN_OR_RETURN(config.model, found.architecture->read(HfReader(fields)));
  config.model.architecture = found.family->name;
  if (found.headless) {
    config.model.pooler.emplace();
    config.model.tied_embeddings = true;
  }
  MILLRACE_RETURN_IF_ERROR(ReadMatryoshka(fields, &config.model));
  // Encoders' own readers refuse a quantization.
  if (!config.model.encoder.has_value()) {
    MILLRACE_RETURN_IF_ERROR(ReadTypes(fields, &config));
  }
  return config;
}

absl::Status ReadQuantizeConfig(std::string_view json, const std::string& file, HfConfig* config) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseObject(json, file));
  const JsonFields fields(parsed, file + ": ");
  // Most such files do not name their method, whose authors call the bits otherwise.
  MILLRACE_ASSIGN_OR_RETURN(HfQuantization read,
                            fields.Find("quant_method") != nullptr ? ReadHfQuantization(fields)
                            : fields.Find("w_bit") != nullptr      ? ReadAwq(fields)
                                                                   : ReadGptq(fields));
  config->model.quantization = read.scheme;
  config->unquantized = std::move(read.unquantized);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ReadEndTokens(std::string_view json, const std::string& file) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseObject(json, file));
  return EndTokens(JsonFields(parsed, file + ": "));
}

}  // namespace millrace
