#include "text/tokenizer/sentencepiece_normalizer.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "text/tokenizer/precompiled_charsmap.h"
#include "text/tokenizer/special_matcher.h"
#include "text/utf8.h"

namespace millrace {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

std::vector<std::pair<std::string, Token>> Numbered(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, Token>> numbered;
  for (const std::string& text : texts) {
    numbered.emplace_back(text, static_cast<Token>(numbered.size()));
  }
  return numbered;
}

class SentencePieceStep : public Normalizer::Step {
 public:
  SentencePieceStep(const SentencePieceNormalizer& spec,
                    std::optional<PrecompiledCharsmap> charsmap)
      : spec_(spec), kept_(Numbered(spec.kept)), charsmap_(std::move(charsmap)) {}

  absl::Status Run(NormalizedText* text) const override {
    const bool first = text->first_bytes > 0;
    std::string out;
    Work work{.out = out, .behind_space = spec_.remove_extra_whitespaces};
    // The prefix depends on whether anything follows, so that it is put before the rest at the end.
    std::string_view rest = text->text;
    size_t next_kept = 0;  // how far the text up to the next kept symbol was looked at
    std::optional<SpecialMatcher::Match> kept = kept_.Find(rest);
    while (!rest.empty() && out.size() <= Normalizer::kMaxBytes) {
      if (kept.has_value() && next_kept + kept->begin == text->text.size() - rest.size()) {
        Add(rest.substr(0, kept->size), work);
        rest.remove_prefix(kept->size);
        next_kept = text->text.size() - rest.size();
        kept = kept_.Find(rest);
        continue;
      }
      rest.remove_prefix(AddCharacter(rest, work));
      // A match of the charsmap may reach into the symbol.
      if (kept.has_value() && next_kept + kept->begin < text->text.size() - rest.size()) {
        next_kept = text->text.size() - rest.size();
        kept = kept_.Find(rest);
      }
    }
    const std::string_view space = spec_.escape_whitespaces ? kSpaceMark : " ";
    const bool prefix = spec_.dummy_prefix && work.any && (first || !spec_.prefix_first_only);
    if (prefix && !spec_.suffix) out.insert(0, space);
    while (spec_.remove_extra_whitespaces && out.ends_with(space)) {
      out.erase(out.size() - space.size());
    }
    if (prefix && spec_.suffix) out += space;
    *text = {std::move(out), 0};
    return absl::OkStatus();
  }

 private:
  struct Work {
    std::string& out;
    bool behind_space;  // spaces that come are dropped
    bool any = false;   // something but leading spaces was there
  };

  // Appends what a part of the text has become.
  void Add(std::string_view part, Work& work) const {
    // Spaces in front of a text count as none, where they are removed.
    work.any = work.any || !spec_.remove_extra_whitespaces || part != " ";
    while (work.behind_space && part.starts_with(' ')) part.remove_prefix(1);
    for (const char byte : part) {
      if (byte == ' ' && spec_.escape_whitespaces) {
        work.out += kSpaceMark;
      } else {
        work.out += byte;
      }
    }
    if (!part.empty()) work.behind_space = part.ends_with(' ');
    if (!spec_.remove_extra_whitespaces) work.behind_space = false;
  }

  // Appends what the first character, or several that the map knows together, become. Returns their
  // bytes.
  size_t AddCharacter(std::string_view rest, Work& work) const {
    if (charsmap_.has_value()) {
      if (const auto known = charsmap_->FindLongest(rest)) {
        Add(known->replacement, work);
        return known->size;
      }
    }
    const size_t size = FirstUtf8Unit(rest).size;
    Add(rest.substr(0, size), work);
    return size;
  }

  const SentencePieceNormalizer spec_;
  const SpecialMatcher kept_;
  const std::optional<PrecompiledCharsmap> charsmap_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Normalizer::Step>> MakeSentencePieceStep(
    const SentencePieceNormalizer& spec) {
  std::optional<PrecompiledCharsmap> charsmap;
  if (!spec.charsmap.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(charsmap, PrecompiledCharsmap::Create(spec.charsmap));
  }
  return std::make_unique<SentencePieceStep>(spec, std::move(charsmap));
}

}  // namespace millrace
