#include "formats/tokenizers/tokenizer_json_parts.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/tokenizers/tokenizer_patterns.h"

namespace millrace {
namespace {

constexpr size_t kMaxSteps = 64;
constexpr size_t kMaxTextBytes = 1 << 16;  // of a pattern or a text to put in
constexpr size_t kMaxFrame = 64;           // special tokens around a text

template <typename Step>
using Reader = std::function<absl::Status(const JsonFields&, std::vector<Step>*)>;

// One kind of step by its name in the file.
template <typename Step>
struct Kind {
  std::string_view type;
  Reader<Step> read;
};

// Appends the steps of `value`; `inner` names a Sequence's list. Recursion is bounded by the depth
// that the JSON parser allows.
template <typename Step>
absl::Status ReadSteps(const Json& value, const std::string& before, std::string_view inner,
                       const std::vector<Kind<Step>>& kinds, std::vector<Step>* steps) {
  if (value.is_null()) return absl::OkStatus();
  const JsonFields fields(value, before);
  if (!value.is_object()) return fields.Bad("type", "is missing");
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, fields.String("type"));
  if (type == "Sequence") {
    const Json* list = fields.Find(inner);
    if (list == nullptr || !list->is_array()) return fields.Bad(inner, "must be a list");
    for (size_t i = 0; i < list->size(); ++i) {
      MILLRACE_RETURN_IF_ERROR(
          ReadSteps((*list)[i], StrCat(before, inner, "[", i, "]."), inner, kinds, steps));
    }
    return absl::OkStatus();
  }
  const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const Kind<Step>& known) { return known.type == type; });
  if (kind == kinds.end()) {
    std::vector<std::string_view> known = {"Sequence"};
    for (const Kind<Step>& one : kinds) known.push_back(one.type);
    return fields.Unsupported(
        "type",
        StrCat("\"", Printable(type), "\" is not supported (supported: ", JoinList(known), ")"));
  }
  MILLRACE_RETURN_IF_ERROR(kind->read(fields, steps));
  if (steps->size() > kMaxSteps) return fields.Bad("type", StrCat("is one of over ", kMaxSteps));
  return absl::OkStatus();
}

template <typename Step>
Reader<Step> Always(Step step) {
  return [step](const JsonFields&, std::vector<Step>* steps) {
    steps->emplace_back(step);
    return absl::OkStatus();
  };
}

absl::StatusOr<std::string> ReadText(const JsonFields& fields, std::string_view name) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, fields.String(name));
  if (text.size() > kMaxTextBytes) {
    return fields.Bad(name, StrCat("has ", text.size(), " bytes, at most ", kMaxTextBytes));
  }
  return std::string(text);
}

// A field of one character.
absl::StatusOr<std::string> ReadCharacter(const JsonFields& fields, std::string_view name) {
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ReadText(fields, name));
  const auto first_bytes =
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
  if (first_bytes != 1) {
    return fields.Bad(name, StrCat("is \"", Printable(text), "\", must be one character"));
  }
  return text;
}

// {"String": ...} or {"Regex": ...}
absl::StatusOr<TextPattern> ReadPattern(const JsonFields& fields) {
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields pattern, fields.Object("pattern"));
  const bool regex = pattern.Find("Regex") != nullptr;
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ReadText(pattern, regex ? "Regex" : "String"));
  return TextPattern{regex, std::move(text)};
}

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonFields& fields, std::string_view otherwise) {
  std::string_view name = otherwise;
  if (otherwise.empty() || fields.Find("behavior") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(name, fields.String("behavior"));
  }
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return fields.Unsupported(
      "behavior", StrCat("\"", Printable(name),
                         "\" is not supported (supported: Removed, Isolated, MergedWithPrevious, "
                         "MergedWithNext, Contiguous)"));
}

