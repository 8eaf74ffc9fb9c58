#include "formats/tokenizer_gguf.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/tokenizer_patterns.h"

namespace millrace {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// A byte-level BPE by its tokenizer.ggml.pre: what its authors' tokenizer.json has before the
// model.
struct Pre {
  std::string_view name;
  std::vector<SplitPreTokenizer> splits;
  bool nfc = false;
  bool ignore_merges = false;
};

SplitPreTokenizer Isolate(const char* regex) { return {{true, regex}, SplitBehavior::kIsolated}; }

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen35[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                           R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kCjk[] = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";
// What DeepSeek takes for letters, and for punctuation.
constexpr char kDeepSeekLetters[] =
    R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-)"
    R"(\x{293}\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386})"
    R"(\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f})"
    R"(\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba})"
    R"(\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-)"
    R"(\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59})"
    R"(\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-)"
    R"(\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2})"
    R"(-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d})"
    R"(\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f})"
    R"(\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-)"
    R"(\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-)"
    R"(\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21})"
    R"(-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
    R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
constexpr char kDeepSeekPunctuation[] =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";

std::vector<Pre> KnownPre() {
  const SplitPreTokenizer gpt2 = Isolate(kGpt2Pattern);
  const SplitPreTokenizer digit = Isolate(kDigitPattern);
  const SplitPreTokenizer line_end = Isolate(R"([\r\n])");
  const SplitPreTokenizer cjk = Isolate(kCjk);
  return {
      {"command-r", {digit, gpt2}, /*nfc=*/true},
      {"deepseek-coder", {line_end, Isolate(R"(\s?\p{L}+)"), Isolate(R"(\s?\p{P}+)"), cjk, digit}},
      {"deepseek-llm",
       {line_end, Isolate(kDeepSeekLetters), Isolate(kDeepSeekPunctuation), Isolate(R"(\s+$)"), cjk,
        digit}},
      {"default", {gpt2}},  // files that are older than the key
      {"gpt-2", {gpt2}},
      {"llama-bpe", {Isolate(kLlama3)}, /*nfc=*/false, /*ignore_merges=*/true},
      {"mpt", {gpt2}, /*nfc=*/true},
      {"qwen2", {Isolate(kQwen2)}, /*nfc=*/true},
      {"qwen35", {Isolate(kQwen35)}, /*nfc=*/true},
      {"refact", {digit, gpt2}},
      {"smollm", {digit, gpt2}},
      {"starcoder", {digit, gpt2}},
  };
}

// Its last steps work on GPT-2's characters, some of which are digits.
void AddFalcon(TokenizerSpec* spec) {
  spec->pre_tokenizers = {
      SplitPreTokenizer{{true, kPunctuationPattern}, SplitBehavior::kContiguous},
      Isolate(kGpt2Pattern), SimplePreTokenizer::kSpellBytes,
      SplitPreTokenizer{{true, kDigitPattern}, SplitBehavior::kContiguous},
      Isolate("[0-9][0-9][0-9]")};
}

absl::Status AddPre(std::string_view name, TokenizerSpec* spec) {
  if (name == "falcon") {
    AddFalcon(spec);
    return absl::OkStatus();
  }
  std::vector<std::string_view> known = {"falcon"};
  for (Pre& pre : KnownPre()) {
    known.push_back(pre.name);
    if (pre.name != name) continue;
    if (pre.nfc) spec->normalizers.emplace_back(SimpleNormalizer::kNfc);
    for (SplitPreTokenizer& split : pre.splits) spec->pre_tokenizers.emplace_back(std::move(split));
    spec->pre_tokenizers.emplace_back(SimplePreTokenizer::kSpellBytes);
    std::get<BpeModelSpec>(spec->model).ignore_merges = pre.ignore_merges;
    return absl::OkStatus();
  }
  std::sort(known.begin(), known.end());
  return absl::UnimplementedError(StrCat("key tokenizer.ggml.pre: \"", Printable(name),
                                         "\" is not supported (supported: ", JoinList(known), ")"));
}

absl::Status AddMerges(const GgufTokenizer& gguf, BpeModelSpec* bpe) {
  bpe->merges.reserve(gguf.merges.size());
  for (size_t rank = 0; rank < gguf.merges.size(); ++rank) {
    const std::string_view merge = gguf.merges[rank];
    const size_t space = merge.find(' ', 1);  // a token may be a space
    if (space == std::string_view::npos) {
      return absl::InvalidArgumentError(StrCat("key tokenizer.ggml.merges: entry ", rank, " \"",
                                               Printable(merge), "\" has no space"));
    }
    bpe->merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return absl::OkStatus();
}

bool BeginsCharacter(char byte) { return (byte & 0xc0) != 0x80; }

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), BeginsCharacter));
}

