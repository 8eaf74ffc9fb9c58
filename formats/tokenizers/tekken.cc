#include "formats/tokenizers/tekken.h"

#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/json/json_fields.h"
#include "formats/tokenizers/score_merges.h"

namespace millrace {
namespace {

constexpr JsonLimits kLimits = {.depth = 32, .values = 1 << 24};
constexpr int64_t kMaxTokens = 1 << 22;
constexpr size_t kMaxTokenBytes = 1 << 16;
constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr char kBos[] = "<s>";
constexpr char kEos[] = "</s>";
constexpr char kPad[] = "<pad>";

// The special tokens of files that do not list them (up to version 7).
constexpr const char* kOldSpecialTokens[] = {"<unk>",
                                             kBos,
                                             kEos,
                                             "[INST]",
                                             "[/INST]",
                                             "[AVAILABLE_TOOLS]",
                                             "[/AVAILABLE_TOOLS]",
                                             "[TOOL_RESULTS]",
                                             "[/TOOL_RESULTS]",
                                             "[TOOL_CALLS]",
                                             "[IMG]",
                                             kPad,
                                             "[IMG_BREAK]",
                                             "[IMG_END]",
                                             "[PREFIX]",
                                             "[MIDDLE]",
                                             "[SUFFIX]",
                                             "[SYSTEM_PROMPT]",
                                             "[/SYSTEM_PROMPT]",
                                             "[TOOL_CONTENT]"};

// GPT-2's characters for bytes: printable ones of Latin-1 stand for themselves, the others follow
// from U+0100 on.
std::array<std::string, 256> ByteSpellings() {
  std::array<std::string, 256> spellings;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const uint32_t code = printable ? byte : next++;
    if (code < 0x80) {
      spellings[byte] = {static_cast<char>(code)};
    } else {
      spellings[byte] = {static_cast<char>(0xc0 | code >> 6),
                         static_cast<char>(0x80 | (code & 63))};
    }
  }
  return spellings;
}

// The parts of the file, and errors that name it.
class TekkenReader {
 public:
  TekkenReader(const Json& document, const std::string& name)
      : before_(StrCat(name, ": ")), fields_(document, before_) {}

