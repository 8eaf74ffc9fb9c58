// The tokenizer and the chat template of a model on disk, whatever its format.
#ifndef MILLRACE_FORMATS_MODEL_TEXT_H_
#define MILLRACE_FORMATS_MODEL_TEXT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// The tokens before the parts of a text whose middle is to be filled in.
struct FillInIds {
  std::optional<int32_t> prefix, suffix, middle;
};

struct ModelText {
  TokenizerSpec tokenizer;
  std::string chat_template;  // empty: it has none
  std::string tool_template;  // for chats with tools, where the model has one of its own
  // The BOS that a chat's prompt begins with whether or not the template writes it, as llama.cpp
  // has it of GGUF files; of folders the template alone decides.
  std::optional<int32_t> chat_bos;
  // The EOS that its prompt then ends with, likewise.
  std::optional<int32_t> chat_eos;
  // What the file says that is not followed, or leaves out.
  std::vector<std::string> warnings;
  // The texts of special tokens, which templates write.
  std::optional<std::string> bos, eos, unknown, pad;

  FillInIds fill_in;  // of a GGUF file that names them

  // Owns what the tokenizer's views point into, beside its own `owner`.
  std::shared_ptr<const void> owner;
};

// Reads those of a .gguf file, or of a Hugging Face folder (ReadFolderText).
absl::StatusOr<ModelText> ReadModelText(const std::string& path);

// Reads those of a folder, as transformers' AutoTokenizer does:
// - tokenizer.json is the tokenizer, its post_processor the frame (add_bos_token and
//   add_prefix_space beside it change nothing);
// - without it, tekken.json (tekken.h), then tokenizer.model (sentencepiece_model.h): BOS stands in
//   front of a text unless add_bos_token is false, EOS behind it if add_eos_token is true;
//   add_prefix_space: false takes SentencePiece's space in front away, and legacy: false puts it
//   before the whole text alone, not behind each special token;
// - tokenizer_config.json (may be missing) names bos_token, eos_token, unk_token and pad_token, and
//   its added_tokens_decoder changes and adds tokens. One without that field is of an older kind,
//   and special_tokens_map.json goes before it;
//   Special tokens that only these files name are added to the tokenizer's;
// - the chat template is chat_template.jinja, or default.jinja of additional_chat_templates, else
//   the config's chat_template, a text or the one that a list or an object calls "default", else
//   chat_template.json's. tool_template is "tool_use" of these. An empty one is none.
// clean_up_tokenization_spaces is not read: transformers leaves it out for BPE, and no text that is
// shown as it comes can have it.
//
// Errors name the file and the field: NOT_FOUND for a folder without one of these files,
// INVALID_ARGUMENT for what is damaged or lies, UNIMPLEMENTED for a kind that is not known.
absl::StatusOr<ModelText> ReadFolderText(const std::string& folder);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_TEXT_H_
