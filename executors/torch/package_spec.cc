#include "executors/torch/package_spec.h"

#include <ATen/cpu/Utils.h>

#include <set>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/json/json_fields.h"

namespace millrace::aten {
namespace {

constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;  // of a dimension
constexpr int64_t kMaxBytes = int64_t{1} << 62;       // of a tensor

absl::StatusOr<Dimension> ReadDimension(const Json& json, const std::string& where) {
  if (json.is_number_unsigned() && json.get<uint64_t>() <= kMaxSize) {
    const auto size = json.get<int64_t>();
    return Dimension{.min = size, .max = size};
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError(StrCat(where, " is ", Describe(json),
                                             ", must be a size up to ", kMaxSize, " or an object"));
  }
  const JsonFields fields(json, where + ".");
  Dimension dimension;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, fields.String("name"));
  if (name.empty()) return fields.Bad("name", "is empty");
  dimension.name = name;
  MILLRACE_ASSIGN_OR_RETURN(dimension.min, fields.Int("min", 0, kMaxSize));
  MILLRACE_ASSIGN_OR_RETURN(dimension.max, fields.Int("max", dimension.min, kMaxSize));
  return dimension;
}

absl::StatusOr<TensorSpec> ReadTensor(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(StrCat(where, " is ", Describe(json), ", must be an object"));
  }
  const JsonFields fields(json, where + ".");
  TensorSpec spec;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, fields.String("name"));
  if (name.empty()) return fields.Bad("name", "is empty");
  spec.name = name;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view datatype, fields.String("datatype"));
  const std::optional<DataType> type = FindDataType(datatype);
  if (!type.has_value()) {
    return fields.Bad("datatype",
                      StrCat("is \"", Printable(datatype), "\", must be one of ", DataTypeNames()));
  }
  spec.type = *type;
  const Json* const shape = fields.Find("shape");
  if (shape == nullptr || !shape->is_array()) return fields.Bad("shape", "must be a list");
  int64_t most = DataTypeBytes(spec.type);
  for (size_t i = 0; i < shape->size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(Dimension dimension,
                              ReadDimension((*shape)[i], StrCat(where, ".shape[", i, "]")));
    if (__builtin_mul_overflow(most, std::max<int64_t>(dimension.max, 1), &most) ||
        most > kMaxBytes) {
      return fields.Bad("shape", "is too large");
    }
    spec.shape.push_back(std::move(dimension));
  }
  if (fields.Find("values") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> range,
                              fields.Ints("values", INT64_MIN, INT64_MAX));
    if (range.size() != 2) return fields.Bad("values", "must be the least and the most");
    spec.values = ValueRange{range[0], range[1]};
  }
  return spec;
}

absl::StatusOr<std::vector<TensorSpec>> ReadTensors(const JsonFields& fields,
                                                    const std::string& list) {
  const Json* const tensors = fields.Find(list);
  if (tensors == nullptr || !tensors->is_array() || tensors->empty()) {
    return fields.Bad(list, "must be a list that is not empty");
  }
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (size_t i = 0; i < tensors->size(); ++i) {
    const std::string where = StrCat(list, "[", i, "]");
    MILLRACE_ASSIGN_OR_RETURN(TensorSpec spec, ReadTensor((*tensors)[i], where));
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          StrCat(where, ".name: \"", Printable(spec.name), "\" stands there twice"));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<ModelConfig> ReadCausalLm(const JsonFields& fields) {
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields lm, fields.Object("causal_lm"));
  ModelConfig config;
  SoftmaxAttention attention;
  int32_t layers = 0;
  const std::tuple<const char*, int32_t*, int64_t> sizes[] = {
      {"layers", &layers, 4096},
      {"kv_heads", &attention.kv_heads, 4096},
      {"head_size", &attention.head_size, 4096},
      {"vocab_size", &config.vocab_size, 1 << 24},
      {"context_length", &config.context_length, 1 << 24}};
  for (const auto& [name, size, most] : sizes) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t value, lm.Int(name, 1, most));
    *size = static_cast<int32_t>(value);
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ends,
                            lm.Ints("end_tokens", 0, config.vocab_size - 1));
  config.end_tokens.assign(ends.begin(), ends.end());
  config.layers.assign(layers, {.attention = attention, .feed_forward = {}});
  return config;
}

// `name`: as AOTInductor's list of instruction sets spells it (torch/_inductor/cpu_vec_isa.py).
bool HasInstructionSet(std::string_view name) {
#if defined(__x86_64__)
  if (name == "AVX2") {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
  if (name == "AVX512") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  }
  if (name == "AVX512_VNNI") return __builtin_cpu_supports("avx512vnni");
  if (name == "AVX512_BF16") return __builtin_cpu_supports("avx512bf16");
#endif
  // Processes have tiles only once they have asked the system for them.
  if (name == "AMX_TILE") return at::cpu::init_amx();
  return false;
}

}  // namespace

absl::StatusOr<PackageSpec> ReadPackageSpec(std::string_view json) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseJson(json, JsonLimits{}));
  if (!parsed.is_object()) return absl::InvalidArgumentError("is no object");
  const JsonFields fields(parsed, "");
  MILLRACE_RETURN_IF_ERROR(fields.Int("version", 1, 1).status());
  PackageSpec spec;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view torch, fields.String("torch"));
  spec.torch = torch;
  if (fields.Find("causal_lm") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(spec.causal_lm, ReadCausalLm(fields));
    return spec;
  }
  MILLRACE_ASSIGN_OR_RETURN(spec.inputs, ReadTensors(fields, "inputs"));
  MILLRACE_ASSIGN_OR_RETURN(spec.outputs, ReadTensors(fields, "outputs"));
  return spec;
}

absl::Status CheckInstructionSets(std::string_view names) {
  for (const std::string_view name : SplitList(names, ' ')) {
    if (HasInstructionSet(name)) continue;
    return absl::UnimplementedError(StrCat("was compiled for ", Printable(name),
                                           ", which this processor is not known to have; make it "
                                           "on a machine like this one"));
  }
  return absl::OkStatus();
}

}  // namespace millrace::aten
