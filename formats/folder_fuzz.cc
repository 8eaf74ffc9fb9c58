// Fuzzes the smaller files of a Hugging Face folder, as the readers of folders open them. The input
// has them one after the other, a zero byte between two; one that is empty is missing. The folder's
// tokenizer.json, its config.json and its weights are good.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/fuzz_test_util.h"
#include "formats/generation_config.h"
#include "formats/model_text.h"
#include "formats/open_model.h"

namespace {

constexpr std::string_view kFiles[] = {"tokenizer_config.json",        "special_tokens_map.json",
                                       "generation_config.json",       "chat_template.json",
                                       "model.safetensors.index.json", "chat_template.jinja"};

constexpr std::string_view kTokenizer = R"({"version": "1.0", "added_tokens": [
  {"id": 2, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
   "rstrip": false, "normalized": false}], "normalizer": null, "post_processor": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
   "use_regex": true}, "decoder": {"type": "ByteLevel", "add_prefix_space": true,
   "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})";

constexpr std::string_view kConfig = R"({"architectures": ["LlamaForCausalLM"],
  "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
  "num_attention_heads": 2, "vocab_size": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5})";

constexpr std::string_view kWeights =
    R"({"model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}       )";

void Write(const std::filesystem::path& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

// Writes a file, or removes it if there are no bytes, unless it is so already.
void Put(const std::filesystem::path& file, std::string_view bytes, std::string& now) {
  if (bytes == now) return;
  now = bytes;
  if (!bytes.empty()) return Write(file, bytes);
  std::filesystem::remove(file);
}

// Returns the folder, which is removed when the process ends.
const std::filesystem::path& Folder() {
  static const std::filesystem::path& folder = *new std::filesystem::path([] {
    std::string name = std::filesystem::temp_directory_path() / "millrace-fuzz-XXXXXX";
    millrace::FuzzCheck(mkdtemp(name.data()) != nullptr, "mkdtemp failed");
    const std::filesystem::path made = name;
    Write(made / "tokenizer.json", kTokenizer);
    Write(made / "config.json", kConfig);
    std::string weights(8, '\0');
    weights[0] = static_cast<char>(kWeights.size());
    Write(made / "model-1.safetensors", weights.append(kWeights).append(8, '\0'));
    return made;
  }());
  static const int removed = std::atexit([] { std::filesystem::remove_all(Folder()); });
  static_cast<void>(removed);
  return folder;
}

// Errors name no path of this machine.
void CheckMessage(const absl::Status& status) {
  millrace::FuzzCheck(status.message().find(Folder().string()) == std::string::npos,
                      "a message has the folder's path");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  static std::string now[std::size(kFiles)];
  for (size_t i = 0; i < std::size(kFiles); ++i)
    Put(Folder() / kFiles[i], input.Until('\0'), now[i]);
  CheckMessage(millrace::ReadModelText(Folder()).status());
  CheckMessage(millrace::ReadGenerationConfig(Folder()).status());
  CheckMessage(millrace::OpenModel(Folder()).status());
  return 0;
}
