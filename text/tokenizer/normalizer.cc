#include "text/tokenizer/normalizer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/tokenizer/byte_spelling.h"
#include "text/tokenizer/precompiled_charsmap.h"
#include "text/tokenizer/sentencepiece_normalizer.h"
#include "text/tokenizer/text_pattern.h"
#include "text/tokenizer/unicode_forms.h"
#include "text/utf8.h"

namespace millrace {
namespace {

// Replaces each character by what `map` appends for it.
template <typename Map>
void MapCharacters(NormalizedText* text, Map map) {
  std::string out;
  out.reserve(text->text.size());
  size_t first_bytes = 0;
  for (size_t at = 0; at < text->text.size();) {
    const std::string_view rest = std::string_view(text->text).substr(at);
    const Utf8Character character = FirstCharacter(rest);
    map(character.code, rest.substr(0, character.size), &out);
    if (at < text->first_bytes) first_bytes = out.size();
    at += character.size;
  }
  *text = {std::move(out), first_bytes};
}

template <typename Drop>
void DropCharacters(NormalizedText* text, Drop drop) {
  MapCharacters(text, [&](char32_t code, std::string_view bytes, std::string* out) {
    if (!drop(code)) *out += bytes;
  });
}

// BERT's own ranges, which are not Unicode's script.
bool IsChinese(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
      {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
  for (const auto& [first, last] : kRanges) {
    if (code >= first && code <= last) return true;
  }
  return false;
}

void CleanText(char32_t code, std::string_view bytes, std::string* out) {
  if (code == '\t' || code == '\n' || code == '\r') {
    *out += ' ';
  } else if (code != 0 && code != 0xfffd && !IsControlFormatOrPrivate(code)) {
    *out += IsUnicodeSpace(code) ? " " : bytes;
  }
}

void Nmt(char32_t code, std::string_view bytes, std::string* out) {
  const bool dropped = (code >= 0x01 && code <= 0x08) || code == 0x0b ||
                       (code >= 0x0e && code <= 0x1f) || code == 0x7f || code == 0x8f ||
                       code == 0x9f;
  if (dropped) return;
  const bool space = code == 0x09 || code == 0x0a || code == 0x0c || code == 0x0d ||
                     code == 0x1680 || (code >= 0x200b && code <= 0x200f) || code == 0x2028 ||
                     code == 0x2029 || code == 0x2581 || code == 0xfeff || code == 0xfffd;
  *out += space ? " " : bytes;
}

std::string_view FirstOf(const NormalizedText& text) {
  return std::string_view(text.text).substr(0, text.first_bytes);
}

// The first character that comes out stems from the first one. A composed one stems from the first
// of its parts; a decomposed mark that another one now stands before no longer does.
void Normalize(bool compatibility, bool compose, NormalizedText* text) {
  const std::string first = NormalizeUnicode(FirstOf(*text), compatibility, compose);
  text->text = NormalizeUnicode(text->text, compatibility, compose);
  size_t end = 0;
  for (size_t at = 0; at < first.size() && end < text->text.size();) {
    const std::string_view alone = std::string_view(first).substr(at);
    const std::string_view here = std::string_view(text->text).substr(end);
    const size_t size = FirstUtf8Unit(alone).size;
    if (!compose && end > 0 && !here.starts_with(alone.substr(0, size))) break;
    at += size;
    end += FirstUtf8Unit(here).size;
  }
  text->first_bytes = end;
}

class Simple : public Normalizer::Step {
 public:
  explicit Simple(SimpleNormalizer kind) : kind_(kind) {}

  absl::Status Run(NormalizedText* text) const override {
    switch (kind_) {
      case SimpleNormalizer::kNfc:
        Normalize(/*compatibility=*/false, /*compose=*/true, text);
        break;
      case SimpleNormalizer::kNfd:
        Normalize(/*compatibility=*/false, /*compose=*/false, text);
        break;
      case SimpleNormalizer::kNfkc:
        Normalize(/*compatibility=*/true, /*compose=*/true, text);
        break;
      case SimpleNormalizer::kNfkd:
        Normalize(/*compatibility=*/true, /*compose=*/false, text);
        break;
      case SimpleNormalizer::kLowercase:
        text->first_bytes = LowercaseUnicode(FirstOf(*text)).size();
        text->text = LowercaseUnicode(text->text);
        break;
      case SimpleNormalizer::kStripMarks:
        DropCharacters(text, IsMark);
        break;
      case SimpleNormalizer::kStripNonspacingMarks:
        DropCharacters(text, IsNonspacingMark);
        break;
      case SimpleNormalizer::kCleanText:
        MapCharacters(text, CleanText);
        break;
      case SimpleNormalizer::kSpaceChinese:
        MapCharacters(text, [](char32_t code, std::string_view bytes, std::string* out) {
          *out += IsChinese(code) ? StrCat(" ", bytes, " ") : std::string(bytes);
        });
        break;
      case SimpleNormalizer::kNmt:
        MapCharacters(text, Nmt);
        break;
      case SimpleNormalizer::kSpellBytes: {
        std::string spelling;
        AppendByteSpelling(FirstOf(*text), &spelling);
        const size_t first_bytes = spelling.size();
        AppendByteSpelling(std::string_view(text->text).substr(text->first_bytes), &spelling);
        *text = {std::move(spelling), first_bytes};
        break;
      }
    }
    return absl::OkStatus();
  }

 private:
  SimpleNormalizer kind_;
};

class Strip : public Normalizer::Step {
 public:
  explicit Strip(const StripNormalizer& spec) : spec_(spec) {}

  absl::Status Run(NormalizedText* text) const override {
    std::string_view rest = text->text;
    while (spec_.left && !rest.empty() && IsUnicodeSpace(FirstCharacter(rest).code)) {
      const size_t size = FirstCharacter(rest).size;
      rest.remove_prefix(size);
      text->first_bytes -= std::min(text->first_bytes, size);
    }
    while (spec_.right && !rest.empty()) {
      size_t last = rest.size() - 1;
      while (last > 0 && (rest[last] & 0xc0) == 0x80) --last;
      if (!IsUnicodeSpace(FirstCharacter(rest.substr(last)).code)) break;
      rest = rest.substr(0, last);
    }
    text->text = std::string(rest);
    text->first_bytes = std::min(text->first_bytes, text->text.size());
    return absl::OkStatus();
  }

 private:
  StripNormalizer spec_;
};

class Replace : public Normalizer::Step {
 public:
  Replace(TextMatcher matcher, std::string content)
      : matcher_(std::move(matcher)), content_(std::move(content)) {}

  absl::Status Run(NormalizedText* text) const override {
    if (text->text.empty()) return absl::OkStatus();
    std::string out;
    size_t at = 0;
    size_t first_bytes = 0;
    const auto keep = [&](size_t end) {
      if (at < text->first_bytes) {
        first_bytes = out.size() + std::min(end, text->first_bytes) - at;
      }
      out.append(text->text, at, end - at);
    };
    MILLRACE_RETURN_IF_ERROR(matcher_.ForEach(text->text, [&](TextMatcher::Match match) {
      keep(match.begin);
      out += content_;
      at = match.end;
      // The content stems from the last of the characters that it replaces.
      if (match.end <= text->first_bytes) first_bytes = out.size();
      return out.size() <= Normalizer::kMaxBytes
                 ? absl::OkStatus()
                 : absl::InvalidArgumentError("prompt: the tokenizer makes it too long");
    }));
    keep(text->text.size());
    *text = {std::move(out), first_bytes};
    return absl::OkStatus();
  }

 private:
  TextMatcher matcher_;
  std::string content_;
};

class Prepend : public Normalizer::Step {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}

  absl::Status Run(NormalizedText* text) const override {
    if (text->text.empty()) return absl::OkStatus();
    text->text.insert(0, text_);
    if (text->first_bytes > 0) text->first_bytes += text_.size();
    return absl::OkStatus();
  }

 private:
  std::string text_;
};

class Precompiled : public Normalizer::Step {
 public:
  explicit Precompiled(PrecompiledCharsmap charsmap) : charsmap_(std::move(charsmap)) {}

