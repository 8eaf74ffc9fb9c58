// Fuzzes the readers of config.json and generation_config.json. The tensors that a config wants
// are listed, too: that is what a loader does next.
#include "base/fuzz_test_util.h"
#include "formats/huggingface/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = millrace::ReadHfConfig(text, "config.json");
  if (config.ok()) {
    millrace::FuzzCheck(config->family != nullptr, "a config without a family");
    millrace::FuzzCheck(config->model.num_layers() >= 1, "a config without layers");
    const auto shape = millrace::SharedHeadShape(config->model);
    static_cast<void>(shape);
  }
  const auto ends = millrace::ReadEndTokens(text, "generation_config.json");
  static_cast<void>(ends);
  return 0;
}
