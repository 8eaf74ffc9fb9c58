#include "text/tokenizer/token_decoder.h"

#include <memory>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/tokenizer/byte_spelling.h"
#include "text/tokenizer/byte_tokens.h"
#include "text/tokenizer/text_pattern.h"

namespace millrace {
namespace {

void ReplaceAll(std::string_view from, std::string_view to, std::string* text) {
  if (from.empty()) return;
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size()) {
    text->replace(at, from.size(), to);
  }
}

// English as it is written: no space before a full stop and the like.
void CleanUp(std::string* text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules) ReplaceAll(from, to, text);
}

// At most so many of a character off either end.
void StripEnds(const StripDecoder& strip, std::string* text) {
  for (size_t i = 0; i < strip.start && text->starts_with(strip.content); ++i) {
    text->erase(0, strip.content.size());
  }
  for (size_t i = 0; i < strip.stop && text->ends_with(strip.content); ++i) {
    text->resize(text->size() - strip.content.size());
  }
}

void DecodeSimple(SimpleDecoder kind, std::string* text) {
  if (kind == SimpleDecoder::kByteLevel) {
    std::string bytes;
    if (AppendSpelledBytes(*text, &bytes)) *text = std::move(bytes);
  } else if (kind == SimpleDecoder::kByteFallback) {
    if (const std::optional<uint8_t> byte = ByteOfToken(*text)) {
      *text = std::string(1, static_cast<char>(*byte));
    }
  }
}

void DecodeWordPiece(const WordPieceDecoder& decoder, bool first, std::string* text) {
  if (!first) {
    if (text->starts_with(decoder.prefix)) {
      text->erase(0, decoder.prefix.size());
    } else {
      text->insert(0, " ");
    }
  }
  if (decoder.cleanup) CleanUp(text);
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Create(
    const std::optional<std::vector<DecoderSpec>>& specs) {
  TokenDecoder decoder;
  if (!specs) {
    decoder.steps_.push_back([](bool first, std::string* text) {
      if (!first) text->insert(0, " ");
      return absl::OkStatus();
    });
    return decoder;
  }
  bool fused = false;
  for (const DecoderSpec& spec : *specs) MILLRACE_RETURN_IF_ERROR(decoder.Add(spec, &fused));
  return decoder;
}

absl::Status TokenDecoder::Add(const DecoderSpec& spec, bool* fused) {
  if (const auto* simple = std::get_if<SimpleDecoder>(&spec);
      simple && *simple == SimpleDecoder::kFuse) {
    *fused = true;
    return absl::OkStatus();
  }
  if (*fused) {
    const auto* strip = std::get_if<StripDecoder>(&spec);
    if (strip == nullptr || strip->stop != 0 || !ends_.strip.empty()) {
      return absl::UnimplementedError(
          "tokenizer: decoder: after Fuse or ByteLevel only a Strip of the start is supported");
    }
    ends_.strip = strip->content;
    ends_.strip_at_start = strip->start;
    return absl::OkStatus();
  }
  if (const auto* simple = std::get_if<SimpleDecoder>(&spec)) {
    *fused = *simple == SimpleDecoder::kByteLevel;  // it joins the tokens, too
    steps_.push_back([kind = *simple](bool, std::string* text) {
      DecodeSimple(kind, text);
      return absl::OkStatus();
    });
  } else if (const auto* word_piece = std::get_if<WordPieceDecoder>(&spec)) {
    steps_.push_back([decoder = *word_piece](bool first, std::string* text) {
      DecodeWordPiece(decoder, first, text);
      return absl::OkStatus();
    });
  } else if (const auto* metaspace = std::get_if<MetaspaceDecoder>(&spec)) {
    steps_.push_back([decoder = *metaspace](bool first, std::string* text) {
      ReplaceAll(decoder.replacement, first && decoder.prepended ? "" : " ", text);
      return absl::OkStatus();
    });
  } else if (const auto* suffix = std::get_if<SuffixDecoder>(&spec)) {
    ends_.drop_end_space = true;
    steps_.push_back([suffix = suffix->suffix](bool, std::string* text) {
      ReplaceAll(suffix, " ", text);
      return absl::OkStatus();
    });
  } else if (const auto* strip = std::get_if<StripDecoder>(&spec)) {
    steps_.push_back([strip = *strip](bool, std::string* text) {
      StripEnds(strip, text);
      return absl::OkStatus();
    });
  } else {
    const auto& replace = std::get<Replacement>(spec);
    MILLRACE_ASSIGN_OR_RETURN(TextMatcher made, TextMatcher::Create(replace.pattern));
    const auto matcher = std::make_shared<const TextMatcher>(std::move(made));
    steps_.push_back([matcher, content = replace.content](bool, std::string* text) {
      std::string out;
      size_t at = 0;
      MILLRACE_RETURN_IF_ERROR(matcher->ForEach(*text, [&](TextMatcher::Match match) {
        out.append(*text, at, match.begin - at).append(content);
        at = match.end;
        return absl::OkStatus();
      }));
      *text = out.append(*text, at);
      return absl::OkStatus();
    });
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenDecoder::Decode(std::string_view token, bool first) const {
  std::string text(token);
  for (const Step& step : steps_) MILLRACE_RETURN_IF_ERROR(step(first, &text));
  return text;
}

}  // namespace millrace