absl::Status ReadBert(const JsonFields& fields, std::vector<NormalizerSpec>* steps) {
  MILLRACE_ASSIGN_OR_RETURN(const bool clean, fields.BoolOr("clean_text", true));
  MILLRACE_ASSIGN_OR_RETURN(const bool chinese, fields.BoolOr("handle_chinese_chars", true));
  MILLRACE_ASSIGN_OR_RETURN(const bool lowercase, fields.BoolOr("lowercase", true));
  MILLRACE_ASSIGN_OR_RETURN(const bool strip, fields.BoolOr("strip_accents", lowercase));
  if (clean) steps->emplace_back(SimpleNormalizer::kCleanText);
  if (chinese) steps->emplace_back(SimpleNormalizer::kSpaceChinese);
  if (strip) {
    steps->emplace_back(SimpleNormalizer::kNfd);
    steps->emplace_back(SimpleNormalizer::kStripNonspacingMarks);
  }
  if (lowercase) steps->emplace_back(SimpleNormalizer::kLowercase);
  return absl::OkStatus();
}

absl::Status ReadStrip(const JsonFields& fields, std::vector<NormalizerSpec>* steps) {
  StripNormalizer strip;
  MILLRACE_ASSIGN_OR_RETURN(strip.left, fields.BoolOr("strip_left", true));
  MILLRACE_ASSIGN_OR_RETURN(strip.right, fields.BoolOr("strip_right", true));
  steps->emplace_back(strip);
  return absl::OkStatus();
}

// Reads a Replace of normalizers or of decoders.
template <typename Spec>
absl::Status ReadReplace(const JsonFields& fields, std::vector<Spec>* steps) {
  Replacement replace;
  MILLRACE_ASSIGN_OR_RETURN(replace.pattern, ReadPattern(fields));
  MILLRACE_ASSIGN_OR_RETURN(replace.content, ReadText(fields, "content"));
  steps->emplace_back(std::move(replace));
  return absl::OkStatus();
}

absl::Status ReadPrepend(const JsonFields& fields, std::vector<NormalizerSpec>* steps) {
  PrependNormalizer prepend;
  MILLRACE_ASSIGN_OR_RETURN(prepend.text, ReadText(fields, "prepend"));
  steps->emplace_back(std::move(prepend));
  return absl::OkStatus();
}

absl::Status ReadPrecompiled(const JsonFields& fields, std::vector<NormalizerSpec>* steps) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view base64, fields.String("precompiled_charsmap"));
  PrecompiledNormalizer precompiled;
  if (!absl::Base64Unescape(AbslView(base64), &precompiled.charsmap)) {
    return fields.Bad("precompiled_charsmap", "is not base64");
  }
  steps->emplace_back(std::move(precompiled));
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const JsonFields& fields, std::vector<PreTokenizerSpec>* steps) {
  MILLRACE_ASSIGN_OR_RETURN(const bool space, fields.BoolOr("add_prefix_space", true));
  MILLRACE_ASSIGN_OR_RETURN(const bool regex, fields.BoolOr("use_regex", true));
  if (space) steps->emplace_back(SimplePreTokenizer::kPrefixSpace);
  if (regex) steps->emplace_back(SplitPreTokenizer{{true, kGpt2Pattern}});
  steps->emplace_back(SimplePreTokenizer::kSpellBytes);
  return absl::OkStatus();
}

