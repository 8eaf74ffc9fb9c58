// Fuzzes chat templates: the input is a template, a zero byte, and the content of the user's
// message. It is rendered within a small budget, of which a rendering may not take much more.
#include <nlohmann/json.hpp>

#include "base/fuzz_test_util.h"
#include "text/chat_template.h"

namespace {

constexpr size_t kMostBytes = 64 << 10;
constexpr millrace::TemplateLimits kLimits = {
    .max_source_bytes = 64 << 10, .max_output_bytes = kMostBytes, .max_steps = 50'000};

const nlohmann::ordered_json& Tools() {
  static const auto& tools = *new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "f", "description": "A <tool> & \"more\"",
     "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}])"));
  return tools;
}

nlohmann::ordered_json Messages(std::string_view text) {
  return {{{"role", "system"}, {"content", "Be brief."}},
          {{"role", "user"}, {"content", text}},
          {{"role", "assistant"},
           {"content", nullptr},
           {"tool_calls",
            {{{"id", "c1"},
              {"type", "function"},
              {"function", {{"name", "f"}, {"arguments", {{"a", 1}, {"b", -2.5}}}}}}}}},
          {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "[1, 2]"}},
          {{"role", "user"}, {"content", "And \u00e9?"}}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const std::string_view source = input.Until('\0');
  const auto parsed = millrace::ChatTemplate::Parse(
      source, {.bos = "<s>", .eos = "</s>", .unk = {}, .pad = "<pad>"}, kLimits);
  if (!parsed.ok()) return 0;
  // Values that come from requests are valid UTF-8.
  std::string text(input.rest());
  std::erase_if(text, [](char c) { return static_cast<uint8_t>(c) >= 0x80; });
  const auto messages = Messages(text);
  const nlohmann::ordered_json extra = {{"tools", Tools()}, {"enable_thinking", true}};
  for (const bool generation : {false, true}) {
    millrace::ChatTemplateOptions options;
    options.add_generation_prompt = generation;
    options.continue_final_message = !generation;
    const auto rendered = parsed->Render(messages, extra, options);
    millrace::FuzzCheck(!rendered.ok() || rendered->size() <= kMostBytes, "the text is too long");
  }
  return 0;
}