// SentencePiece's BPE merges whatever pair makes the token of the highest score. As a list, in the
// order in which transformers writes it: every pair of tokens that makes a token.
void AddMergesByScore(const GgufTokenizer& gguf, BpeModelSpec* bpe) {
  struct Pair {
    float score;
    size_t left_characters, right_characters;
    std::string_view left, right;
  };
  absl::flat_hash_map<std::string_view, size_t, StringHash> ids;
  ids.reserve(gguf.tokens.size());
  for (size_t id = 0; id < gguf.tokens.size(); ++id) ids[gguf.tokens[id]] = id;
  std::vector<Pair> pairs;
  std::vector<std::pair<std::pair<size_t, size_t>, size_t>> cuts;  // ids of the parts, place
  for (size_t id = 0; id < gguf.tokens.size(); ++id) {
    const std::string_view token = gguf.tokens[id];
    cuts.clear();
    for (size_t at = 1; at < token.size(); ++at) {
      if (!BeginsCharacter(token[at])) continue;
      const auto left = ids.find(token.substr(0, at));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(at));
      if (right != ids.end()) cuts.push_back({{left->second, right->second}, at});
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& cut : cuts) {
      const std::string_view left = token.substr(0, cut.second), right = token.substr(cut.second);
      pairs.push_back(
          {gguf.scores[id], CountCharacters(left), CountCharacters(right), left, right});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.left_characters != b.left_characters) return a.left_characters > b.left_characters;
    return a.right_characters > b.right_characters;
  });
  bpe->merges.reserve(pairs.size());
  for (const Pair& pair : pairs) bpe->merges.emplace_back(pair.left, pair.right);
}

// Spaces as U+2581, bytes where a character has no token, and back.
void AddSentencePiece(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  if (gguf.add_space_prefix) {
    spec->normalizers.emplace_back(PrependNormalizer{std::string(kSpaceMark)});
  }
  spec->normalizers.emplace_back(Replacement{{false, " "}, std::string(kSpaceMark)});
  auto& bpe = std::get<BpeModelSpec>(spec->model);
  bpe.byte_fallback = true;
  bpe.fuse_unknown = true;
  if (gguf.unknown) bpe.unknown = std::string(gguf.tokens[static_cast<size_t>(*gguf.unknown)]);
  spec->decoders = {{Replacement{{false, std::string(kSpaceMark)}, " "},
                     SimpleDecoder::kByteFallback, SimpleDecoder::kFuse}};
  if (gguf.add_space_prefix) spec->decoders->emplace_back(StripDecoder{" ", 1, 0});
}

void AddUnigram(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  UnigramModelSpec unigram;
  unigram.unknown = gguf.unknown;
  spec->model = unigram;
  if (!gguf.charsmap.empty()) {
    spec->normalizers.emplace_back(PrecompiledNormalizer{
        std::string(reinterpret_cast<const char*>(gguf.charsmap.data()), gguf.charsmap.size())});
  }
  if (gguf.remove_extra_whitespaces) {
    spec->normalizers.emplace_back(StripNormalizer{true, true});
    spec->normalizers.emplace_back(Replacement{{true, " {2,}"}, " "});
  }
  const std::string mark(kSpaceMark);
  spec->pre_tokenizers.emplace_back(MetaspacePreTokenizer{
      mark, gguf.add_space_prefix ? PrependScheme::kAlways : PrependScheme::kNever});
  spec->pre_tokenizers.emplace_back(
      SplitPreTokenizer{{false, mark}, SplitBehavior::kMergedWithNext});
  spec->decoders = {{MetaspaceDecoder{mark, gguf.add_space_prefix}}};
}

