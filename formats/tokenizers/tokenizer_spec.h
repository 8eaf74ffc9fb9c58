// The parts of a tokenizer, whether a tokenizer.json or a GGUF file describes it.
//
// Text goes through added tokens, normalizers, pre-tokenizers, the model and the frame, in the
// order and with the meaning of Hugging Face's tokenizers. Parts that are others under another name
// (their Punctuation is a Split) are spelled out by the readers: the fewer kinds, the less to get
// wrong.
#ifndef MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_SPEC_H_
#define MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_SPEC_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace millrace {

// A regular expression in Oniguruma's syntax, or a text that stands for itself.
struct TextPattern {
  bool regex = false;
  std::string text;  // UTF-8
};

// Every match becomes `content`: a step of normalizers and of decoders.
struct Replacement {
  TextPattern pattern;
  std::string content;
};

// A token that is matched whole, before the model sees the text.
struct AddedTokenSpec {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // not next to a letter, a digit or _
  bool lstrip = false;       // takes white space before it along
  bool rstrip = false;
  bool normalized = false;  // matched in normalized text, by its normalized content
  bool verbatim = false;    // with `normalized`: by its content as it is
  bool special = false;     // matched only where special text is parsed, hidden from output
};

// ---- Normalizers ----

enum class SimpleNormalizer {
  kNfc,
  kNfd,
  kNfkc,
  kNfkd,
  kLowercase,
  kStripMarks,            // marks of every kind (M)
  kStripNonspacingMarks,  // Mn alone, as BERT does
  kCleanText,             // BERT: no control characters, every white space a space
  kSpaceChinese,          // BERT: a space on either side of a Chinese character
  kNmt,                   // SentencePiece's nmt rules for control characters and white space
  kSpellBytes,            // each byte as GPT-2's character for it
};
struct StripNormalizer {
  bool left = false;
  bool right = false;
};
struct PrependNormalizer {
  std::string text;  // in front of every text that is not empty
};
struct PrecompiledNormalizer {
  std::string charsmap;  // SentencePiece's precompiled_charsmap, in its binary form
};
// All that SentencePiece itself does to a text (sentencepiece_normalizer.h): its own steps differ
// from those that tokenizer.json makes of them where a symbol is user-defined, white space ends a
// text, or characters combine.
struct SentencePieceNormalizer {
  std::string charsmap;           // as PrecompiledNormalizer's, or empty
  std::vector<std::string> kept;  // texts that are left as they are: user-defined symbols
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;  // spaces become U+2581
  // A space that is put before the text, or behind it.
  bool dummy_prefix = true;
  bool prefix_first_only = false;  // not where an added token stands before
  bool suffix = false;
};
using NormalizerSpec =
    std::variant<SimpleNormalizer, StripNormalizer, Replacement, PrependNormalizer,
                 PrecompiledNormalizer, SentencePieceNormalizer>;

// ---- Pre-tokenizers ----

// The treatment of a match: "the-final--cut" split at "-" gives
enum class SplitBehavior {
  kRemoved,             // the final cut
  kIsolated,            // the - final - - cut
  kMergedWithPrevious,  // the- final- - cut
  kMergedWithNext,      // the -final - -cut
  kContiguous,          // the - final -- cut
};
enum class PrependScheme { kFirst, kNever, kAlways };

struct SplitPreTokenizer {
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the text between matches is the match
};
struct MetaspacePreTokenizer {  // without its split
  std::string replacement;      // of a space: one character
  PrependScheme scheme = PrependScheme::kAlways;
};
struct FixedLengthPreTokenizer {
  size_t length = 1;  // in characters, at least 1
};
enum class SimplePreTokenizer {
  kPrefixSpace,     // a space in front of a piece that has none
  kSpellBytes,      // each byte as GPT-2's character for it
  kUnicodeScripts,  // cut where the script changes, as SentencePiece does
};
using PreTokenizerSpec = std::variant<SimplePreTokenizer, SplitPreTokenizer, MetaspacePreTokenizer,
                                      FixedLengthPreTokenizer>;

// ---- Models ----

struct VocabularyEntry {
  std::string_view text;
  int32_t id = 0;
  double score = 0;     // of Unigram
  bool in_text = true;  // false: no text spells it, as it is a control token or stands for a byte
};
struct BpeModelSpec {
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // the best first
  std::optional<std::string> unknown;                                 // the token's text
  std::string continuing_prefix;  // of every character of a piece but the first
  std::string word_suffix;        // of a piece's last character
  bool fuse_unknown = false;
  bool byte_fallback = false;  // unknown characters as "<0x41>", where all of their bytes are there
  bool ignore_merges = false;  // a piece that is a token as it stands is taken whole
  // Successive merges that make the same token have one rank, and the leftmost of them is taken.
  bool one_rank_a_token = false;
};
struct UnigramModelSpec {
  std::optional<int32_t> unknown;
  bool byte_fallback = false;
};
struct WordPieceModelSpec {
  std::string unknown;
  std::string continuing_prefix;
  size_t max_characters = 100;  // longer pieces are unknown
};
struct WordLevelModelSpec {
  std::string unknown;
};
using SubwordModelSpec =
    std::variant<BpeModelSpec, UnigramModelSpec, WordPieceModelSpec, WordLevelModelSpec>;

// ---- Decoders ----

enum class SimpleDecoder {
  kByteLevel,     // GPT-2's characters back to bytes
  kByteFallback,  // "<0x41>" back to its byte
  kFuse,          // what follows works on the whole text
};
struct WordPieceDecoder {
  std::string prefix;    // left out; a token without it gets a space in front
  bool cleanup = false;  // no space before punctuation and the like
};
struct MetaspaceDecoder {
  std::string replacement;
  bool prepended = true;  // the first token loses its replacements
};
struct SuffixDecoder {
  std::string suffix;  // becomes a space, but at the end
};
struct StripDecoder {
  std::string content;  // one character
  size_t start = 0;     // at most so many at the front
  size_t stop = 0;      // and at the end
};
using DecoderSpec = std::variant<SimpleDecoder, WordPieceDecoder, MetaspaceDecoder, SuffixDecoder,
                                 Replacement, StripDecoder>;

// ---- Frames ----

// A part of the frame around a pair of texts: a token, or the first or second text.
struct PairPart {
  enum class Kind { kToken, kFirstText, kSecondText };
  Kind kind = Kind::kToken;
  int32_t token = 0;         // of kToken
  bool second_type = false;  // its tokens have the second type (segment B); so have all parts after
};

// ---- All of it ----

struct TokenizerSpec {
  std::vector<AddedTokenSpec> added;
  std::vector<NormalizerSpec> normalizers;
  std::vector<PreTokenizerSpec> pre_tokenizers;
  std::vector<VocabularyEntry> vocabulary;
  SubwordModelSpec model;
  std::vector<std::optional<int32_t>> frame;  // ids around the text, which nullopt stands for
  // The frame around a pair of texts; empty: the post-processor has none that is supported.
  std::vector<PairPart> pair_frame;
  std::optional<std::vector<DecoderSpec>> decoders;  // none: a space between tokens

  std::optional<int32_t> bos, eos, pad;
  std::vector<int32_t> end_of_generation;  // where an answer ends, eos included

  // Owns what the views point into, where this is not the caller's file.
  std::shared_ptr<const void> owner;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_SPEC_H_
