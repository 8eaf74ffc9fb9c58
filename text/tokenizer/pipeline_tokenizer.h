// A tokenizer of the parts that Hugging Face's tokenizers are made of, with the same ids.
#ifndef MILLRACE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_
#define MILLRACE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/tokenizers/tokenizer_spec.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/subword_model.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

class PipelineTokenizer : public Tokenizer {
 public:
  // Copies what it needs: the spec, and what its views point into, may end afterwards.
  // INVALID_ARGUMENT for a spec that lies, UNIMPLEMENTED for one that asks for what is not there.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(const TokenizerSpec& spec);

 private:
  PipelineTokenizer() = default;

  absl::Status AddTokens(const TokenizerSpec& spec);
  absl::Status EncodeText(std::string_view text, EncodeOptions options,
                          std::vector<Token>* tokens) const override;
  // Encodes a part of the text between added tokens that are matched before normalization.
  absl::Status EncodeSection(std::string_view text, bool at_start, EncodeOptions options,
                             std::vector<Token>* tokens) const;

  std::vector<std::optional<Token>> frame_;
  AddedTokens added_;             // matched in the text as it comes
  AddedTokens normalized_added_;  // matched once it is normalized
  Normalizer normalizer_;
  std::optional<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const SubwordModel> model_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_