absl::StatusOr<PrependScheme> ReadPrependScheme(const JsonFields& fields) {
  std::string_view name = "always";
  if (fields.Find("prepend_scheme") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(name, fields.String("prepend_scheme"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const bool space, fields.BoolOr("add_prefix_space", true));
  if (name == "never" || (!space && fields.Find("prepend_scheme") == nullptr)) {
    return PrependScheme::kNever;
  }
  if (!space)
    return fields.Bad("add_prefix_space", "is false, but prepend_scheme is not \"never\"");
  if (name == "first") return PrependScheme::kFirst;
  if (name == "always") return PrependScheme::kAlways;
  return fields.Unsupported(
      "prepend_scheme",
      StrCat("\"", Printable(name), "\" is not supported (supported: always, first, never)"));
}

absl::Status ReadMetaspace(const JsonFields& fields, std::vector<PreTokenizerSpec>* steps) {
  MetaspacePreTokenizer metaspace;
  MILLRACE_ASSIGN_OR_RETURN(metaspace.replacement, ReadCharacter(fields, "replacement"));
  MILLRACE_ASSIGN_OR_RETURN(metaspace.scheme, ReadPrependScheme(fields));
  MILLRACE_ASSIGN_OR_RETURN(const bool split, fields.BoolOr("split", true));
  SplitPreTokenizer at_replacement{{false, metaspace.replacement}, SplitBehavior::kMergedWithNext};
  steps->emplace_back(std::move(metaspace));
  if (split) steps->emplace_back(std::move(at_replacement));
  return absl::OkStatus();
}

absl::Status ReadSplit(const JsonFields& fields, std::vector<PreTokenizerSpec>* steps) {
  SplitPreTokenizer split;
  MILLRACE_ASSIGN_OR_RETURN(split.pattern, ReadPattern(fields));
  MILLRACE_ASSIGN_OR_RETURN(split.behavior, ReadBehavior(fields, ""));
  MILLRACE_ASSIGN_OR_RETURN(split.invert, fields.BoolOr("invert", false));
  steps->emplace_back(std::move(split));
  return absl::OkStatus();
}

absl::Status ReadDelimiter(const JsonFields& fields, std::vector<PreTokenizerSpec>* steps) {
  MILLRACE_ASSIGN_OR_RETURN(std::string delimiter, ReadCharacter(fields, "delimiter"));
  steps->emplace_back(SplitPreTokenizer{{false, std::move(delimiter)}, SplitBehavior::kRemoved});
  return absl::OkStatus();
}

absl::Status ReadPunctuation(const JsonFields& fields, std::vector<PreTokenizerSpec>* steps) {
  MILLRACE_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(fields, "Isolated"));
  steps->emplace_back(SplitPreTokenizer{{true, kPunctuationPattern}, behavior});
  return absl::OkStatus();
}

absl::Status ReadDigits(const JsonFields& fields, std::vector<PreTokenizerSpec>* steps) {
  MILLRACE_ASSIGN_OR_RETURN(const bool individual, fields.BoolOr("individual_digits", false));
  steps->emplace_back(SplitPreTokenizer{
      {true, kDigitPattern}, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  return absl::OkStatus();
}

absl::Status ReadFixedLength(const JsonFields& fields, std::vector<PreTokenizerSpec>* steps) {
  FixedLengthPreTokenizer fixed{5};
  if (fields.Find("length") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t length, fields.Int("length", 1, INT32_MAX));
    fixed.length = static_cast<size_t>(length);
  }
  steps->emplace_back(fixed);
  return absl::OkStatus();
}

// ["[SEP]", 102]
absl::StatusOr<int32_t> ReadNamedId(const JsonFields& fields, std::string_view name) {
  const Json* pair = fields.Find(name);
  const bool two = pair != nullptr && pair->is_array() && pair->size() == 2;
  if (!two || !(*pair)[1].is_number_unsigned() || (*pair)[1].get<uint64_t>() > kMaxTokenizerId) {
    return fields.Bad(name, StrCat("must be a token's text and its id, at most ", kMaxTokenizerId));
  }
  return (*pair)[1].get<int32_t>();
}

using Frame = std::vector<std::optional<int32_t>>;

absl::Status ReadClsSep(const JsonFields& fields, std::vector<Frame>* steps) {
  MILLRACE_ASSIGN_OR_RETURN(const int32_t cls, ReadNamedId(fields, "cls"));
  MILLRACE_ASSIGN_OR_RETURN(const int32_t sep, ReadNamedId(fields, "sep"));
  steps->push_back({cls, std::nullopt, sep});
  return absl::OkStatus();
}

absl::Status ReadTemplate(const JsonFields& fields, std::vector<Frame>* steps) {
  const Json* single = fields.Find("single");
  if (single == nullptr || !single->is_array()) return fields.Bad("single", "must be a list");
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields specials, fields.Object("special_tokens"));
  Frame frame;
  for (const Json& piece : *single) {
    const JsonFields parts(piece, "tokenizer.json: post_processor.single: ");
    if (!piece.is_object()) return fields.Bad("single", "must be a list of objects");
    if (parts.Find("Sequence") != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const JsonFields sequence, parts.Object("Sequence"));
      MILLRACE_RETURN_IF_ERROR(sequence.Refuse("id", {"A"}));
      frame.push_back(std::nullopt);
      continue;
    }
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields token, parts.Object("SpecialToken"));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, token.String("id"));
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields special, specials.Object(name));
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                              special.Ints("ids", 0, kMaxTokenizerId));
    for (const int64_t id : ids) frame.push_back(static_cast<int32_t>(id));
    if (frame.size() > kMaxFrame) return fields.Bad("single", StrCat("has over ", kMaxFrame));
  }
  steps->emplace_back(std::move(frame));
  return absl::OkStatus();
}

