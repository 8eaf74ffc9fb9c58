#include "formats/huggingface/hf_quantization.h"

#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/huggingface/hf_packed_quantization.h"

namespace millrace {
namespace {

const Json& BlockShape() {
  static const Json* const shape = new Json(Json::array({kFp8Block, kFp8Block}));
  return *shape;
}

absl::StatusOr<HfQuantization> ReadFp8(const JsonFields& config) {
  HfQuantization read;
  MILLRACE_RETURN_IF_ERROR(config.Refuse("fmt", Json::array({"e4m3", "float8_e4m3fn"})));
  // Scales rounded to powers of two.
  MILLRACE_RETURN_IF_ERROR(config.Refuse("scale_fmt", Json::array({"float"})));
  // Scales of keys and values that were measured: they are tensors.
  MILLRACE_RETURN_IF_ERROR(config.Refuse("kv_cache_scheme", Json::array({"static"})));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view activations, config.String("activation_scheme"));
  if (activations != "static" && activations != "dynamic") {
    return config.Unsupported(
        "activation_scheme",
        StrCat("\"", Printable(activations), "\" is not supported (supported: static, dynamic)"));
  }
  if (activations == "static") read.scheme.activations = ActivationScaling::kStatic;
  if (config.Find("weight_block_size") != nullptr) {
    MILLRACE_RETURN_IF_ERROR(config.Refuse("weight_block_size", Json::array({BlockShape()})));
    if (read.scheme.static_activations()) {
      return config.Unsupported("activation_scheme", "must be dynamic with weight_block_size");
    }
    read.scheme.group = kFp8Blocks;
  }
  for (const char* name : {"modules_to_not_convert", "ignored_layers"}) {
    if (config.Find(name) == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(read.unquantized, config.Strings(name));
  }
  return read;
}

// FBGEMM's: a scale for each row of a weight and each token. `activation_scale_ub` bounds a token's
// scale: inputs are not cut off there, which rounds them no further.
absl::StatusOr<HfQuantization> ReadFbgemm(const JsonFields& config) {
  HfQuantization read;
  read.scheme.group = kPerChannel;
  if (config.Find("modules_to_not_convert") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(read.unquantized, config.Strings("modules_to_not_convert"));
  }
  return read;
}

// Checks the fields that every FP8 tensor of compressed-tensors shares.
absl::Status CheckFp8Numbers(const JsonFields& args) {
  MILLRACE_RETURN_IF_ERROR(args.Refuse("num_bits", Json::array({8})));
  MILLRACE_RETURN_IF_ERROR(args.Refuse("type", Json::array({"float"})));
  MILLRACE_RETURN_IF_ERROR(args.Refuse("symmetric", Json::array({true})));
  return args.Refuse("actorder", Json::array());
}

absl::StatusOr<QuantGroup> ReadGroup(const JsonFields& args) {
  MILLRACE_RETURN_IF_ERROR(CheckFp8Numbers(args));
  MILLRACE_RETURN_IF_ERROR(args.Refuse("dynamic", Json::array({false})));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view strategy, args.String("strategy"));
  if (strategy == "tensor") return kPerTensor;
  if (strategy == "channel") return kPerChannel;
  if (strategy == "block") {
    MILLRACE_RETURN_IF_ERROR(args.Refuse("block_structure", Json::array({BlockShape()})));
    return kFp8Blocks;
  }
  return args.Unsupported("strategy", StrCat("\"", Printable(strategy),
                                             "\" is not supported (supported: tensor, channel, "
                                             "block)"));
}

absl::StatusOr<ActivationScaling> ReadActivations(const JsonFields& args, const QuantGroup& group) {
  MILLRACE_RETURN_IF_ERROR(CheckFp8Numbers(args));
  MILLRACE_ASSIGN_OR_RETURN(const bool dynamic, args.BoolOr("dynamic", false));
  const bool blocks = group == kFp8Blocks;
  if (blocks) {
    MILLRACE_RETURN_IF_ERROR(args.Refuse("group_size", Json::array({kFp8Block})));
    if (!dynamic) return args.Unsupported("dynamic", "must be true with blocks of weights");
  }
  const char* const strategy = blocks ? "group" : dynamic ? "token" : "tensor";
  MILLRACE_RETURN_IF_ERROR(args.String("strategy").status());
  MILLRACE_RETURN_IF_ERROR(args.Refuse("strategy", Json::array({strategy})));
  return dynamic ? ActivationScaling::kDynamic : ActivationScaling::kStatic;
}

absl::Status CheckKvCacheScheme(const JsonFields& config) {
  if (config.Find("kv_cache_scheme") == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields args, config.Object("kv_cache_scheme"));
  MILLRACE_RETURN_IF_ERROR(CheckFp8Numbers(args));
  MILLRACE_RETURN_IF_ERROR(args.Refuse("dynamic", Json::array({false})));
  return args.Refuse("strategy", Json::array({"tensor"}));
}

absl::StatusOr<QuantScheme> ReadFloatQuantized(const JsonFields& group) {
  QuantScheme scheme;
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields weights, group.Object("weights"));
  MILLRACE_ASSIGN_OR_RETURN(scheme.group, ReadGroup(weights));
  if (group.Find("input_activations") == nullptr) {
    return group.Unsupported("input_activations",
                             "FP8 weights with unquantized inputs are not "
                             "supported");
  }
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields inputs, group.Object("input_activations"));
  MILLRACE_ASSIGN_OR_RETURN(scheme.activations, ReadActivations(inputs, scheme.group));
  return scheme;
}

