#include "formats/tokenizers/tokenizer_gguf.h"

#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/tokenizers/score_merges.h"
#include "formats/tokenizers/tokenizer_patterns.h"
#include "formats/tokenizers/tokenizer_pre.h"

namespace millrace {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, SentencePiece's space

absl::Status AddPre(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  const GgufPreTokenizer* pre = FindGgufPreTokenizer(gguf.pre);
  if (pre == nullptr) {
    return absl::UnimplementedError(
        StrCat("key tokenizer.ggml.pre: \"", Printable(gguf.pre),
               "\" is not supported (supported: ", JoinList(GgufPreNames()), ")"));
  }
  if (pre->nfc) spec->normalizers.emplace_back(SimpleNormalizer::kNfc);
  if (gguf.pre == "whitespace" && gguf.lowercase) {
    spec->normalizers.emplace_back(SimpleNormalizer::kLowercase);
  }
  spec->pre_tokenizers = pre->steps;
  std::get<BpeModelSpec>(spec->model).ignore_merges = pre->ignore_merges;
  return absl::OkStatus();
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

void AddMergesByScore(const GgufTokenizer& gguf, BpeModelSpec* bpe) {
  std::vector<VocabularyEntry> tokens;
  tokens.reserve(gguf.tokens.size());
  for (size_t id = 0; id < gguf.tokens.size(); ++id) {
    tokens.push_back({gguf.tokens[id], static_cast<int32_t>(id), gguf.scores[id]});
  }
  bpe->merges = MergesByScore(tokens);
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
  // Before a text that keeps its spaces there is one more.
  const bool one_more = gguf.add_space_prefix && !gguf.remove_extra_whitespaces;
  if (one_more) spec->normalizers.emplace_back(PrependNormalizer{" "});
  const std::string mark(kSpaceMark);
  spec->pre_tokenizers.emplace_back(MetaspacePreTokenizer{
      mark, gguf.add_space_prefix && !one_more ? PrependScheme::kAlways : PrependScheme::kNever});
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
  // llama.cpp's ids where a file has none: those of BERT's own vocabulary.
  const auto id = [&](std::optional<int32_t> given, int32_t otherwise) {
    return given.has_value() ? *given : otherwise;
  };
  // Files of 2025 and later call [CLS] their BOS, which llama.cpp takes where both are named.
  const int32_t cls = id(gguf.bos.has_value() ? gguf.bos : gguf.cls, 101);
  const int32_t separator = id(gguf.separator, 102);
  const int32_t unknown = id(gguf.unknown, 100);
  if (const auto known = static_cast<int32_t>(gguf.tokens.size());
      cls >= known || separator >= known || unknown >= known) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml: a bert tokenizer needs unknown_token_id, bos_token_id or cls_token_id, "
        "and seperator_token_id");
  }
  // llama.cpp has no longest word.
  spec->model = WordPieceModelSpec{std::string(gguf.tokens[unknown]), "##",
                                   std::numeric_limits<size_t>::max()};
  spec->normalizers = {SimpleNormalizer::kCleanText, SimpleNormalizer::kSpaceChinese};
  if (gguf.strip_accents) {
    spec->normalizers.emplace_back(SimpleNormalizer::kNfd);
    spec->normalizers.emplace_back(SimpleNormalizer::kStripNonspacingMarks);
  }
  if (gguf.lowercase) spec->normalizers.emplace_back(SimpleNormalizer::kLowercase);
  spec->pre_tokenizers = {SplitPreTokenizer{{true, kWhiteSpacePattern}, SplitBehavior::kRemoved},
                          SplitPreTokenizer{{true, kPunctuationPattern}, SplitBehavior::kIsolated}};
  spec->frame = {cls, std::nullopt, separator};
  spec->pair_frame = {{PairPart::Kind::kToken, cls},
                      {PairPart::Kind::kFirstText},
                      {PairPart::Kind::kToken, separator},
                      {PairPart::Kind::kSecondText},
                      {PairPart::Kind::kToken, separator}};
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
    if (added) {
      spec->added.push_back({.id = id,
                             .content = std::string(gguf.tokens[i]),
                             .lstrip = gguf.left_stripping == id,
                             .rstrip = std::binary_search(gguf.right_stripping.begin(),
                                                          gguf.right_stripping.end(), id),
                             .special = special});
    }
    if (!added || unknown || gguf.kind != TokenizerKind::kGpt2) {
      spec->vocabulary.push_back({gguf.tokens[i], id, gguf.scores.empty() ? 0 : gguf.scores[i]});
    }
  }
}

// The frame of two texts of a model that scores pairs, as llama.cpp's server puts it together. All
// tokens have the first type.
void AddPairFrame(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  using Kind = PairPart::Kind;
  const std::optional<int32_t> end = gguf.eos.has_value() ? gguf.eos : gguf.separator;
  const auto add = [&](bool wanted, std::optional<int32_t> token) {
    if (wanted && token.has_value()) spec->pair_frame.push_back({Kind::kToken, *token});
  };
  add(gguf.add_bos, gguf.bos);
  spec->pair_frame.push_back({Kind::kFirstText});
  add(gguf.add_eos, end);
  add(gguf.add_sep, gguf.separator);
  spec->pair_frame.push_back({Kind::kSecondText});
  add(gguf.add_eos, end);
}

void AddFrame(const GgufTokenizer& gguf, TokenizerSpec* spec) {
  spec->bos = gguf.bos;
  spec->eos = gguf.eos;
  spec->pad = gguf.pad;
  spec->end_of_generation = gguf.ends;
  if (gguf.add_bos) spec->frame.push_back(gguf.bos);
  spec->frame.push_back(std::nullopt);
  if (gguf.add_eos) spec->frame.push_back(gguf.eos);
  AddPairFrame(gguf, spec);
}

}  // namespace

absl::StatusOr<TokenizerSpec> MakeTokenizerSpec(const GgufTokenizer& gguf) {
  TokenizerSpec spec;
  AddTokens(gguf, &spec);
  AddFrame(gguf, &spec);
  switch (gguf.kind) {
    case TokenizerKind::kGpt2:
      MILLRACE_RETURN_IF_ERROR(AddMerges(gguf, &spec.model.emplace<BpeModelSpec>()));
      MILLRACE_RETURN_IF_ERROR(AddPre(gguf, &spec));
      if (gguf.pre != "whitespace") spec.decoders = {{SimpleDecoder::kByteLevel}};
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
