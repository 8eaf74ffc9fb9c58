#include "text/tokenizer/subword_model.h"

#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/unigram_model.h"
#include "text/tokenizer/word_models.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<const SubwordModel>> MakeSubwordModel(const TokenizerSpec& spec,
                                                                     bool bytes) {
  if (std::holds_alternative<BpeModelSpec>(spec.model)) return BpeModel::Create(spec, bytes);
  if (std::holds_alternative<UnigramModelSpec>(spec.model)) return UnigramModel::Create(spec);
  if (std::holds_alternative<WordPieceModelSpec>(spec.model)) return WordPieceModel::Create(spec);
  return WordLevelModel::Create(spec);
}

}  // namespace millrace
