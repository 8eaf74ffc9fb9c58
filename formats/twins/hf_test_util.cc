#include "formats/twins/hf_test_util.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/strings.h"
#include "formats/families/families.h"
#include "formats/families/hf_names.h"
#include "formats/gguf/gguf.h"
#include "formats/huggingface/safetensors.h"
#include "formats/tensors/float16.h"

namespace millrace {
namespace {

struct Part {
  std::string name;  // Hugging Face's
  TensorType type;
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::vector<StoredTensor> stored = {};  // if any, instead of all that
};

// GGUF stores Llama's q and k with the two elements that turn together as neighbours, transformers
// with them half a head apart.
std::vector<float> HalvesFromPairs(const std::vector<float>& rows, int64_t row, int64_t head_size) {
  std::vector<float> halves(rows.size());
  for (size_t i = 0; i < rows.size() / row; ++i) {
    const size_t head = i / head_size * head_size;
    const size_t in_head = i % head_size;
    const size_t to = head + in_head % 2 * (head_size / 2) + in_head / 2;
    std::copy_n(&rows[i * row], row, &halves[to * row]);
  }
  return halves;
}

// The scales of a linear's weight, which is divided by them.
Part Quantize(const QuantScheme& scheme, Part* weight) {
  const int64_t rows = weight->shape[0];
  const int64_t columns = weight->shape[1];
  const int64_t height = scheme.group.rows > 0 ? scheme.group.rows : rows;
  const int64_t width = scheme.group.columns > 0 ? scheme.group.columns : columns;
  Part scales{.name = weight->name + "_scale",
              .type = TensorType::kF32,
              .shape = {scheme.group.Down(rows), scheme.group.Across(columns)},
              .values = {}};
  scales.values.resize(scales.shape[0] * scales.shape[1]);
  const auto scale = [&](int64_t row, int64_t column) -> float& {
    return scales.values[row / height * scales.shape[1] + column / width];
  };
  for (int64_t i = 0; i < rows * columns; ++i) {
    float& largest = scale(i / columns, i % columns);
    largest = std::max(largest, std::fabs(weight->values[i]) / 448);
  }
  for (int64_t i = 0; i < rows * columns; ++i) weight->values[i] /= scale(i / columns, i % columns);
  if (scheme.group == kPerTensor) scales.shape = {1};
  weight->type = scheme.type;
  return scales;
}

// `path`: of a GGUF file to write on the way.
std::vector<Part> Parts(const TinyLlama& model, const HfForm& form, const std::string& path) {
  TinyLlamaWriter(model).Write(path);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  std::remove(path.c_str());
  if (!file.ok()) std::abort();
  std::vector<Part> parts;
  for (const TensorInfo& tensor : file->tensors()) {
    if (tensor.name == "rope_freqs.weight") continue;
    Part part{.name = HfNames(tensor.name, *FindFamily(model.architecture))[0],
              .type = form.type,
              .shape = tensor.shape,
              .values = DecodeTensor(tensor.type, file->Data(tensor))};
    if (model.architecture == "llama" &&
        (tensor.name.ends_with("attn_q.weight") || tensor.name.ends_with("attn_k.weight"))) {
      part.values = HalvesFromPairs(part.values, tensor.shape[1], model.HeadSize());
    }
    const bool linear = tensor.name.starts_with("blk.") && tensor.shape.size() == 2;
    if (form.quantization.has_value() && form.quantization->packed() && linear) {
      const std::string module = part.name.substr(0, part.name.size() - 7);  // ".weight"
      PackedLinear packed = PackLinear(*form.quantization, form.scale_type, module, part.shape[0],
                                       part.shape[1], part.values, static_cast<int>(parts.size()));
      part.type = TensorType::kF32;
      part.values = packed.values;
      if (!form.dequantized) part.stored = packed.tensors;
      if (form.change) form.change(part.stored);
    } else if (form.quantization.has_value() && linear) {
      Part scales = Quantize(*form.quantization, &part);
      if (!form.compressed_tensors && form.quantization->group == kFp8Blocks) {
        scales.name += "_inv";
      }
      parts.push_back(std::move(scales));
      if (form.quantization->static_activations()) {
        const std::string module = part.name.substr(0, part.name.size() - 7);  // ".weight"
        parts.push_back({module + ".input_scale", TensorType::kF32, {1}, {1.0f / 64}});
      }
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

Json Quantization(const HfForm& form) {
  if (form.quantization->packed()) return PackedConfig(*form.quantization);
  const bool blocks = form.quantization->group == kFp8Blocks;
  const bool is_static = form.quantization->static_activations();
  if (!form.compressed_tensors) {
    Json config = {{"quant_method", "fp8"},
                   {"activation_scheme", is_static ? "static" : "dynamic"}};
    if (blocks) config["weight_block_size"] = {kFp8Block, kFp8Block};
    return config;
  }
  const Json fp8 = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}};
  Json weights = fp8;
  weights["dynamic"] = false;
  weights["strategy"] = blocks                                    ? "block"
                        : form.quantization->group == kPerChannel ? "channel"
                                                                  : "tensor";
  if (blocks) weights["block_structure"] = {kFp8Block, kFp8Block};
  Json inputs = fp8;
  inputs["dynamic"] = !is_static;
  inputs["strategy"] = blocks ? "group" : is_static ? "tensor" : "token";
  if (blocks) inputs["group_size"] = kFp8Block;
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"ignore", Json::array({"lm_head"})},
          {"kv_cache_scheme", nullptr},
          {"config_groups",
           {{"group_0",
             {{"targets", Json::array({"Linear"})},
              {"weights", weights},
              {"input_activations", inputs},
              {"output_activations", nullptr}}}}}};
}

Json Config(const TinyLlama& model, const HfForm& form) {
  const bool qwen3 = model.architecture == "qwen3";
  Json config = {{"architectures", Json::array({qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM"})},
                 {"model_type", model.architecture},
                 {"hidden_size", model.hidden},
                 {"intermediate_size", model.ffn},
                 {"num_hidden_layers", model.layers},
                 {"num_attention_heads", model.heads},
                 {"num_key_value_heads", model.kv_heads},
                 {"head_dim", model.HeadSize()},
                 {"vocab_size", model.vocab},
                 {"max_position_embeddings", model.context},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", model.rope_base},
                 {"rope_scaling", nullptr},
                 {"sliding_window", nullptr},
                 {"use_sliding_window", false},
                 {"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"tie_word_embeddings", model.tied},
                 {"torch_dtype", "bfloat16"}};
  if (form.quantization.has_value() && !form.dequantized)
    config["quantization_config"] = Quantization(form);
  config.merge_patch(form.config);
  return config;
}

}  // namespace

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += header;
  bytes += data;
  return bytes;
}

SafetensorsWriter& SafetensorsWriter::Tensor(const std::string& name, TensorType type,
                                             const std::vector<int64_t>& shape,
                                             absl::Span<const float> values) {
  const size_t begin = data_.size();
  data_ += EncodeTensor(type, values);
  header_[name] = {{"dtype", std::string(Traits(type).name)},
                   {"shape", shape},
                   {"data_offsets", Json::array({begin, data_.size()})}};
  return *this;
}

SafetensorsWriter& SafetensorsWriter::Stored(const StoredTensor& tensor) {
  const size_t begin = data_.size();
  data_ += tensor.bytes;
  header_[tensor.name] = {{"dtype", tensor.dtype},
                          {"shape", tensor.shape},
                          {"data_offsets", Json::array({begin, data_.size()})}};
  return *this;
}

std::string SafetensorsWriter::Bytes() const {
  std::string header = header_.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return SafetensorsBytes(header, data_);
}

void SafetensorsWriter::Write(const std::string& path) const { WriteFile(path, Bytes()); }

std::vector<ReferenceFolder> ReferenceFolders() {
  TinyLlama llama;
  TinyLlama qwen3;
  qwen3.architecture = "qwen3";
  qwen3.tied = false;
  qwen3.head_size = 32;  // twice hidden / heads
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 32}};
  Json stretched = Json::object();
  stretched["rope_scaling"] = scaling;
  Json mistral = Json::object();
  mistral["architectures"] = Json::array({"MistralForCausalLM"});
  mistral["model_type"] = "mistral";
  return {{"llama", llama, {}},
          {"llama_halves", llama, {.files = 3, .type = TensorType::kF16}},
          {"llama_stretched", llama, {.config = stretched}},
          {"mistral", llama, {.config = mistral}},
          {"qwen3", qwen3, {.files = 2}},
          {"qwen3_stretched", qwen3, {.config = stretched}}};
}

void WriteHfFolder(const TinyLlama& model, const std::string& folder, const HfForm& form) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (!std::filesystem::create_directories(folder, error)) std::abort();
  WriteFile(folder + "/config.json", Config(model, form).dump(2));
  std::vector<SafetensorsWriter> files(form.files);
  Json weight_map = Json::object();
  const auto name = [&](int file) {
    return form.files == 1 ? std::string("model.safetensors")
                           : StrCat("model-", file + 1, "-of-", form.files, ".safetensors");
  };
  int next = 0;
  for (const Part& part : Parts(model, form, folder + "/tiny.gguf")) {
    for (const StoredTensor& tensor : part.stored) {
      files[next].Stored(tensor);
      weight_map[tensor.name] = name(next);
    }
    if (part.stored.empty()) {
      files[next].Tensor(part.name, part.type, part.shape, part.values);
      weight_map[part.name] = name(next);
    }
    next = (next + 1) % form.files;
  }
  for (int file = 0; file < form.files; ++file) files[file].Write(StrCat(folder, "/", name(file)));
  if (form.files > 1) {
    WriteFile(folder + "/model.safetensors.index.json",
              Json({{"metadata", {{"total_size", 0}}}, {"weight_map", weight_map}}).dump());
  }
}