absl::StatusOr<HfQuantization> ReadCompressedTensors(const JsonFields& config) {
  constexpr char kPacked[] = "pack-quantized";
  const Json* const format = config.Find("format");
  const bool packed = format != nullptr && *format == kPacked;
  const Json formats =
      packed ? Json::array({kPacked}) : Json::array({"float-quantized", "naive-quantized"});
  if (!packed) {
    MILLRACE_RETURN_IF_ERROR(
        config.Refuse("format", Json::array({"float-quantized", "naive-quantized", kPacked})));
  }
  MILLRACE_RETURN_IF_ERROR(config.Refuse("transform_config", Json::array({Json::object()})));
  if (config.Find("sparsity_config") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields sparsity, config.Object("sparsity_config"));
    MILLRACE_RETURN_IF_ERROR(sparsity.Refuse("format", Json::array({"dense"})));
  }
  MILLRACE_RETURN_IF_ERROR(CheckKvCacheScheme(config));

  MILLRACE_ASSIGN_OR_RETURN(const JsonFields groups, config.Object("config_groups"));
  if (groups.object().size() != 1) {
    return config.Unsupported("config_groups",
                              StrCat(groups.object().size(), " groups, only one is supported"));
  }
  const std::string name = groups.object().begin().key();
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields group, groups.Object(name));
  MILLRACE_RETURN_IF_ERROR(group.Refuse("targets", Json::array({Json::array({"Linear"})})));
  MILLRACE_RETURN_IF_ERROR(group.Refuse("output_activations", Json::array()));
  MILLRACE_RETURN_IF_ERROR(group.Refuse("format", formats));
  HfQuantization read;
  MILLRACE_ASSIGN_OR_RETURN(read.scheme,
                            packed ? ReadPackQuantized(group) : ReadFloatQuantized(group));
  if (config.Find("ignore") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(read.unquantized, config.Strings("ignore"));
  }
  return read;
}

// NVIDIA's Model Optimizer: its FP8 has a scale for each weight and each linear's inputs.
absl::StatusOr<HfQuantization> ReadModelOptimizer(const JsonFields& config) {
  MILLRACE_RETURN_IF_ERROR(config.String("quant_algo").status());
  MILLRACE_RETURN_IF_ERROR(config.Refuse("quant_algo", Json::array({"FP8"})));
  MILLRACE_RETURN_IF_ERROR(CheckKvCacheScheme(config));
  HfQuantization read;
  read.scheme.activations = ActivationScaling::kStatic;
  for (const char* name : {"exclude_modules", "ignore"}) {
    if (config.Find(name) == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(read.unquantized, config.Strings(name));
  }
  return read;
}

}  // namespace

absl::StatusOr<HfQuantization> ReadHfQuantization(const JsonFields& config) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view method, config.String("quant_method"));
  if (method == "fp8") return ReadFp8(config);
  if (method == "fbgemm_fp8") return ReadFbgemm(config);
  if (method == "modelopt") return ReadModelOptimizer(config);
  if (method == "compressed-tensors") return ReadCompressedTensors(config);
  if (method == "gptq") return ReadGptq(config);
  if (method == "awq") return ReadAwq(config);
  return config.Unsupported(
      "quant_method",
      StrCat("\"", Printable(method),
             "\" is not supported (supported: awq, compressed-tensors, fbgemm_fp8, fp8, gptq, "
             "modelopt)"));
}

}  // namespace millrace
