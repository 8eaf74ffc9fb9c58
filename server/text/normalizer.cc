#include "server/text/normalizer.h"

#include <optional>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "server/text/byte_spelling.h"
#include "server/text/precompiled_charsmap.h"
#include "server/text/text_pattern.h"
#include "server/text/unicode_forms.h"
#include "server/text/utf8.h"

namespace millrace {
namespace {

// Replaces each character by what `map` appends for it.
template <typename Map>
void MapCharacters(NormalizedText* text, Map map) {
  std::string out;
  out.reserve(text->text.size());
  for (std::string_view rest = text->text; !rest.empty();) {
    const Utf8Character character = FirstCharacter(rest);
    map(character.code, rest.substr(0, character.size), &out);
    if (rest.size() == text->text.size() && out.empty()) text->at_start = false;
    rest.remove_prefix(character.size);
  }
  text->text = std::move(out);
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

class Simple : public Normalizer::Step {
 public:
  explicit Simple(SimpleNormalizer kind) : kind_(kind) {}

  absl::Status Run(NormalizedText* text) const override {
    switch (kind_) {
      case SimpleNormalizer::kNfc:
        text->text = NormalizeUnicode(text->text, /*compatibility=*/false, /*compose=*/true);
        break;
      case SimpleNormalizer::kNfd:
        text->text = NormalizeUnicode(text->text, /*compatibility=*/false, /*compose=*/false);
        break;
      case SimpleNormalizer::kNfkc:
        text->text = NormalizeUnicode(text->text, /*compatibility=*/true, /*compose=*/true);
        break;
      case SimpleNormalizer::kNfkd:
        text->text = NormalizeUnicode(text->text, /*compatibility=*/true, /*compose=*/false);
        break;
      case SimpleNormalizer::kLowercase:
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
        AppendByteSpelling(text->text, &spelling);
        text->text = std::move(spelling);
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
      rest.remove_prefix(FirstCharacter(rest).size);
      text->at_start = false;
    }
    while (spec_.right && !rest.empty()) {
      size_t last = rest.size() - 1;
      while (last > 0 && (rest[last] & 0xc0) == 0x80) --last;
      if (!IsUnicodeSpace(FirstCharacter(rest.substr(last)).code)) break;
      rest = rest.substr(0, last);
    }
    text->text = std::string(rest);
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
    MILLRACE_RETURN_IF_ERROR(matcher_.ForEach(text->text, [&](TextMatcher::Match match) {
      out.append(text->text, at, match.begin - at);
      out += content_;
      at = match.end;
      // What replaces several characters stems from the last of them.
      if (match.begin == 0 && (content_.empty() || match.end > FirstUtf8Unit(text->text).size)) {
        text->at_start = text->at_start && match.end == 0;
      }
      return out.size() <= Normalizer::kMaxBytes
                 ? absl::OkStatus()
                 : absl::InvalidArgumentError("prompt: the tokenizer makes it too long");
    }));
    out.append(text->text, at);
    text->text = std::move(out);
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
    if (!text->text.empty()) text->text.insert(0, text_);
    return absl::OkStatus();
  }

 private:
  std::string text_;
};

class Precompiled : public Normalizer::Step {
 public:
  explicit Precompiled(PrecompiledCharsmap charsmap) : charsmap_(std::move(charsmap)) {}

  absl::Status Run(NormalizedText* text) const override {
    text->text = charsmap_.Apply(text->text, Normalizer::kMaxBytes);
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
};

}  // namespace

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
