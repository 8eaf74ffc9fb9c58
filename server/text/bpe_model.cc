#include "server/text/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/status.h"
#include "server/text/byte_spelling.h"
#include "server/text/utf8.h"

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
    if (entry.text.empty() || !AppendModelText(entry.text, &texts_)) continue;
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
  const auto error = [&](size_t rank, std::string_view what) {
    return absl::InvalidArgumentError(StrCat("tokenizer: merges: entry ", rank, " \"",
                                             Printable(merges[rank].first), " ",
                                             Printable(merges[rank].second), "\" ", what));
  };
  const auto named = [&](std::string_view text) {
    return std::any_of(spec.vocabulary.begin(), spec.vocabulary.end(),
                       [&](const VocabularyEntry& entry) { return entry.text == text; });
  };
  if (merges.size() > std::numeric_limits<uint32_t>::max()) return error(0, "is one of too many");
  merges_.reserve(merges.size());
  std::string text;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [first, second] = merges[rank];
    text.clear();
    bool spelled = AppendModelText(first, &text);
    const size_t left_size = text.size();
    spelled = spelled && AppendModelText(second, &text);
    if (!spelled) {  // never met in a text, if it is there at all
      if (named(first) && named(second)) continue;
      return error(rank, "spells no bytes");
    }
    const auto left = ids_.find(std::string_view(text).substr(0, left_size));
    const auto right = ids_.find(std::string_view(text).substr(left_size));
    if (left == ids_.end() || right == ids_.end()) return error(rank, "joins what is no token");
    if (text.size() - left_size < continuing_prefix_.size()) return error(rank, "has no prefix");
    text.erase(left_size, continuing_prefix_.size());
    const auto joined = ids_.find(text);
    if (joined == ids_.end()) return error(rank, "makes what is no token");
    // Of equal pairs the last one counts, as it does for Hugging Face's tokenizers.
    merges_.insert_or_assign(PairKey(left->second, right->second),
                             Merge{static_cast<uint32_t>(rank), joined->second});
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

const BpeModel::Merge* BpeModel::FindMerge(Token left, Token right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
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
  // What has no token is left out or fused with what follows, so it hides its neighbours.
  return !joined && CharacterToken(before, false, false) && CharacterToken(after, false, false);
}

absl::Status BpeModel::Encode(std::string_view piece, std::vector<Token>* tokens) const {
  if (ignore_merges_) {
    if (const auto it = ids_.find(piece); it != ids_.end()) {
      tokens->push_back(it->second);
      return absl::OkStatus();
    }
  }
  if (affixes_) {
    MergeWord(piece, tokens);
    return absl::OkStatus();
  }
  if (const std::optional<Token> whole = FindWhole(piece)) {
    tokens->push_back(*whole);
    return absl::OkStatus();
  }
  size_t begin = 0;
  for (size_t left = 0, at = CharacterSize(piece); at < piece.size();) {
    if (CanCut(piece, left, at)) {
      EncodeWord(piece.substr(begin, at - begin), tokens);
      begin = at;
    }
    left = at;
    at += CharacterSize(piece.substr(at));
  }
  if (begin == 0) {
    MergeWord(piece, tokens);
  } else {
    EncodeWord(piece.substr(begin), tokens);
  }
  return absl::OkStatus();
}

void BpeModel::EncodeWord(std::string_view word, std::vector<Token>* tokens) const {
  if (const std::optional<Token> whole = FindWhole(word)) {
    tokens->push_back(*whole);
  } else {
    MergeWord(word, tokens);
  }
}