absl::Status ReadWordPieceDecoder(const JsonFields& fields, std::vector<DecoderSpec>* steps) {
  WordPieceDecoder decoder;
  MILLRACE_ASSIGN_OR_RETURN(decoder.prefix, ReadText(fields, "prefix"));
  MILLRACE_ASSIGN_OR_RETURN(decoder.cleanup, fields.BoolOr("cleanup", true));
  steps->emplace_back(std::move(decoder));
  return absl::OkStatus();
}

absl::Status ReadMetaspaceDecoder(const JsonFields& fields, std::vector<DecoderSpec>* steps) {
  MetaspaceDecoder decoder;
  MILLRACE_ASSIGN_OR_RETURN(decoder.replacement, ReadCharacter(fields, "replacement"));
  MILLRACE_ASSIGN_OR_RETURN(const PrependScheme scheme, ReadPrependScheme(fields));
  decoder.prepended = scheme != PrependScheme::kNever;
  steps->emplace_back(std::move(decoder));
  return absl::OkStatus();
}

absl::Status ReadSuffixDecoder(const JsonFields& fields, std::vector<DecoderSpec>* steps) {
  SuffixDecoder decoder;
  MILLRACE_ASSIGN_OR_RETURN(decoder.suffix, ReadText(fields, "suffix"));
  steps->emplace_back(std::move(decoder));
  return absl::OkStatus();
}

