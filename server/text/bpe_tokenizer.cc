#include "server/text/bpe_tokenizer.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "base/status.h"

namespace millrace {
namespace {

// GPT-2 spells bytes as printable characters: those of Latin-1 that print stand for themselves, the
// others, in ascending order, for U+0100 onwards.
constexpr bool PrintsInLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// The byte by the character that spells it; all such characters are below U+0180.
constexpr auto kSpelledByte = [] {
  std::array<int16_t, 0x180> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    bytes[PrintsInLatin1(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return bytes;
}();

// Appends the bytes that `spelling` spells. False, with nothing appended, when some character of it
// spells none.
bool AppendSpelledBytes(std::string_view spelling, std::string* out) {
  const size_t before = out->size();
  for (size_t i = 0; i < spelling.size(); ++i) {
    uint32_t character = static_cast<uint8_t>(spelling[i]);
    if (character >= 0x80) {  // two bytes of UTF-8 reach to U+07FF
      const uint32_t next = i + 1 < spelling.size() ? static_cast<uint8_t>(spelling[i + 1]) : 0;
      const bool two = character >= 0xc2 && character <= 0xdf && (next & 0xc0) == 0x80;
      character = two ? (character & 0x1f) << 6 | (next & 0x3f) : 0x10000;
      ++i;
    }
    if (character >= kSpelledByte.size() || kSpelledByte[character] < 0) {
      out->resize(before);
      return false;
    }
    out->push_back(static_cast<char>(kSpelledByte[character]));
  }
  return true;
}

uint64_t PairKey(Token left, Token right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const BpeTokenizer>> BpeTokenizer::Create(
    const TokenizerConfig& config) {
  MILLRACE_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(config.pre));
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(std::move(pre_tokenizer)));
  MILLRACE_RETURN_IF_ERROR(tokenizer->AddTokens(config));
  MILLRACE_RETURN_IF_ERROR(tokenizer->AddMerges(config));
  tokenizer->bos_ = config.bos;
  tokenizer->eos_ = config.eos;
  tokenizer->add_bos_ = config.add_bos;
  tokenizer->add_eos_ = config.add_eos;
  tokenizer->SetEndOfGeneration({config.eos, config.eot, config.eom});
  return tokenizer;
}

absl::Status BpeTokenizer::AddTokens(const TokenizerConfig& config) {
  std::vector<std::pair<std::string, Token>> always, parsed;
  size_t total = 0;
  for (const std::string_view token : config.tokens) total += token.size();
  if (total > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        StrCat("key tokenizer.ggml.tokens: ", total, " bytes of text"));
  }
  Reserve(config.tokens.size(), total);
  std::string bytes;
  for (size_t id = 0; id < config.tokens.size(); ++id) {
    const TokenType type = config.types[id];
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    const bool literal = special || type == TokenType::kUserDefined;
    bytes.clear();
    if (literal || !AppendSpelledBytes(config.tokens[id], &bytes)) bytes = config.tokens[id];
    AddToken(bytes, special);
    if (literal) parsed.emplace_back(bytes, id);
    if (type == TokenType::kUserDefined) always.emplace_back(bytes, id);
  }
  // Only now do the bytes stay where they are. A normal token goes before a special one of equal
  // bytes.
  ids_.reserve(config.tokens.size());
  for (const bool special : {true, false}) {
    for (Token id = 0; id < vocab_size(); ++id) {
      if (IsSpecial(id) == special) ids_.insert_or_assign(TokenBytes(id), id);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    const auto it = ids_.find(std::string_view(&character, 1));
    if (it != ids_.end()) byte_tokens_[byte] = it->second;
  }
  always_special_ = SpecialMatcher(std::move(always));
  parsed_special_ = SpecialMatcher(std::move(parsed));
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddMerges(const TokenizerConfig& config) {
  const auto error = [&](size_t rank, std::string_view what) {
    return absl::InvalidArgumentError(StrCat("key tokenizer.ggml.merges: entry ", rank, " \"",
                                             Printable(config.merges[rank]), "\" ", what));
  };
  merges_.reserve(config.merges.size());
  std::string bytes;
  // Files list the merged tokens in the order of their merges, so the next one is likely the next
  // id.
  Token guess = 0;
  for (size_t rank = 0; rank < config.merges.size(); ++rank) {
    const std::string_view merge = config.merges[rank];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos) return error(rank, "has no space");
    bytes.clear();
    if (!AppendSpelledBytes(merge.substr(0, space), &bytes)) return error(rank, "spells no bytes");
    const size_t left_size = bytes.size();
    if (!AppendSpelledBytes(merge.substr(space + 1), &bytes)) return error(rank, "spells no bytes");
    const std::string_view whole = bytes;
    const auto left = ids_.find(whole.substr(0, left_size));
    const auto right = ids_.find(whole.substr(left_size));
    if (left == ids_.end() || right == ids_.end()) return error(rank, "joins what is no token");
    if (++guess; TokenBytes(guess) != whole || IsSpecial(guess)) {
      const auto joined = ids_.find(whole);
      if (joined == ids_.end()) return error(rank, "makes what is no token");
      guess = joined->second;
    }
    merges_.try_emplace(PairKey(left->second, right->second),
                        Merge{static_cast<uint32_t>(rank), guess});
  }
  return absl::OkStatus();
}

const BpeTokenizer::Merge* BpeTokenizer::FindMerge(Token left, Token right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

// A piece while it is merged: a linked list of symbols, and a heap of the pairs that could merge.
struct BpeTokenizer::Scratch {
  static constexpr int32_t kNone = -1;
  struct Symbol {
    Token token;
    int32_t previous;    // kNone at the front
    int32_t next;        // kNone at the back
    const Merge* merge;  // with the next one; null when there is none, or once the symbol is gone
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol: the smallest first

  void Push(int32_t index) {
    heap.push_back(static_cast<uint64_t>(symbols[index].merge->rank) << 32 |
                   static_cast<uint32_t>(index));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  uint64_t Pop() {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t smallest = heap.back();
    heap.pop_back();
    return smallest;
  }
};

void BpeTokenizer::EncodePiece(std::string_view piece, Scratch* scratch,
                               std::vector<Token>* tokens) const {
  if (pre_tokenizer_.ignore_merges()) {
    if (const auto it = ids_.find(piece); it != ids_.end()) {
      tokens->push_back(it->second);
      return;
    }
  }
  auto& symbols = scratch->symbols;
  symbols.clear();
  for (const char character : piece) {
    const std::optional<Token> token = byte_tokens_[static_cast<uint8_t>(character)];
    if (!token) continue;
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({*token, index - 1, index + 1, nullptr});
  }
  if (symbols.empty()) return;
  symbols.back().next = Scratch::kNone;

  const auto pair_up = [&](int32_t index) {
    Scratch::Symbol& symbol = symbols[index];
    symbol.merge = symbol.next == Scratch::kNone
                       ? nullptr
                       : FindMerge(symbol.token, symbols[symbol.next].token);
    if (symbol.merge != nullptr) scratch->Push(index);
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) pair_up(static_cast<int32_t>(i));
  while (!scratch->heap.empty()) {
    const uint64_t smallest = scratch->Pop();
    const int32_t index = static_cast<int32_t>(smallest & 0xffffffff);
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
  for (int32_t index = 0; index != Scratch::kNone; index = symbols[index].next) {
    tokens->push_back(symbols[index].token);
  }
}

absl::Status BpeTokenizer::EncodePlain(std::string_view text, std::vector<Token>* tokens) const {
  Scratch scratch;
  return pre_tokenizer_.Split(
      text, [&](std::string_view piece) { EncodePiece(piece, &scratch, tokens); });
}

}  // namespace millrace
