#include "text/tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/utf8.h"

namespace millrace {
namespace {

bool SpellsBytesLast(absl::Span<const PreTokenizerSpec> steps) {
  const auto* last = steps.empty() ? nullptr : std::get_if<SimplePreTokenizer>(&steps.back());
  return last != nullptr && *last == SimplePreTokenizer::kSpellBytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> PipelineTokenizer::Create(
    const TokenizerSpec& spec) {
  std::unique_ptr<PipelineTokenizer> tokenizer(new PipelineTokenizer);
  absl::Span<const PreTokenizerSpec> steps = spec.pre_tokenizers;
  // To spell bytes as characters only to look those up would be a waste: BPE takes the bytes.
  const bool bytes = SpellsBytesLast(steps) && std::holds_alternative<BpeModelSpec>(spec.model);
  if (bytes) steps.remove_suffix(1);
  MILLRACE_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, PreTokenizer::Create(steps));
  MILLRACE_ASSIGN_OR_RETURN(tokenizer->normalizer_, Normalizer::Create(spec.normalizers));
  MILLRACE_ASSIGN_OR_RETURN(tokenizer->model_, MakeSubwordModel(spec, bytes));
  MILLRACE_RETURN_IF_ERROR(tokenizer->AddTokens(spec));
  tokenizer->frame_ = spec.frame;
  bool behind = false;
  for (const std::optional<Token>& token : spec.frame) {
    if (!token) {
      behind = true;
    } else {
      ++(behind ? tokenizer->text_frame_.closing : tokenizer->text_frame_.opening);
    }
    if (token && *token >= tokenizer->vocab_size()) {
      return absl::InvalidArgumentError(
          StrCat("tokenizer: post_processor: token ", *token, " is not in the vocabulary"));
    }
  }
  tokenizer->pair_frame_ = spec.pair_frame;
  for (const PairPart& part : spec.pair_frame) {
    if (part.token >= tokenizer->vocab_size()) {
      return absl::InvalidArgumentError(StrCat("tokenizer: post_processor: pair: token ",
                                               part.token, " is not in the vocabulary"));
    }
  }
  tokenizer->bos_ = spec.bos;
  tokenizer->eos_ = spec.eos;
  tokenizer->SetEndOfGeneration(spec.end_of_generation);
  return tokenizer;
}

absl::Status PipelineTokenizer::AddTokens(const TokenizerSpec& spec) {
  MILLRACE_ASSIGN_OR_RETURN(const TokenDecoder decoder, TokenDecoder::Create(spec.decoders));
  text_ends_ = decoder.ends();
  std::vector<AddedTokenSpec> raw, normalized;
  // Hidden, as Hugging Face's tokenizers have it, is what has a special token's own text: not one
  // whose normalized text is another.
  absl::flat_hash_set<std::string_view> special;
  for (const AddedTokenSpec& token : spec.added) {
    if (token.special) special.insert(token.content);
  }
  for (AddedTokenSpec token : spec.added) {
    if (token.normalized && !token.verbatim) {
      NormalizedText content = UnnormalizedText(token.content);
      MILLRACE_RETURN_IF_ERROR(normalizer_.Apply(&content));
      token.content = std::move(content.text);
    }
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  // By id: an added token's text goes before the vocabulary's.
  struct Text {
    std::string_view text;
    bool special = false;
  };
  std::vector<Text> texts;
  size_t total = 0;
  const auto set = [&](Token id, Text text) {
    if (texts.size() <= static_cast<size_t>(id)) texts.resize(static_cast<size_t>(id) + 1);
    texts[static_cast<size_t>(id)] = text;
    total += text.text.size();
  };
  for (const VocabularyEntry& entry : spec.vocabulary) set(entry.id, {entry.text});
  for (const auto* tokens : {&raw, &normalized}) {
    for (const AddedTokenSpec& token : *tokens) {
      set(token.id, {token.content, special.contains(token.content)});
    }
  }
  if (total > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(StrCat("tokenizer: ", total, " bytes of tokens"));
  }
  Reserve(texts.size(), total);
  for (size_t id = 0; id < texts.size(); ++id) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string later, decoder.Decode(texts[id].text, false));
    MILLRACE_ASSIGN_OR_RETURN(std::string first, decoder.Decode(texts[id].text, true));
    AddToken(later, texts[id].special);
    if (first != later) SetFirst(static_cast<Token>(id), std::move(first));
  }
  MILLRACE_ASSIGN_OR_RETURN(added_, AddedTokens::Create(std::move(raw)));
  MILLRACE_ASSIGN_OR_RETURN(normalized_added_, AddedTokens::Create(std::move(normalized)));
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::EncodeText(std::string_view text, EncodeOptions options,
                                           std::vector<Token>* tokens) const {
  for (const std::optional<Token>& token : frame_) {
    if (!token) {
      MILLRACE_RETURN_IF_ERROR(
          added_.Split(text, options.parse_special, [&](AddedTokens::Part part) {
            if (!part.token) {
              return EncodeSection(text.substr(part.begin, part.end - part.begin), part.begin == 0,
                                   options, tokens);
            }
            tokens->push_back(*part.token);
            return absl::OkStatus();
          }));
    } else if (options.add_special) {
      tokens->push_back(*token);
    }
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::EncodeSection(std::string_view text, bool at_start,
                                              EncodeOptions options,
                                              std::vector<Token>* tokens) const {
  TextPiece whole{text, text.empty() ? 0 : FirstUtf8Unit(text).size};
  NormalizedText normalized;
  if (!normalizer_.empty()) {
    normalized = UnnormalizedText(text);
    if (!at_start) normalized.first_bytes = 0;
    MILLRACE_RETURN_IF_ERROR(normalizer_.Apply(&normalized));
    MILLRACE_RETURN_IF_ERROR(CheckWanted(options.cancelled));
    whole = {normalized.text, normalized.first_bytes};
  }
  if (!at_start) whole.first_bytes = 0;
  return normalized_added_.Split(
      whole.text, options.parse_special, [&](AddedTokens::Part part) -> absl::Status {
        if (part.token) {
          tokens->push_back(*part.token);
          return absl::OkStatus();
        }
        return pre_tokenizer_->Split(whole.Part(part.begin, part.end - part.begin),
                                     [&](TextPiece piece) -> absl::Status {
                                       MILLRACE_RETURN_IF_ERROR(CheckWanted(options.cancelled));
                                       return model_->Encode(piece.text, options.cancelled, tokens);
                                     });
      });
}

}  // namespace millrace