absl::Status ReadStripDecoder(const JsonFields& fields, std::vector<DecoderSpec>* steps) {
  StripDecoder decoder;
  MILLRACE_ASSIGN_OR_RETURN(decoder.content, ReadCharacter(fields, "content"));
  MILLRACE_ASSIGN_OR_RETURN(const int64_t start, fields.Int("start", 0, INT32_MAX));
  MILLRACE_ASSIGN_OR_RETURN(const int64_t stop, fields.Int("stop", 0, INT32_MAX));
  decoder.start = static_cast<size_t>(start);
  decoder.stop = static_cast<size_t>(stop);
  steps->emplace_back(std::move(decoder));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<NormalizerSpec>> ReadNormalizers(const Json& value,
                                                            const std::string& before) {
  using Simple = SimpleNormalizer;
  const auto always = [](Simple step) { return Always<NormalizerSpec>(step); };
  const std::vector<Kind<NormalizerSpec>> kinds = {
      {"BertNormalizer", ReadBert},
      {"ByteLevel", always(Simple::kSpellBytes)},
      {"Lowercase", always(Simple::kLowercase)},
      {"NFC", always(Simple::kNfc)},
      {"NFD", always(Simple::kNfd)},
      {"NFKC", always(Simple::kNfkc)},
      {"NFKD", always(Simple::kNfkd)},
      {"Nmt", always(Simple::kNmt)},
      {"Precompiled", ReadPrecompiled},
      {"Prepend", ReadPrepend},
      {"Replace", ReadReplace<NormalizerSpec>},
      {"Strip", ReadStrip},
      {"StripAccents", always(Simple::kStripMarks)},
  };
  std::vector<NormalizerSpec> steps;
  MILLRACE_RETURN_IF_ERROR(ReadSteps(value, before, "normalizers", kinds, &steps));
  return steps;
}

absl::StatusOr<std::vector<PreTokenizerSpec>> ReadPreTokenizers(const Json& value,
                                                                const std::string& before) {
  const PreTokenizerSpec at_space =
      SplitPreTokenizer{{true, kWhiteSpacePattern}, SplitBehavior::kRemoved};
  const PreTokenizerSpec words =
      SplitPreTokenizer{{true, kWordPattern}, SplitBehavior::kRemoved, /*invert=*/true};
  const auto bert = [&](const JsonFields&, std::vector<PreTokenizerSpec>* steps) {
    steps->emplace_back(at_space);
    steps->emplace_back(SplitPreTokenizer{{true, kPunctuationPattern}, SplitBehavior::kIsolated});
    return absl::OkStatus();
  };
  const std::vector<Kind<PreTokenizerSpec>> kinds = {
      {"BertPreTokenizer", bert},
      {"ByteLevel", ReadByteLevel},
      {"CharDelimiterSplit", ReadDelimiter},
      {"Digits", ReadDigits},
      {"FixedLength", ReadFixedLength},
      {"Metaspace", ReadMetaspace},
      {"Punctuation", ReadPunctuation},
      {"Split", ReadSplit},
      {"UnicodeScripts", Always<PreTokenizerSpec>(SimplePreTokenizer::kUnicodeScripts)},
      {"Whitespace", Always(words)},
      {"WhitespaceSplit", Always(at_space)},
  };
  std::vector<PreTokenizerSpec> steps;
  MILLRACE_RETURN_IF_ERROR(ReadSteps(value, before, "pretokenizers", kinds, &steps));
  return steps;
}

absl::StatusOr<Frame> ReadFrame(const Json& value, const std::string& before) {
  const auto nothing = [](const JsonFields&, std::vector<Frame>*) { return absl::OkStatus(); };
  const std::vector<Kind<Frame>> kinds = {
      {"BertProcessing", ReadClsSep},
      {"ByteLevel", nothing},  // moves offsets alone
      {"RobertaProcessing", ReadClsSep},
      {"TemplateProcessing", ReadTemplate},
  };
  std::vector<Frame> frames;
  MILLRACE_RETURN_IF_ERROR(ReadSteps(value, before, "processors", kinds, &frames));
  // A second one would take the first one's special tokens for its first text.
  if (frames.size() > 1) {
    return absl::UnimplementedError(
        StrCat(before, "processors: ", frames.size(), " that add tokens, at most 1 is supported"));
  }
  return frames.empty() ? Frame{std::nullopt} : std::move(frames[0]);
}

absl::StatusOr<std::vector<DecoderSpec>> ReadDecoders(const Json& value,
                                                      const std::string& before) {
  const auto always = [](SimpleDecoder step) { return Always<DecoderSpec>(step); };
  const std::vector<Kind<DecoderSpec>> kinds = {
      {"BPEDecoder", ReadSuffixDecoder},
      {"ByteFallback", always(SimpleDecoder::kByteFallback)},
      {"ByteLevel", always(SimpleDecoder::kByteLevel)},
      {"Fuse", always(SimpleDecoder::kFuse)},
      {"Metaspace", ReadMetaspaceDecoder},
      {"Replace", ReadReplace<DecoderSpec>},
      {"Strip", ReadStripDecoder},
      {"WordPiece", ReadWordPieceDecoder},
  };
  std::vector<DecoderSpec> steps;
  MILLRACE_RETURN_IF_ERROR(ReadSteps(value, before, "decoders", kinds, &steps));
  return steps;
}

}  // namespace millrace
