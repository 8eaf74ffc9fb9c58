#include "formats/twins/gguf_test_util.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr uint64_t kAlignment = 32;

template <typename T>
void Append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void AppendString(std::string* out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  out->append(text);
}

template <typename T>
std::string NumberBytes(T value) {
  std::string bytes;
  Append(&bytes, value);
  return bytes;
}

template <typename T>
std::string ArrayBytes(uint32_t element_type, const std::vector<T>& values) {
  std::string bytes;
  Append<uint32_t>(&bytes, element_type);
  Append<uint64_t>(&bytes, values.size());
  for (const T& value : values) Append(&bytes, value);
  return bytes;
}

uint64_t AlignUp(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

uint32_t TypeNumber(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return 0;
    case TensorType::kF16:
      return 1;
    case TensorType::kQ4_0:
      return 2;
    case TensorType::kQ4_1:
      return 3;
    case TensorType::kQ5_0:
      return 6;
    case TensorType::kQ5_1:
      return 7;
    case TensorType::kQ8_0:
      return 8;
    case TensorType::kQ2K:
      return 10;
    case TensorType::kQ3K:
      return 11;
    case TensorType::kQ4K:
      return 12;
    case TensorType::kQ5K:
      return 13;
    case TensorType::kQ6K:
      return 14;
    case TensorType::kIq4Nl:
      return 20;
    case TensorType::kIq4Xs:
      return 23;
    case TensorType::kIq3S:
      return 21;
    case TensorType::kIq3Xxs:
      return 18;
    case TensorType::kIq2S:
      return 22;
    case TensorType::kIq2Xs:
      return 17;
    case TensorType::kIq2Xxs:
      return 16;
    case TensorType::kIq1S:
      return 19;
    case TensorType::kIq1M:
      return 29;
    case TensorType::kBf16:
      return 30;
    case TensorType::kMxfp4:
      return 39;
    case TensorType::kFp8E4m3:
    case TensorType::kU8:
    case TensorType::kInt4x32:
    case TensorType::kInt4x128:
    case TensorType::kI32:
    case TensorType::kI64:
      break;  // GGUF has no such type
  }
  std::abort();
}

// The GPT-2 spelling of a byte as a printable character, in UTF-8.
std::string ByteSpelling(int byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

void AddTokenizer(int vocab, GgufWriter* writer) {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(ByteSpelling(byte));
  tokens.push_back("Ġt");
  tokens.push_back("he");
  std::vector<int32_t> types(tokens.size(), 1);
  std::fill_n(types.begin(), 3, 3);
  while (static_cast<int>(tokens.size()) < vocab) {
    tokens.push_back(StrCat("<unused", tokens.size(), ">"));
    types.push_back(5);
  }
  writer->String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", "smollm")
      .Strings("tokenizer.ggml.tokens", tokens)
      .Int32s("tokenizer.ggml.token_type", types)
      .Strings("tokenizer.ggml.merges", {"Ġ t", "h e"})
      .Uint32("tokenizer.ggml.bos_token_id", 1)
      .Uint32("tokenizer.ggml.eos_token_id", 2)
      .Bool("tokenizer.ggml.add_bos_token", false)
      .String("tokenizer.chat_template",
              "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
              "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt "
              "%}{{ '<|im_start|>assistant\n' }}{% endif %}");
}

void Set(const std::string& key, const Json& value, GgufWriter* writer) {
  if (value.is_boolean()) {
    writer->Bool(key, value);
  } else if (value.is_number()) {
    writer->Uint32(key, value);
  } else if (value.is_string()) {
    writer->String(key, value.get<std::string>());
  } else if (value[0].is_string()) {
    writer->Strings(key, value);
  } else if (value[0].is_number_float()) {
    writer->Float32s(key, value);
  } else {
    writer->Int32s(key, value);
  }
}

}  // namespace

GgufWriter WriterOf(const Json& keys) {
  GgufWriter writer;
  for (const auto& [key, value] : keys.items()) Set(key, value, &writer);
  return writer;
}

GgufWriter& GgufWriter::Raw(std::string_view key, uint32_t type, std::string_view bytes) {
  AppendString(&metadata_, key);
  Append<uint32_t>(&metadata_, type);
  metadata_.append(bytes);
  ++metadata_count_;
  return *this;
}

GgufWriter& GgufWriter::Uint32(std::string_view key, uint32_t value) {
  return Raw(key, 4, NumberBytes(value));
}
GgufWriter& GgufWriter::Int32(std::string_view key, int32_t value) {
  return Raw(key, 5, NumberBytes(value));
}
GgufWriter& GgufWriter::Uint64(std::string_view key, uint64_t value) {
  return Raw(key, 10, NumberBytes(value));
}
GgufWriter& GgufWriter::Float32(std::string_view key, float value) {
  return Raw(key, 6, NumberBytes(value));
}
GgufWriter& GgufWriter::Bool(std::string_view key, bool value) {
  return Raw(key, 7, NumberBytes<uint8_t>(value));
}
GgufWriter& GgufWriter::String(std::string_view key, std::string_view value) {
  std::string bytes;
  AppendString(&bytes, value);
  return Raw(key, 8, bytes);
}
GgufWriter& GgufWriter::Strings(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes;
  Append<uint32_t>(&bytes, 8);
  Append<uint64_t>(&bytes, values.size());
  for (const std::string& value : values) AppendString(&bytes, value);
  return Raw(key, 9, bytes);
}
GgufWriter& GgufWriter::Int32s(std::string_view key, const std::vector<int32_t>& values) {
  return Raw(key, 9, ArrayBytes(5, values));
}
GgufWriter& GgufWriter::Float32s(std::string_view key, const std::vector<float>& values) {
  return Raw(key, 9, ArrayBytes(6, values));
}