  absl::StatusOr<TokenizerSpec> Read() {
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields config, fields_.Object("config"));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view pattern, config.String("pattern"));
    if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
      return config.Bad("pattern",
                        StrCat("has ", pattern.size(), " bytes, must be 1 to ", kMaxPatternBytes));
    }
    MILLRACE_ASSIGN_OR_RETURN(const int64_t special,
                              config.Int("default_num_special_tokens", 3, kMaxTokens));
    MILLRACE_ASSIGN_OR_RETURN(const int64_t size,
                              config.Int("default_vocab_size", special + 256, kMaxTokens));
    MILLRACE_RETURN_IF_ERROR(ReadSpecialTokens(special));
    MILLRACE_RETURN_IF_ERROR(ReadVocabulary(special, size - special));
    spec_.model = BpeModelSpec{
        .merges = MergesByScore(spec_.vocabulary), .ignore_merges = true, .one_rank_a_token = true};
    spec_.pre_tokenizers = {SplitPreTokenizer{{true, std::string(pattern)}},
                            SimplePreTokenizer::kSpellBytes};
    spec_.decoders = {{SimpleDecoder::kByteLevel}};
    spec_.frame = {spec_.bos, std::nullopt};
    spec_.owner = texts_;
    return std::move(spec_);
  }

 private:
  absl::Status ReadSpecialTokens(int64_t count) {
    const Json* const list = fields_.Find("special_tokens");
    std::vector<std::string> texts;
    if (list == nullptr) {
      texts.assign(std::begin(kOldSpecialTokens), std::end(kOldSpecialTokens));
    } else if (!list->is_array()) {
      return fields_.Bad("special_tokens", "must be a list");
    } else {
      for (const Json& entry : *list) {
        const std::string place = StrCat("special_tokens[", texts.size(), "]");
        if (!entry.is_object()) return fields_.Bad(place, "must be an object");
        const JsonFields token(entry, StrCat(before_, place, "."));
        MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, token.String("token_str"));
        const auto rank = static_cast<int64_t>(texts.size());
        MILLRACE_RETURN_IF_ERROR(token.Int("rank", rank, rank).status());
        if (text.empty() || text.size() > kMaxTokenBytes) {
          return token.Bad("token_str",
                           StrCat("has ", text.size(), " bytes, must be 1 to ", kMaxTokenBytes));
        }
        texts.emplace_back(text);
      }
    }
    if (static_cast<int64_t>(texts.size()) > count) {
      return fields_.Bad("special_tokens",
                         StrCat("has ", texts.size(), ", but the config says ", count));
    }
    absl::flat_hash_set<std::string> seen;
    for (int64_t id = 0; id < count; ++id) {
      const bool named = id < static_cast<int64_t>(texts.size());
      std::string text = named ? texts[static_cast<size_t>(id)] : StrCat("<SPECIAL_", id, ">");
      if (!seen.insert(text).second) {
        return fields_.Bad("special_tokens", StrCat("\"", Printable(text), "\" is there twice"));
      }
      const auto token = static_cast<int32_t>(id);
      if (text == kBos) spec_.bos = token;
      if (text == kEos) spec_.eos = token;
      if (text == kPad) spec_.pad = token;
      spec_.added.push_back({.id = token, .content = std::move(text), .special = true});
    }
    if (!spec_.bos.has_value() || !spec_.eos.has_value()) {
      return fields_.Bad("special_tokens", StrCat("must have ", kBos, " and ", kEos));
    }
    spec_.end_of_generation = {*spec_.eos};
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary(int64_t first, int64_t count) {
    const Json* const list = fields_.Find("vocab");
    if (list == nullptr || !list->is_array() || static_cast<int64_t>(list->size()) < count) {
      return fields_.Bad("vocab", StrCat("must be a list of at least ", count));
    }
    const std::array<std::string, 256> spellings = ByteSpellings();
    absl::flat_hash_set<std::string_view, StringHash> seen;
    for (int64_t rank = 0; rank < count; ++rank) {
      const Json& entry = (*list)[static_cast<size_t>(rank)];
      const std::string place = StrCat("vocab[", rank, "]");
      if (!entry.is_object()) return fields_.Bad(place, "must be an object");
      const JsonFields token(entry, StrCat(before_, place, "."));
      MILLRACE_RETURN_IF_ERROR(token.Int("rank", rank, rank).status());
      MILLRACE_ASSIGN_OR_RETURN(const std::string_view base64, token.String("token_bytes"));
      std::string bytes;
      if (!absl::Base64Unescape(AbslView(base64), &bytes) || bytes.empty() ||
          bytes.size() > kMaxTokenBytes) {
        return token.Bad("token_bytes",
                         StrCat("must be base64 of 1 to ", kMaxTokenBytes, " bytes"));
      }
      if (rank < 256 && (bytes.size() != 1 || static_cast<uint8_t>(bytes[0]) != rank)) {
        return token.Bad("token_bytes", "must be its rank's byte");
      }
      std::string spelled;
      for (const char byte : bytes) spelled += spellings[static_cast<uint8_t>(byte)];
      const std::string_view text = texts_->emplace_back(std::move(spelled));
      if (!seen.insert(text).second) return token.Bad("token_bytes", "are there twice");
      spec_.vocabulary.push_back({.text = text,
                                  .id = static_cast<int32_t>(first + rank),
                                  .score = -static_cast<double>(rank)});
    }
    return absl::OkStatus();
  }

  const std::string before_;
  const JsonFields fields_;
  const std::shared_ptr<std::deque<std::string>> texts_ =
      std::make_shared<std::deque<std::string>>();
  TokenizerSpec spec_;
};

}  // namespace

absl::StatusOr<TokenizerSpec> ReadTekken(std::string_view text, const std::string& name) {
  const absl::StatusOr<Json> document = ParseJson(text, kLimits);
  if (!document.ok()) {
    return absl::InvalidArgumentError(StrCat(name, ": ", std::string(document.status().message())));
  }
  if (!document->is_object()) return absl::InvalidArgumentError(StrCat(name, ": is no object"));
  return TekkenReader(*document, name).Read();
}

}  // namespace millrace
