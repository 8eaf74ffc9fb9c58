#include "formats/model_text.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/gguf/gguf.h"
#include "formats/tokenizers/gguf_tokenizer.h"
#include "formats/tokenizers/tokenizer_gguf.h"

namespace millrace {
namespace {

absl::StatusOr<ModelText> ReadGgufText(const std::string& path) {
  MILLRACE_ASSIGN_OR_RETURN(GgufFile opened, GgufFile::Open(path));
  const auto file = std::make_shared<const GgufFile>(std::move(opened));
  MILLRACE_ASSIGN_OR_RETURN(const GgufTokenizer config, ReadGgufTokenizer(*file));
  ModelText text;
  text.owner = file;
  MILLRACE_ASSIGN_OR_RETURN(text.tokenizer, MakeTokenizerSpec(config));
  text.chat_template = config.chat_template;
  text.tool_template = config.tool_template;
  if (config.add_bos) text.chat_bos = config.bos;
  if (config.add_eos) text.chat_eos = config.eos;
  for (const std::string& warning : config.warnings) {
    text.warnings.push_back(StrCat(file->base_name(), ": ", warning));
  }
  text.fill_in = {config.fim_prefix, config.fim_suffix, config.fim_middle};
  for (const auto& [id, token] :
       {std::pair(config.bos, &text.bos), std::pair(config.eos, &text.eos),
        std::pair(config.pad, &text.pad)}) {
    if (id.has_value()) *token = std::string(config.tokens[static_cast<size_t>(*id)]);
  }
  return text;
}

}  // namespace

absl::StatusOr<ModelText> ReadModelText(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? ReadFolderText(path) : ReadGgufText(path);
}

}  // namespace millrace
