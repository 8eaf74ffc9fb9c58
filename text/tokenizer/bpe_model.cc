#include "text/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/status.h"
#include "text/tokenizer/byte_spelling.h"
#include "text/utf8.h"

namespace millrace {
namespace {

constexpr size_t kFew = 32;  // symbols, up to which looking at all pairs beats a heap

uint64_t PairKey(Token left, Token right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// The last character of `text`, and the first.
std::string_view LastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;
  return text.substr(at);
}

uint16_t BytePair(char left, char right) {
  return static_cast<uint16_t>(static_cast<uint8_t>(left) << 8 | static_cast<uint8_t>(right));
}

uint64_t CharacterPair(std::string_view left, std::string_view right) {
  return static_cast<uint64_t>(FirstCharacter(left).code) << 32 | FirstCharacter(right).code;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const SubwordModel>> BpeModel::Create(const TokenizerSpec& spec,
                                                                     bool bytes) {
  const auto& bpe = std::get<BpeModelSpec>(spec.model);
  std::unique_ptr<BpeModel> model(new BpeModel(bytes));
  if (!model->AppendModelText(bpe.continuing_prefix, &model->continuing_prefix_) ||
      !model->AppendModelText(bpe.word_suffix, &model->word_suffix_)) {
    return absl::InvalidArgumentError("tokenizer: a prefix or suffix of BPE spells no bytes");
  }
  model->affixes_ = !bpe.continuing_prefix.empty() || !bpe.word_suffix.empty();
  model->ignore_merges_ = bpe.ignore_merges;
  model->fuse_unknown_ = bpe.fuse_unknown;
  if (bpe.byte_fallback) model->byte_tokens_ = ByteTokens(spec.vocabulary);
  MILLRACE_RETURN_IF_ERROR(model->AddVocabulary(spec));
  MILLRACE_RETURN_IF_ERROR(model->AddMerges(spec));
  return model;
}

bool BpeModel::AppendModelText(std::string_view text, std::string* out) const {
  if (bytes_) return AppendSpelledBytes(text, out);
  out->append(text);
  return true;
}

absl::Status BpeModel::AddVocabulary(const TokenizerSpec& spec) {
  const std::optional<std::string>& unknown = std::get<BpeModelSpec>(spec.model).unknown;
  size_t total = 0;
  for (const VocabularyEntry& entry : spec.vocabulary) total += entry.text.size();
  texts_.reserve(total);  // so that views stay where they are
  ids_.reserve(spec.vocabulary.size());
  Token most = -1;
  for (const VocabularyEntry& entry : spec.vocabulary) {
    most = std::max(most, entry.id);
    if (unknown && entry.text == *unknown) unknown_ = entry.id;
    const size_t begin = texts_.size();
    if (entry.text.empty() || !entry.in_text || !AppendModelText(entry.text, &texts_)) continue;
    const std::string_view text = std::string_view(texts_).substr(begin);
    ids_.insert_or_assign(text, entry.id);
    longest_ = std::max(longest_, text.size());
    if (text.size() == 1) single_[static_cast<uint8_t>(text[0])] = entry.id;
  }
  if (unknown && !unknown_) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer: unk_token \"", Printable(*unknown), "\" is not in the vocabulary"));
  }
  whole_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(most) + 1);
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerges(const TokenizerSpec& spec) {
  const auto& merges = std::get<BpeModelSpec>(spec.model).merges;
  const bool one_rank_a_token = std::get<BpeModelSpec>(spec.model).one_rank_a_token;
  const auto error = [&](size_t rank, std::string_view what) {
    return absl::InvalidArgumentError(StrCat("tokenizer: merges: entry ", rank, " \"",
                                             Printable(merges[rank].first), " ",
                                             Printable(merges[rank].second), "\" ", what));
  };
  absl::flat_hash_set<std::string_view> names;  // of the vocabulary, when they are first asked for
  const auto named = [&](std::string_view text) {
    if (names.empty()) {
      for (const VocabularyEntry& entry : spec.vocabulary) names.insert(entry.text);
    }
    return names.contains(text);
  };
  if (merges.size() > kNoMerge) return error(0, "is one of too many");
  ranks_.reserve(merges.size());
  merged_.resize(merges.size());
  std::string text;
  size_t first = 0;  // of the merges that make the same token
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left_text, right_text] = merges[rank];
    text.clear();
    bool spelled = AppendModelText(left_text, &text);
    const size_t left_size = text.size();
    spelled = spelled && AppendModelText(right_text, &text);
    if (!spelled) {  // never met in a text, if it is there at all
      if (named(left_text) && named(right_text)) continue;
      return error(rank, "spells no bytes");
    }
    const auto left = ids_.find(std::string_view(text).substr(0, left_size));
    const auto right = ids_.find(std::string_view(text).substr(left_size));
    if (left == ids_.end() || right == ids_.end()) return error(rank, "joins what is no token");
    if (text.size() - left_size < continuing_prefix_.size()) return error(rank, "has no prefix");
    text.erase(left_size, continuing_prefix_.size());
    const auto joined = ids_.find(text);
    if (joined == ids_.end()) return error(rank, "makes what is no token");
    merged_[rank] = joined->second;
    const bool same = one_rank_a_token && rank > 0 && merged_[rank - 1] == joined->second;
    if (!same) first = rank;
    // The last one of equal pairs counts, as it does for Hugging Face's tokenizers.
    ranks_.insert_or_assign(PairKey(left->second, right->second), static_cast<uint32_t>(first));
    if (affixes_) continue;
    const std::string_view before =
        bytes_ ? left->first.substr(left->first.size() - 1) : LastCharacter(left->first);
    const std::string_view after = right->first.substr(0, CharacterSize(right->first));
    if (before.size() == 1 && after.size() == 1) {
      joined_bytes_.set(BytePair(before[0], after[0]));
    } else {
      joined_.insert(CharacterPair(before, after));
    }
  }
  return absl::OkStatus();
}

