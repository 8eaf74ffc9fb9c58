#include "server/http/admin/server_info.h"

#include <optional>
#include <string_view>

#include "config/help.h"
#include "engine/engine.h"
#include "engine/infer_engine.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

// Appends `"name":"text"`, after a comma unless it is an object's first member.
void AppendText(std::string& out, std::string_view name, std::string_view text) {
  if (out.back() != '{') out += ',';
  AppendJsonString(out, name);
  out += ':';
  AppendJsonString(out, text);
}

void AppendNumber(std::string& out, std::string_view name, int64_t number) {
  out += ',';
  AppendJsonString(out, name);
  out += ':';
  AppendJsonNumber(out, number);
}

}  // namespace

std::string ServerInfoJson(ServedModel& model) {
  std::string out = "{";
  for (const std::string_view name : {"model_id", "model_path", "served_model_name"}) {
    AppendText(out, name, model.model_name());
  }
  AppendText(out, "version", Version());
  AppendNumber(out, "dp_size", 1);
  if (const Engine* language = model.language()) {
    const EngineInfo& info = language->info();
    AppendNumber(out, "tp_size", info.tensor_parallel_size);
    AppendNumber(out, "context_length", info.max_model_len);
    AppendNumber(out, "max_total_tokens", int64_t{info.num_blocks} * info.block_size);
  }
  out += '}';
  return out;
}

std::string ModelInfoJson(ServedModel& model) {
  std::string out = "{";
  AppendText(out, "model_path", model.model_name());
  AppendText(out, "tokenizer_path", model.model_name());
  const Engine* language = model.language();
  const std::string architecture =
      language != nullptr ? language->info().architecture : model.tensors()->info().platform;
  AppendText(out, "model_type", architecture);
  out += R"(,"architectures":[)";
  AppendJsonString(out, architecture);
  out += R"(],"is_generation":)";
  out += language != nullptr && language->info().embedding_size == 0 ? "true" : "false";
  out += '}';
  return out;
}

std::string TokenizerInfoJson(ServedModel& model) {
  const Engine* const language = model.language();
  if (language == nullptr) return "{}";
  const TokenizerInfo& tokenizer = language->info().tokenizer;
  std::string out = "{";
  AppendText(out, "tokenizer_class", "PreTrainedTokenizerFast");
  const auto optional = [&out](std::string_view name, const std::optional<std::string>& text) {
    if (text.has_value()) return AppendText(out, name, *text);
    out += ',';
    AppendJsonString(out, name);
    out += ":null";
  };
  optional("bos_token", tokenizer.bos);
  optional("eos_token", tokenizer.eos);
  optional("unk_token", tokenizer.unknown);
  optional("pad_token", tokenizer.pad);
  optional("chat_template",
           tokenizer.chat_template.empty() ? std::nullopt : std::optional(tokenizer.chat_template));
  AppendNumber(out, "model_max_length", language->info().max_model_len);
  out += '}';
  return out;
}

}  // namespace millrace
