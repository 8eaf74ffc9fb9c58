#include "formats/huggingface/hf_packed_quantization.h"

#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr int kWholeRow = -1;  // as a group size, of GPTQ and AWQ

// Reads an integer, which some tools write as a text.
absl::StatusOr<int64_t> Integer(const JsonFields& config, std::string_view name, int64_t min,
                                int64_t max) {
  if (const Json* field = config.Find(name); field != nullptr && field->is_string()) {
    const auto number = ParseNumber<int64_t>(field->get_ref<const std::string&>());
    if (number.has_value() && *number >= min && *number <= max) return *number;
  }
  return config.Int(name, min, max);
}

absl::Status CheckBits(const JsonFields& config, std::string_view name) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t bits, Integer(config, name, 1, 32));
  if (bits == 4) return absl::OkStatus();
  return config.Unsupported(name, StrCat(bits, " is not supported (supported: 4)"));
}

// A group is made of whole blocks of our own, kInt4x32 and kInt4x128.
absl::StatusOr<QuantGroup> ReadGroupSize(const JsonFields& config, std::string_view name,
                                         bool may_be_row) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t size, Integer(config, name, kWholeRow, 1 << 20));
  if (size == kWholeRow && may_be_row) return kPerChannel;
  if (size == 32 || size == 64 || (size > 0 && size % 128 == 0)) {
    return QuantGroup{1, static_cast<int>(size)};
  }
  return config.Unsupported(name, StrCat(size, " is not supported (supported: 32, 64, ",
                                         "multiples of 128", may_be_row ? ", -1)" : ")"));
}

// GPTQModel's settings of some modules, by regular expressions: "-:" leaves modules unquantized,
// which their tensors say, too.
absl::Status CheckDynamic(const JsonFields& config) {
  if (config.Find("dynamic") == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields modules, config.Object("dynamic"));
  for (const auto& [pattern, settings] : modules.object().items()) {
    if (pattern.starts_with("-:")) continue;
    return config.Unsupported("dynamic", StrCat("\"", Printable(pattern),
                                                "\" is not supported (supported: -:…, "
                                                "modules that are not quantized)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ModulesNotConverted(const JsonFields& config) {
  constexpr char kName[] = "modules_to_not_convert";
  if (config.Find(kName) == nullptr) return std::vector<std::string>();
  return config.Strings(kName);
}

}  // namespace

absl::StatusOr<HfQuantization> ReadGptq(const JsonFields& config) {
  HfQuantization read;
  QuantScheme& scheme = read.scheme;
  scheme.packing = Packing::kGptq;
  MILLRACE_RETURN_IF_ERROR(CheckBits(config, "bits"));
  MILLRACE_ASSIGN_OR_RETURN(scheme.group, ReadGroupSize(config, "group_size", true));
  MILLRACE_ASSIGN_OR_RETURN(scheme.symmetric, config.BoolOr("sym", true));
  MILLRACE_ASSIGN_OR_RETURN(scheme.reordered, config.BoolOr("desc_act", false));
  scheme.zeros_less_one = true;
  for (const char* name : {"checkpoint_format", "format"}) {
    if (config.Find(name) == nullptr) continue;
    MILLRACE_RETURN_IF_ERROR(config.Refuse(name, Json::array({"gptq", "gptq_v2"})));
    scheme.zeros_less_one = *config.String(name) == "gptq";
  }
  MILLRACE_RETURN_IF_ERROR(config.Refuse("lm_head", Json::array({false})));
  MILLRACE_RETURN_IF_ERROR(config.Refuse("is_marlin_format", Json::array({false})));
  MILLRACE_RETURN_IF_ERROR(config.Refuse("pack_dtype", Json::array({"int32"})));
  MILLRACE_RETURN_IF_ERROR(config.Refuse("adapter", Json::array()));
  MILLRACE_RETURN_IF_ERROR(config.Refuse("rotation", Json::array()));
  MILLRACE_RETURN_IF_ERROR(CheckDynamic(config));
  MILLRACE_ASSIGN_OR_RETURN(read.unquantized, ModulesNotConverted(config));
  return read;
}

absl::StatusOr<HfQuantization> ReadAwq(const JsonFields& config) {
  HfQuantization read;
  QuantScheme& scheme = read.scheme;
  scheme.packing = Packing::kAwq;
  scheme.symmetric = false;
  MILLRACE_RETURN_IF_ERROR(CheckBits(config, config.Find("bits") != nullptr ? "bits" : "w_bit"));
  const char* const size = config.Find("group_size") != nullptr ? "group_size" : "q_group_size";
  MILLRACE_ASSIGN_OR_RETURN(scheme.group, ReadGroupSize(config, size, true));
  MILLRACE_RETURN_IF_ERROR(config.Refuse("version", Json::array({"gemm", "GEMM"})));
  MILLRACE_RETURN_IF_ERROR(config.Refuse("zero_point", Json::array({true})));
  MILLRACE_ASSIGN_OR_RETURN(read.unquantized, ModulesNotConverted(config));
  return read;
}

absl::StatusOr<QuantScheme> ReadPackQuantized(const JsonFields& group) {
  QuantScheme scheme;
  scheme.packing = Packing::kPackQuantized;
  MILLRACE_RETURN_IF_ERROR(group.Refuse("input_activations", Json::array()));
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields args, group.Object("weights"));
  MILLRACE_RETURN_IF_ERROR(CheckBits(args, "num_bits"));
  MILLRACE_RETURN_IF_ERROR(args.Refuse("type", Json::array({"int"})));
  MILLRACE_RETURN_IF_ERROR(args.Refuse("dynamic", Json::array({false})));
  MILLRACE_RETURN_IF_ERROR(args.Refuse("block_structure", Json::array()));
  MILLRACE_ASSIGN_OR_RETURN(scheme.symmetric, args.BoolOr("symmetric", true));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view strategy, args.String("strategy"));
  if (strategy == "group") {
    MILLRACE_ASSIGN_OR_RETURN(scheme.group, ReadGroupSize(args, "group_size", false));
  } else if (strategy == "channel") {
    scheme.group = kPerChannel;
  } else {
    return args.Unsupported("strategy", StrCat("\"", Printable(strategy),
                                               "\" is not supported (supported: group, channel)"));
  }
  // "weight" and "static" reorder while quantizing only; "group" and "dynamic" leave the groups
  // reordered.
  if (args.Find("actorder") != nullptr) {
    MILLRACE_RETURN_IF_ERROR(
        args.Refuse("actorder", Json::array({"weight", "static", "group", "dynamic", false})));
    const Json& order = *args.Find("actorder");
    scheme.reordered = order == "group" || order == "dynamic";
  }
  return scheme;
}

}  // namespace millrace