uint32_t BpeModel::RankOf(Token left, Token right) const {
  const auto it = ranks_.find(PairKey(left, right));
  return it == ranks_.end() ? kNoMerge : it->second;
}

size_t BpeModel::CharacterSize(std::string_view text) const {
  return bytes_ ? 1 : FirstUtf8Unit(text).size;
}

std::optional<Token> BpeModel::CharacterToken(std::string_view character, bool first,
                                              bool last) const {
  if (!affixes_ && character.size() == 1) return single_[static_cast<uint8_t>(character[0])];
  const auto find = [&](std::string_view text) {
    const auto it = ids_.find(text);
    return it == ids_.end() ? std::nullopt : std::optional<Token>(it->second);
  };
  if (!affixes_) return find(character);
  return find(StrCat(first ? "" : continuing_prefix_, character, last ? word_suffix_ : ""));
}

bool BpeModel::CanCut(std::string_view piece, size_t left, size_t at) const {
  const std::string_view before = piece.substr(left, at - left);
  const std::string_view after = piece.substr(at, CharacterSize(piece.substr(at)));
  const bool joined = before.size() == 1 && after.size() == 1
                          ? joined_bytes_.test(BytePair(before[0], after[0]))
                          : joined_.contains(CharacterPair(before, after));
  // A character without a token is left out or fused with the next one, so it hides its neighbours.
  return !joined && CharacterToken(before, false, false) && CharacterToken(after, false, false);
}

absl::Status BpeModel::Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                              std::vector<Token>* tokens) const {
  if (ignore_merges_) {
    if (const auto it = ids_.find(piece); it != ids_.end()) {
      tokens->push_back(it->second);
      return absl::OkStatus();
    }
  }
  if (affixes_) return MergeWord(piece, cancelled, tokens);
  if (const std::optional<Token> whole = FindWhole(piece)) {
    tokens->push_back(*whole);
    return absl::OkStatus();
  }
  size_t begin = 0;
  size_t characters = 0;
  for (size_t left = 0, at = CharacterSize(piece); at < piece.size();) {
    if (++characters % kCharactersPerLook == 0) MILLRACE_RETURN_IF_ERROR(CheckWanted(cancelled));
    if (CanCut(piece, left, at)) {
      MILLRACE_RETURN_IF_ERROR(EncodeWord(piece.substr(begin, at - begin), cancelled, tokens));
      begin = at;
    }
    left = at;
    at += CharacterSize(piece.substr(at));
  }
  return begin == 0 ? MergeWord(piece, cancelled, tokens)
                    : EncodeWord(piece.substr(begin), cancelled, tokens);
}

