// For tests: writes GGUF files, honest and lying, and small Llama-shaped models.
#ifndef MILLRACE_FORMATS_TWINS_GGUF_TEST_UTIL_H_
#define MILLRACE_FORMATS_TWINS_GGUF_TEST_UTIL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "formats/json/json.h"
#include "formats/twins/tensor_test_util.h"

namespace millrace {

// Collects metadata and tensors, then gives the file's bytes. Nothing is checked: a test may write
// a file that lies.
class GgufWriter {
 public:
  GgufWriter& Uint32(std::string_view key, uint32_t value);
  GgufWriter& Int32(std::string_view key, int32_t value);
  GgufWriter& Uint64(std::string_view key, uint64_t value);
  GgufWriter& Float32(std::string_view key, float value);
  GgufWriter& Bool(std::string_view key, bool value);
  GgufWriter& String(std::string_view key, std::string_view value);
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& values);
  GgufWriter& Int32s(std::string_view key, const std::vector<int32_t>& values);
  GgufWriter& Float32s(std::string_view key, const std::vector<float>& values);
  // A value in the file's own bytes, of any type number.
  GgufWriter& Raw(std::string_view key, uint32_t type, std::string_view bytes);

  // Shape outermost first. The values are encoded as `type`.
  GgufWriter& Tensor(std::string_view name, TensorType type, std::vector<int64_t> shape,
                     absl::Span<const float> values);
  // Bytes and type number as given; `offset` replaces the tensor's own when it is not negative.
  GgufWriter& RawTensor(std::string_view name, uint32_t type, std::vector<int64_t> shape,
                        std::string bytes, int64_t offset = -1);

  std::string Bytes(uint32_t version = 3) const;
  // Writes Bytes() to `path`; ends the test program when that fails.
  void Write(const std::string& path) const;

 private:
  struct Entry {
    std::string name;
    uint32_t type;
    std::vector<int64_t> shape;
    std::string bytes;
    int64_t offset;
  };

  std::string metadata_;
  uint64_t metadata_count_ = 0;
  std::vector<Entry> tensors_;
};

// Returns a writer with these keys, as tests/reference/gguf_reference.json has them: a number
// stands for a uint32, a list of integers for int32s, one with a point for float32s.
GgufWriter WriterOf(const Json& keys);

// The default model's file, SmolLM2-135M-Instruct.Q4_1.gguf: $MILLRACE_MODEL, or where `make serve`
// puts it. For tests labelled `model`.
std::string DefaultModelPath();

// Writes `bytes` to `path`; ends the test program when that fails.
void WriteFile(const std::string& path, std::string_view bytes);

// A small random model of the Llama family with a byte-level BPE tokenizer, complete enough for the
// server: 3 special tokens (0 "<|endoftext|>", 1 "<|im_start|>", 2 "<|im_end|>" = bos/eos as in
// SmolLM2), the 256 bytes (3 to 258), "Ġt" and "he" as merges (259, 260), and unused tokens after.
struct TinyLlama {
  std::string architecture = "llama";  // or "qwen3"
  int layers = 2;
  int hidden = 64;
  int ffn = 128;
  int heads = 4;
  int kv_heads = 2;
  int head_size = 0;  // 0: hidden / heads
  int vocab = 320;    // at least 261
  int context = 256;
  float rope_base = 10000.0f;
  bool tied = true;                           // no output.weight when true
  bool rope_factors = false;                  // rope_freqs.weight
  TensorType linear_type = TensorType::kF32;  // of every layer's weights
  std::optional<TensorType> mixed_type;       // instead, of every layer's v and up
  TensorType embedding_type = TensorType::kF32;
  uint64_t seed = 1;  // the weights are a function of it

  int HeadSize() const { return head_size > 0 ? head_size : hidden / heads; }
};
GgufWriter TinyLlamaWriter(const TinyLlama& model);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_GGUF_TEST_UTIL_H_