GgufWriter& GgufWriter::Tensor(std::string_view name, TensorType type, std::vector<int64_t> shape,
                               absl::Span<const float> values) {
  return RawTensor(name, TypeNumber(type), std::move(shape), EncodeTensor(type, values));
}

GgufWriter& GgufWriter::RawTensor(std::string_view name, uint32_t type, std::vector<int64_t> shape,
                                  std::string bytes, int64_t offset) {
  tensors_.push_back({std::string(name), type, std::move(shape), std::move(bytes), offset});
  return *this;
}

std::string GgufWriter::Bytes(uint32_t version) const {
  std::string out = "GGUF";
  Append<uint32_t>(&out, version);
  Append<uint64_t>(&out, tensors_.size());
  Append<uint64_t>(&out, metadata_count_);
  out += metadata_;
  std::string data;
  for (const Entry& tensor : tensors_) {
    AppendString(&out, tensor.name);
    Append<uint32_t>(&out, tensor.shape.size());
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      Append<uint64_t>(&out, *size);
    }
    Append<uint32_t>(&out, tensor.type);
    Append<uint64_t>(&out, tensor.offset >= 0 ? tensor.offset : data.size());
    data += tensor.bytes;
    data.resize(AlignUp(data.size()));
  }
  out.resize(AlignUp(out.size()));
  return out + data;
}

void GgufWriter::Write(const std::string& path) const { WriteFile(path, Bytes()); }

std::string DefaultModelPath() {
  if (const char* model = std::getenv("MILLRACE_MODEL")) return model;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string folder =
      cache != nullptr && *cache != '\0' ? cache : StrCat(home != nullptr ? home : "", "/.cache");
  return folder + "/millrace/SmolLM2-135M-Instruct.Q4_1.gguf";
}

void WriteFile(const std::string& path, std::string_view bytes) {
  // A new file, not the old one cut short: that one may be mapped, and ext4 waits for the disk.
  std::remove(path.c_str());
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
      std::fclose(file) != 0) {
    std::perror(path.c_str());
    std::abort();
  }
}

GgufWriter TinyLlamaWriter(const TinyLlama& model) {
  GgufWriter writer;
  const int head_size = model.HeadSize();
  const auto key = [&](std::string_view name) { return StrCat(model.architecture, ".", name); };
  writer.String("general.architecture", model.architecture)
      .String("general.name", "Tiny Llama for tests")
      .Uint32(key("block_count"), model.layers)
      .Uint32(key("context_length"), model.context)
      .Uint32(key("embedding_length"), model.hidden)
      .Uint32(key("feed_forward_length"), model.ffn)
      .Uint32(key("attention.head_count"), model.heads)
      .Uint32(key("attention.head_count_kv"), model.kv_heads)
      .Float32(key("attention.layer_norm_rms_epsilon"), 1e-5f)
      .Float32(key("rope.freq_base"), model.rope_base)
      .Uint32(key("rope.dimension_count"), head_size)
      .Uint32(key("vocab_size"), model.vocab);
  if (model.head_size > 0) {
    writer.Uint32(key("attention.key_length"), head_size)
        .Uint32(key("attention.value_length"), head_size);
  }
  AddTokenizer(model.vocab, &writer);

  std::mt19937_64 random(model.seed);
  // Only engine draws, no distributions: those differ between standard libraries.
  const auto add = [&](std::string_view name, TensorType type, std::vector<int64_t> shape,
                       float centre, float spread) {
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
    std::vector<float> values(count);
    for (float& value : values) {
      value = centre + spread * (static_cast<float>(random() >> 40) * 0x1p-23f - 1);
    }
    writer.Tensor(name, type, std::move(shape), values);
  };
  const int q = model.heads * head_size;
  const int kv = model.kv_heads * head_size;
  const float spread = 1.7f / std::sqrt(static_cast<float>(model.hidden));
  add("token_embd.weight", model.embedding_type, {model.vocab, model.hidden}, 0, 1);
  if (model.rope_factors) add("rope_freqs.weight", TensorType::kF32, {head_size / 2}, 2, 1);
  for (int layer = 0; layer < model.layers; ++layer) {
    const auto name = [&](std::string_view part) {
      return StrCat("blk.", layer, ".", part, ".weight");
    };
    const TensorType type = model.linear_type;
    const TensorType mixed = model.mixed_type.value_or(type);
    add(name("attn_norm"), TensorType::kF32, {model.hidden}, 1, 0.5f);
    add(name("attn_q"), type, {q, model.hidden}, 0, spread);
    add(name("attn_k"), type, {kv, model.hidden}, 0, spread);
    add(name("attn_v"), mixed, {kv, model.hidden}, 0, spread);
    if (model.architecture == "qwen3") {
      add(name("attn_q_norm"), TensorType::kF32, {head_size}, 1, 0.5f);
      add(name("attn_k_norm"), TensorType::kF32, {head_size}, 1, 0.5f);
    }
    add(name("attn_output"), type, {model.hidden, q}, 0, spread);
    add(name("ffn_norm"), TensorType::kF32, {model.hidden}, 1, 0.5f);
    add(name("ffn_gate"), type, {model.ffn, model.hidden}, 0, spread);
    add(name("ffn_up"), mixed, {model.ffn, model.hidden}, 0, spread);
    add(name("ffn_down"), type, {model.hidden, model.ffn}, 0, spread);
  }
  add("output_norm.weight", TensorType::kF32, {model.hidden}, 1, 0.5f);
  if (!model.tied)
    add("output.weight", model.embedding_type, {model.vocab, model.hidden}, 0, spread);
  return writer;
}

}  // namespace millrace