absl::Status BpeModel::EncodeWord(std::string_view word, const std::atomic<bool>* cancelled,
                                  std::vector<Token>* tokens) const {
  const std::optional<Token> whole = FindWhole(word);
  if (!whole) return MergeWord(word, cancelled, tokens);
  tokens->push_back(*whole);
  return absl::OkStatus();
}

std::optional<Token> BpeModel::FindWhole(std::string_view word) const {
  if (word.size() > longest_) return std::nullopt;
  const auto it = ids_.find(word);
  if (it == ids_.end()) return std::nullopt;
  std::atomic<uint8_t>& state = whole_[static_cast<size_t>(it->second)];
  uint8_t whole = state.load(std::memory_order_relaxed);
  if (whole == kNotKnown) {
    std::vector<Token> merged;
    const absl::Status status = MergeWord(word, /*cancelled=*/nullptr, &merged);
    whole = status.ok() && merged.size() == 1 && merged[0] == it->second ? kYes : kNo;
    state.store(whole, std::memory_order_relaxed);
  }
  return whole == kYes ? std::optional<Token>(it->second) : std::nullopt;
}

void BpeModel::Unknown(std::string_view character, bool first, bool last,
                       std::optional<Token>* held, std::vector<Token>* symbols) const {
  if (byte_tokens_) {
    std::string text;
    const std::string affixed =
        StrCat(first ? "" : continuing_prefix_, character, last ? word_suffix_ : "");
    if (bytes_) {
      AppendByteSpelling(affixed, &text);
    } else {
      text = affixed;
    }
    if (AppendByteTokens(*byte_tokens_, text, symbols)) return;
  }
  if (!unknown_) return;
  if (*held && !fuse_unknown_) symbols->push_back(**held);
  *held = unknown_;
}

absl::Status BpeModel::MergeWord(std::string_view word, const std::atomic<bool>* cancelled,
                                 std::vector<Token>* tokens) const {
  const size_t from = tokens->size();
  std::optional<Token> held;  // a token for the unknown, which goes before the next known one
  size_t characters = 0;
  for (size_t at = 0; at < word.size();) {
    if (++characters % kCharactersPerLook == 0) MILLRACE_RETURN_IF_ERROR(CheckWanted(cancelled));
    const std::string_view character = word.substr(at, CharacterSize(word.substr(at)));
    const bool first = at == 0;
    at += character.size();
    const bool last = at == word.size();
    if (const std::optional<Token> token = CharacterToken(character, first, last)) {
      if (held) tokens->push_back(*held);
      held.reset();
      tokens->push_back(*token);
    } else {
      Unknown(character, first, last, &held, tokens);
    }
  }
  if (held) tokens->push_back(*held);
  const size_t symbols = tokens->size() - from;
  if (symbols > kFew) return MergeMany(tokens, from, cancelled);
  if (symbols > 1) MergeFew(tokens, from);
  return absl::OkStatus();
}

void BpeModel::MergeFew(std::vector<Token>* tokens, size_t from) const {
  Token* const symbols = tokens->data() + from;
  size_t count = tokens->size() - from;
  std::array<uint32_t, kFew> ranks;  // of each symbol with the next one
  const auto pair_up = [&](size_t i) { ranks[i] = RankOf(symbols[i], symbols[i + 1]); };
  for (size_t i = 0; i + 1 < count; ++i) pair_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoMerge) break;
    symbols[best] = merged_[ranks[best]];
    std::move(symbols + best + 2, symbols + count, symbols + best + 1);
    for (size_t i = best + 1; i + 2 < count; ++i) ranks[i] = ranks[i + 1];
    --count;
    if (best + 1 < count) pair_up(best);
    if (best > 0) pair_up(best - 1);
  }
  tokens->resize(from + count);
}

