#include "text/tokenizer/word_models.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace millrace {
namespace {

std::optional<Token> FindToken(const TokenizerSpec& spec, std::string_view text) {
  std::optional<Token> found;
  for (const VocabularyEntry& entry : spec.vocabulary) {
    if (entry.text == text) found = entry.id;
  }
  return found;
}

absl::Status AddUnknown(std::optional<Token> unknown, std::vector<Token>* tokens) {
  if (!unknown) {
    return absl::InvalidArgumentError("prompt: has words that the tokenizer has no token for");
  }
  tokens->push_back(*unknown);
  return absl::OkStatus();
}

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const SubwordModel>> WordPieceModel::Create(
    const TokenizerSpec& spec) {
  const auto& word_piece = std::get<WordPieceModelSpec>(spec.model);
  std::unique_ptr<WordPieceModel> model(new WordPieceModel);
  std::vector<std::pair<std::string_view, Token>> first, continuing;
  for (const VocabularyEntry& entry : spec.vocabulary) {
    first.emplace_back(entry.text, entry.id);
    if (entry.text.starts_with(word_piece.continuing_prefix)) {
      continuing.emplace_back(entry.text.substr(word_piece.continuing_prefix.size()), entry.id);
    }
  }
  model->first_ = TokenTrie(std::move(first));
  model->continuing_ = TokenTrie(std::move(continuing));
  model->unknown_ = FindToken(spec, word_piece.unknown);
  model->max_characters_ = word_piece.max_characters;
  return model;
}

absl::Status WordPieceModel::Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                                    std::vector<Token>* tokens) const {
  if (CountCharacters(piece) > max_characters_) return AddUnknown(unknown_, tokens);
  const size_t before = tokens->size();
  size_t taken = 0;
  for (size_t at = 0; at < piece.size();) {
    if (++taken % kCharactersPerLook == 0) MILLRACE_RETURN_IF_ERROR(CheckWanted(cancelled));
    size_t longest = 0;
    Token token = 0;
    (at == 0 ? first_ : continuing_).ForEachPrefix(piece.substr(at), [&](size_t size, Token one) {
      // Vocabularies may hold parts of characters; a token never ends inside of one.
      if (at + size < piece.size() && (piece[at + size] & 0xc0) == 0x80) return;
      longest = size;
      token = one;
    });
    if (longest == 0) {
      tokens->resize(before);
      return AddUnknown(unknown_, tokens);
    }
    tokens->push_back(token);
    at += longest;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const SubwordModel>> WordLevelModel::Create(
    const TokenizerSpec& spec) {
  std::unique_ptr<WordLevelModel> model(new WordLevelModel);
  for (const VocabularyEntry& entry : spec.vocabulary) model->ids_[entry.text] = entry.id;
  model->unknown_ = FindToken(spec, std::get<WordLevelModelSpec>(spec.model).unknown);
  return model;
}

absl::Status WordLevelModel::Encode(std::string_view piece, const std::atomic<bool>* /*cancelled*/,
                                    std::vector<Token>* tokens) const {
  const auto it = ids_.find(piece);
  if (it == ids_.end()) return AddUnknown(unknown_, tokens);
  tokens->push_back(it->second);
  return absl::OkStatus();
}

}  // namespace millrace
