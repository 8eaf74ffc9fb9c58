// For tests: writes safetensors files, honest and lying, and small models as Hugging Face folders.
#ifndef MILLRACE_FORMATS_TWINS_HF_TEST_UTIL_H_
#define MILLRACE_FORMATS_TWINS_HF_TEST_UTIL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "formats/json/json.h"
#include "formats/model/model_config.h"
#include "formats/twins/gguf_test_util.h"
#include "formats/twins/packed_test_util.h"
#include "formats/twins/tensor_test_util.h"

namespace millrace {

// The bytes of a safetensors file with this header.
std::string SafetensorsBytes(std::string_view header, std::string_view data);

// Collects tensors, then gives the file's bytes.
class SafetensorsWriter {
 public:
  SafetensorsWriter& Tensor(const std::string& name, TensorType type,
                            const std::vector<int64_t>& shape, absl::Span<const float> values);
  SafetensorsWriter& Stored(const StoredTensor& tensor);

  std::string Bytes() const;
  // Writes Bytes() to `path`; ends the test program when that fails.
  void Write(const std::string& path) const;

 private:
  Json header_ = Json::object();
  std::string data_;
};

// How a TinyLlama is written as a folder. Its weights are those of TinyLlamaWriter's file; where
// its types are not of safetensors, F32 that holds the same numbers.
struct HfForm {
  int files = 1;                            // more: shards, and an index
  TensorType type = TensorType::kF32;       // of all that is not quantized
  std::optional<QuantScheme> quantization;  // the layers' linears, with static scales of 1/64
  bool compressed_tensors = true;           // else the dialect quant_method: fp8
  // These describe packed weights:
  TensorType scale_type = TensorType::kF16;
  bool dequantized = false;  // the values that they stand for are written in their place
  // Called for each linear; `tensors` are what is written of it. May change them, or put a weight
  // in their place.
  std::function<void(std::vector<StoredTensor>& tensors)> change;
  Json config = Json::object();  // changes to config.json; null takes a field away
};

// Makes the folder. Ends the test program when that fails.
void WriteHfFolder(const TinyLlama& model, const std::string& folder, const HfForm& form = {});

// The modules of a folder that are packed, those whose names end so.
struct PackedModules {
  std::vector<std::string> linears = {};
  std::vector<std::string> routers = {};
};

// Writes the folder at `from`, which holds floats in one file, with packed modules to `packed`, and
// with the floats that those stand for, a router's rounded to BF16, to `twin`. Calls `change`, if
// set, with what is written of each module. Ends the test program when that fails.
void PackFolder(const QuantScheme& scheme, const PackedModules& modules, const std::string& from,
                const std::string& packed, const std::string& twin,
                const std::function<void(std::vector<StoredTensor>& tensors)>& change = nullptr);

// The folders that tests/reference/tiny_reference.json tells of: what transformers reads there, we
// do.
struct ReferenceFolder {
  std::string name;
  TinyLlama model;
  HfForm form;
};
std::vector<ReferenceFolder> ReferenceFolders();

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_HF_TEST_UTIL_H_