// The pairs of a word that could merge, as keys: the smallest first. What is pushed while others
// are taken mostly comes after all of them. So it waits in a heap, of which is taken only what
// comes before, and is sorted once they have been taken: of a long word that costs far less than a
// heap of all its pairs.
class BpeModel::PairQueue {
 public:
  explicit PairQueue(size_t symbols) {
    sorted_.reserve(symbols);
    later_.reserve(symbols);
  }

  void Push(uint64_t key) {
    later_.push_back(key);
    std::push_heap(later_.begin(), later_.end(), std::greater<>());
  }

  // Nothing when all have been taken.
  std::optional<uint64_t> Pop() {
    if (taken_ == sorted_.size()) {
      if (later_.empty()) return std::nullopt;
      sorted_.swap(later_);
      if (!std::ranges::is_sorted(sorted_)) std::ranges::sort(sorted_);
      later_.clear();
      taken_ = 0;
    }
    if (later_.empty() || sorted_[taken_] <= later_.front()) return sorted_[taken_++];
    std::pop_heap(later_.begin(), later_.end(), std::greater<>());
    const uint64_t key = later_.back();
    later_.pop_back();
    return key;
  }

 private:
  std::vector<uint64_t> sorted_;
  size_t taken_ = 0;             // of those
  std::vector<uint64_t> later_;  // a heap, the smallest at its front
};

absl::Status BpeModel::MergeMany(std::vector<Token>* tokens, size_t from,
                                 const std::atomic<bool>* cancelled) const {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct Symbol {
    Token token;
    uint32_t previous;  // kNone at the front
    uint32_t next;      // kNone at the back
    uint32_t rank;      // with the next one; kNoMerge, too, once the symbol is gone
  };
  std::vector<Symbol> symbols;
  symbols.reserve(tokens->size() - from);
  for (size_t i = from; i < tokens->size(); ++i) {
    const auto index = static_cast<uint32_t>(i - from);
    symbols.push_back({(*tokens)[i], index == 0 ? kNone : index - 1, index + 1, kNoMerge});
  }
  symbols.back().next = kNone;

  PairQueue pairs(symbols.size());
  const auto pair_up = [&](uint32_t index) {
    Symbol& symbol = symbols[index];
    symbol.rank =
        symbol.next == kNone ? kNoMerge : RankOf(symbol.token, symbols[symbol.next].token);
    if (symbol.rank != kNoMerge) pairs.Push(uint64_t{symbol.rank} << 32 | index);
  };
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) {
    if (i % kCharactersPerLook == 0) MILLRACE_RETURN_IF_ERROR(CheckWanted(cancelled));
    pair_up(i);
  }
  size_t popped = 0;
  while (const std::optional<uint64_t> pair = pairs.Pop()) {
    if (++popped % kCharactersPerLook == 0) MILLRACE_RETURN_IF_ERROR(CheckWanted(cancelled));
    const auto index = static_cast<uint32_t>(*pair & 0xffffffff);
    Symbol& symbol = symbols[index];
    // A pair whose symbols have changed since it was pushed is passed over.
    if (symbol.rank != *pair >> 32) continue;
    Symbol& gone = symbols[symbol.next];
    symbol.token = merged_[symbol.rank];
    symbol.next = gone.next;
    gone.rank = kNoMerge;
    if (symbol.next != kNone) symbols[symbol.next].previous = index;
    pair_up(index);
    if (symbol.previous != kNone) pair_up(symbol.previous);
  }
  tokens->resize(from);
  for (uint32_t index = 0; index != kNone; index = symbols[index].next) {
    tokens->push_back(symbols[index].token);
  }
  return absl::OkStatus();
}

}  // namespace millrace