// Tokens that begin a word lose the mark, the others get WordPiece's prefix; "[CLS]" and its like
// have neither.
absl::Status AddWordPiece(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  const auto texts = std::make_shared<std::deque<std::string>>();
  for (VocabularyEntry& entry : spec->vocabulary) {
    if (entry.text.starts_with(kSpaceMark)) {
      entry.text.remove_prefix(kSpaceMark.size());
    } else if (!entry.text.starts_with('[') || !entry.text.ends_with(']')) {
      entry.text = texts->emplace_back(StrCat("##", entry.text));
    }
  }
  spec->owner = texts;
  const auto id = [&](std::optional<int32_t> given) { return static_cast<size_t>(*given); };
  if (!gguf.unknown || !gguf.cls || !gguf.separator) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml: a bert tokenizer needs unknown_token_id, cls_token_id and "
        "seperator_token_id");
  }
  spec->model = WordPieceModelSpec{std::string(gguf.tokens[id(gguf.unknown)]), "##", 100};
  spec->normalizers = {SimpleNormalizer::kCleanText, SimpleNormalizer::kSpaceChinese,
                       SimpleNormalizer::kNfd, SimpleNormalizer::kStripNonspacingMarks,
                       SimpleNormalizer::kLowercase};
  spec->pre_tokenizers = {SplitPreTokenizer{{true, kWhiteSpacePattern}, SplitBehavior::kRemoved},
                          SplitPreTokenizer{{true, kPunctuationPattern}, SplitBehavior::kIsolated}};
  spec->frame = {gguf.cls, std::nullopt, gguf.separator};
  spec->decoders = {{WordPieceDecoder{"##", /*cleanup=*/true}}};
  return absl::OkStatus();
}

// Control tokens are matched where special text is parsed, user-defined ones in every text.
// Byte-level BPE spells its other tokens, so that these do not belong to its vocabulary.
void AddTokens(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const TokenType type = gguf.types[i];
    const bool unknown = type == TokenType::kUnknown;
    const bool special = type == TokenType::kControl || unknown;
    const bool added = special || type == TokenType::kUserDefined;
    if (added)
      spec->added.push_back({.id = id, .content = std::string(gguf.tokens[i]), .special = special});
    if (!added || unknown || gguf.kind != TokenizerKind::kGpt2) {
      spec->vocabulary.push_back({gguf.tokens[i], id, gguf.scores.empty() ? 0 : gguf.scores[i]});
    }
  }
}

void AddFrame(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  spec->bos = gguf.bos;
  spec->eos = gguf.eos;
  spec->pad = gguf.pad;
  for (const std::optional<int32_t>& end : {gguf.eos, gguf.eot, gguf.eom}) {
    if (end) spec->end_of_generation.push_back(*end);
  }
  if (gguf.add_bos) spec->frame.push_back(gguf.bos);
  spec->frame.push_back(std::nullopt);
  if (gguf.add_eos) spec->frame.push_back(gguf.eos);
}

}  // namespace

absl::StatusOr<TokenizerSpec> MakeTokenizerSpec(const GgufTokenizer& gguf) {
  TokenizerSpec spec;
  AddTokens(gguf, &spec);
  AddFrame(gguf, &spec);
  switch (gguf.kind) {
    case TokenizerKind::kGpt2:
      MILLRACE_RETURN_IF_ERROR(AddMerges(gguf, &spec.model.emplace<BpeModelSpec>()));
      MILLRACE_RETURN_IF_ERROR(AddPre(gguf.pre, &spec));
      spec.decoders = {{SimpleDecoder::kByteLevel}};
      break;
    case TokenizerKind::kLlama:
      AddMergesByScore(gguf, &spec.model.emplace<BpeModelSpec>());
      AddSentencePiece(gguf, &spec);
      break;
    case TokenizerKind::kGemma4:
      MILLRACE_RETURN_IF_ERROR(AddMerges(gguf, &spec.model.emplace<BpeModelSpec>()));
      AddSentencePiece(gguf, &spec);
      break;
    case TokenizerKind::kT5:
      AddUnigram(gguf, &spec);
      break;
    case TokenizerKind::kBert:
      MILLRACE_RETURN_IF_ERROR(AddWordPiece(gguf, &spec));
      break;
  }
  return spec;
}

}  // namespace millrace