  absl::Status Run(NormalizedText* text) const override {
    text->text = charsmap_.Apply(text->text, Normalizer::kMaxBytes, &text->first_bytes);
    return absl::OkStatus();
  }

 private:
  PrecompiledCharsmap charsmap_;
};

using MadeStep = absl::StatusOr<std::unique_ptr<const Normalizer::Step>>;

struct MakeStep {
  MadeStep operator()(SimpleNormalizer spec) const { return std::make_unique<Simple>(spec); }
  MadeStep operator()(const StripNormalizer& spec) const { return std::make_unique<Strip>(spec); }
  MadeStep operator()(const Replacement& spec) const {
    MILLRACE_ASSIGN_OR_RETURN(TextMatcher matcher, TextMatcher::Create(spec.pattern));
    return std::make_unique<Replace>(std::move(matcher), spec.content);
  }
  MadeStep operator()(const PrependNormalizer& spec) const {
    return std::make_unique<Prepend>(spec.text);
  }
  MadeStep operator()(const PrecompiledNormalizer& spec) const {
    MILLRACE_ASSIGN_OR_RETURN(PrecompiledCharsmap charsmap,
                              PrecompiledCharsmap::Create(spec.charsmap));
    return std::make_unique<Precompiled>(std::move(charsmap));
  }
  MadeStep operator()(const SentencePieceNormalizer& spec) const {
    return MakeSentencePieceStep(spec);
  }
};

}  // namespace

NormalizedText UnnormalizedText(std::string_view text) {
  return {std::string(text), text.empty() ? 0 : FirstUtf8Unit(text).size};
}

absl::StatusOr<Normalizer> Normalizer::Create(absl::Span<const NormalizerSpec> specs) {
  Normalizer normalizer;
  for (const NormalizerSpec& spec : specs) {
    MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<const Step> step, std::visit(MakeStep(), spec));
    normalizer.steps_.push_back(std::move(step));
  }
  return normalizer;
}

absl::Status Normalizer::Apply(NormalizedText* text) const {
  for (const auto& step : steps_) {
    MILLRACE_RETURN_IF_ERROR(step->Run(text));
    if (text->text.size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          StrCat("prompt: the tokenizer makes it longer than ", kMaxBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