void PackFolder(const QuantScheme& scheme, const PackedModules& modules, const std::string& from,
                const std::string& packed, const std::string& twin,
                const std::function<void(std::vector<StoredTensor>& tensors)>& change) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(from + "/model.safetensors");
  if (!file.ok()) std::abort();
  std::ifstream config_file(from + "/config.json");
  Json config = Json::parse(config_file);
  SafetensorsWriter quantized, plain;
  int seed = 0;
  for (const TensorInfo& tensor : file->tensors) {
    const std::string name(tensor.name);
    const std::string module = name.substr(0, name.rfind(".weight"));
    const auto is_in = [&](const std::vector<std::string>& ends) {
      return tensor.shape.size() == 2 &&
             std::any_of(ends.begin(), ends.end(),
                         [&](const std::string& end) { return module.ends_with(end); });
    };
    std::vector<float> values =
        DecodeTensor(tensor.type, file->file.bytes().subspan(tensor.offset, tensor.bytes));
    if (is_in(modules.linears) || is_in(modules.routers)) {
      PackedLinear linear = PackLinear(scheme, TensorType::kBf16, module, tensor.shape[0],
                                       tensor.shape[1], values, ++seed);
      if (change) change(linear.tensors);
      for (const StoredTensor& stored : linear.tensors) quantized.Stored(stored);
      values = std::move(linear.values);
      for (float& value : values) {
        if (is_in(modules.routers)) value = Bf16ToFloat(FloatToBf16(value));
      }
    } else {
      quantized.Tensor(name, TensorType::kF32, tensor.shape, values);
    }
    plain.Tensor(name, TensorType::kF32, tensor.shape, values);
  }
  for (const std::string& folder : {packed, twin}) std::filesystem::create_directories(folder);
  plain.Write(twin + "/model.safetensors");
  WriteFile(twin + "/config.json", config.dump());
  quantized.Write(packed + "/model.safetensors");
  config["quantization_config"] = PackedConfig(scheme);
  WriteFile(packed + "/config.json", config.dump());
}

}  // namespace millrace
