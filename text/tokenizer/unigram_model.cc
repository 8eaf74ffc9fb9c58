#include "text/tokenizer/unigram_model.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/status.h"
#include "text/tokenizer/byte_tokens.h"
#include "text/utf8.h"

namespace millrace {
namespace {

// SentencePiece puts it below the unlikeliest token.
constexpr double kUnknownPenalty = 10;

// The best way to a place in the text.
struct Arrival {
  double score = 0;
  uint32_t begin = kNone;  // of the last token
  Token token = 0;

  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  void Offer(double offered, uint32_t from, Token by) {
    if (begin == kNone || offered > score) *this = {offered, from, by};
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const SubwordModel>> UnigramModel::Create(
    const TokenizerSpec& spec) {
  const auto& unigram = std::get<UnigramModelSpec>(spec.model);
  std::unique_ptr<UnigramModel> model(new UnigramModel);
  std::vector<std::pair<std::string_view, Token>> tokens;
  tokens.reserve(spec.vocabulary.size());
  double lowest = std::numeric_limits<double>::infinity();
  for (const VocabularyEntry& entry : spec.vocabulary) {
    if (!entry.in_text) continue;
    tokens.emplace_back(entry.text, entry.id);
    if (model->scores_.size() <= static_cast<size_t>(entry.id)) {
      model->scores_.resize(static_cast<size_t>(entry.id) + 1);
    }
    model->scores_[static_cast<size_t>(entry.id)] = entry.score;
    lowest = std::min(lowest, entry.score);
  }
  model->trie_ = TokenTrie(std::move(tokens));
  model->unknown_score_ = lowest - kUnknownPenalty;
  model->unknown_ = unigram.unknown;
  if (unigram.byte_fallback) model->byte_tokens_ = ByteTokens(spec.vocabulary);
  return model;
}

void UnigramModel::AddUnknown(std::string_view text, std::vector<Token>* tokens) const {
  // Unknown characters in a row are one text, which is a token after all only if it is known whole.
  std::optional<Token> whole;
  trie_.ForEachPrefix(text, [&](size_t size, Token token) {
    if (size == text.size()) whole = token;
  });
  if (whole) {
    tokens->push_back(*whole);
  } else if (!byte_tokens_ || !AppendByteTokens(*byte_tokens_, text, tokens)) {
    tokens->push_back(*unknown_);
  }
}

absl::Status UnigramModel::Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                                  std::vector<Token>* tokens) const {
  std::vector<Arrival> arrivals(piece.size() + 1);
  size_t characters = 0;
  for (size_t begin = 0; begin < piece.size();) {
    if (++characters % kCharactersPerLook == 0) MILLRACE_RETURN_IF_ERROR(CheckWanted(cancelled));
    const std::string_view rest = piece.substr(begin);
    const size_t character = FirstUtf8Unit(rest).size;
    const double score = arrivals[begin].score;
    const auto from = static_cast<uint32_t>(begin);
    bool known = false;
    trie_.ForEachPrefix(rest, [&](size_t size, Token token) {
      arrivals[begin + size].Offer(score + scores_[static_cast<size_t>(token)], from, token);
      known = known || size == character;
    });
    if (!known) {
      if (!unknown_) {
        return absl::InvalidArgumentError(
            "prompt: has characters that the tokenizer has no token for");
      }
      arrivals[begin + character].Offer(score + unknown_score_, from, *unknown_);
    }
    begin += character;
  }
  // From the end to the start, unknown characters in a row together.
  std::vector<std::pair<uint32_t, uint32_t>> path;  // begin, end
  for (auto end = static_cast<uint32_t>(piece.size()); end > 0; end = arrivals[end].begin) {
    path.emplace_back(arrivals[end].begin, end);
  }
  for (auto it = path.rbegin(); it != path.rend(); ++it) {
    const Token token = arrivals[it->second].token;
    if (!unknown_ || token != *unknown_) {
      tokens->push_back(token);
      continue;
    }
    const uint32_t begin = it->first;
    while (it + 1 != path.rend() && arrivals[(it + 1)->second].token == *unknown_) ++it;
    AddUnknown(piece.substr(begin, it->second - begin), tokens);
  }
  return absl::OkStatus();
}

}  // namespace millrace