std::optional<Token> BpeModel::FindWhole(std::string_view word) const {
  if (word.size() > longest_) return std::nullopt;
  const auto it = ids_.find(word);
  if (it == ids_.end()) return std::nullopt;
  std::atomic<uint8_t>& state = whole_[static_cast<size_t>(it->second)];
  uint8_t whole = state.load(std::memory_order_relaxed);
  if (whole == kNotKnown) {
    std::vector<Token> merged;
    MergeWord(word, &merged);
    whole = merged.size() == 1 && merged[0] == it->second ? kYes : kNo;
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

void BpeModel::MergeWord(std::string_view word, std::vector<Token>* tokens) const {
  const size_t from = tokens->size();
  std::optional<Token> held;  // a token for the unknown, which goes before the next known one
  for (size_t at = 0; at < word.size();) {
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
  if (symbols < 2) return;
  if (symbols <= kFew) {
    MergeFew(tokens, from);
  } else {
    MergeMany(tokens, from);
  }
}

void BpeModel::MergeFew(std::vector<Token>* tokens, size_t from) const {
  constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
  Token* const symbols = tokens->data() + from;
  size_t count = tokens->size() - from;
  std::array<Merge, kFew> merges;  // of each symbol with the next one
  const auto pair_up = [&](size_t i) {
    const Merge* merge = FindMerge(symbols[i], symbols[i + 1]);
    merges[i] = merge == nullptr ? Merge{kNever, 0} : *merge;
  };
  for (size_t i = 0; i + 1 < count; ++i) pair_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNever) break;
    symbols[best] = merges[best].token;
    std::move(symbols + best + 2, symbols + count, symbols + best + 1);
    for (size_t i = best + 1; i + 2 < count; ++i) merges[i] = merges[i + 1];
    --count;
    if (best + 1 < count) pair_up(best);
    if (best > 0) pair_up(best - 1);
  }
  tokens->resize(from + count);
}

// A word while it is merged: a linked list of symbols, and a heap of the pairs that could merge.
class BpeModel::Scratch {
 public:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct Symbol {
    Token token;
    uint32_t previous;   // kNone at the front
    uint32_t next;       // kNone at the back
    const Merge* merge;  // with the next one; null when there is none, or once the symbol is gone
  };
  std::vector<Symbol> symbols;

  void Push(uint32_t index) {
    heap_.push_back(static_cast<uint64_t>(symbols[index].merge->rank) << 32 | index);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  bool empty() const { return heap_.empty(); }
  uint64_t Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t smallest = heap_.back();
    heap_.pop_back();
    return smallest;
  }

 private:
  std::vector<uint64_t> heap_;  // rank << 32 | index of the left symbol: the smallest first
};

void BpeModel::MergeMany(std::vector<Token>* tokens, size_t from) const {
  Scratch scratch;
  auto& symbols = scratch.symbols;
  symbols.reserve(tokens->size() - from);
  for (size_t i = from; i < tokens->size(); ++i) {
    const auto index = static_cast<uint32_t>(i - from);
    symbols.push_back({(*tokens)[i], index == 0 ? Scratch::kNone : index - 1, index + 1, nullptr});
  }
  symbols.back().next = Scratch::kNone;

  const auto pair_up = [&](uint32_t index) {
    Scratch::Symbol& symbol = symbols[index];
    symbol.merge = symbol.next == Scratch::kNone
                       ? nullptr
                       : FindMerge(symbol.token, symbols[symbol.next].token);
    if (symbol.merge != nullptr) scratch.Push(index);
  };
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) pair_up(i);
  while (!scratch.empty()) {
    const uint64_t smallest = scratch.Pop();
    const auto index = static_cast<uint32_t>(smallest & 0xffffffff);
    Scratch::Symbol& symbol = symbols[index];
    // A pair whose symbols have changed since it was pushed is passed over.
    if (symbol.merge == nullptr || symbol.merge->rank != smallest >> 32) continue;
    Scratch::Symbol& gone = symbols[symbol.next];
    symbol.token = symbol.merge->token;
    symbol.next = gone.next;
    gone.merge = nullptr;
    if (symbol.next != Scratch::kNone) symbols[symbol.next].previous = index;
    pair_up(index);
    if (symbol.previous != Scratch::kNone) pair_up(symbol.previous);
  }
  tokens->resize(from);
  for (uint32_t index = 0; index != Scratch::kNone; index = symbols[index].next) {
    tokens->push_back(symbols[index].token);
  }
}

}  // namespace millrace
