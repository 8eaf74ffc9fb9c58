#include "text/tokenizer/pre_tokenizer.h"

#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/tokenizer/byte_spelling.h"
#include "text/tokenizer/text_pattern.h"
#include "text/tokenizer/unicode_forms.h"
#include "text/utf8.h"

namespace millrace {
namespace {

using Emit = PreTokenizer::Emit;

// Turns matches and what lies between them into pieces.
class Splitter {
 public:
  Splitter(SplitBehavior behavior, TextPiece piece, Emit emit)
      : behavior_(behavior), piece_(piece), emit_(emit) {}

  // The next part of the piece, perhaps empty.
  absl::Status Add(size_t begin, size_t end, bool match) {
    bool join = false;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        return match ? absl::OkStatus() : Give(begin, end);
      case SplitBehavior::kIsolated:
        return Give(begin, end);
      case SplitBehavior::kContiguous:
        join = match == held_match_;
        break;
      case SplitBehavior::kMergedWithPrevious:
        join = match && !held_match_;
        break;
      case SplitBehavior::kMergedWithNext:
        join = !match && held_match_;
        break;
    }
    if (!join || !holds_) {
      MILLRACE_RETURN_IF_ERROR(Finish());
      held_begin_ = begin;
    }
    held_end_ = end;
    held_match_ = match;
    holds_ = true;
    return absl::OkStatus();
  }

  absl::Status Finish() { return holds_ ? Give(held_begin_, held_end_) : absl::OkStatus(); }

 private:
  absl::Status Give(size_t begin, size_t end) {
    if (begin == end) return absl::OkStatus();
    return emit_(piece_.Part(begin, end - begin));
  }

  const SplitBehavior behavior_;
  const TextPiece piece_;
  const Emit emit_;
  bool holds_ = false;  // a part that may still grow
  bool held_match_ = false;
  size_t held_begin_ = 0;
  size_t held_end_ = 0;
};

class Split : public PreTokenizer::Step {
 public:
  Split(TextMatcher matcher, SplitBehavior behavior, bool invert)
      : matcher_(std::move(matcher)), behavior_(behavior), invert_(invert) {}

  absl::Status Run(TextPiece piece, Emit emit) const override {
    Splitter splitter(behavior_, piece, emit);
    size_t at = 0;
    MILLRACE_RETURN_IF_ERROR(matcher_.ForEach(piece.text, [&](TextMatcher::Match match) {
      if (at != match.begin) {
        MILLRACE_RETURN_IF_ERROR(splitter.Add(at, match.begin, /*match=*/invert_));
      }
      at = match.end;
      return splitter.Add(match.begin, match.end, /*match=*/!invert_);
    }));
    if (at != piece.text.size()) {
      MILLRACE_RETURN_IF_ERROR(splitter.Add(at, piece.text.size(), /*match=*/invert_));
    }
    return splitter.Finish();
  }

 private:
  TextMatcher matcher_;
  SplitBehavior behavior_;
  bool invert_;
};

class PrefixSpace : public PreTokenizer::Step {
 public:
  absl::Status Run(TextPiece piece, Emit emit) const override {
    if (piece.text[0] == ' ') return emit(piece);
    const std::string text = StrCat(" ", piece.text);
    return emit({text, piece.first_bytes > 0 ? piece.first_bytes + 1 : 0});
  }
};

class SpellBytes : public PreTokenizer::Step {
 public:
  absl::Status Run(TextPiece piece, Emit emit) const override {
    std::string text;
    AppendByteSpelling(piece.text.substr(0, piece.first_bytes), &text);
    const size_t first_bytes = text.size();
    AppendByteSpelling(piece.text.substr(piece.first_bytes), &text);
    return emit({text, first_bytes});
  }
};

class Metaspace : public PreTokenizer::Step {
 public:
  explicit Metaspace(const MetaspacePreTokenizer& spec) : spec_(spec) {}

  absl::Status Run(TextPiece piece, Emit emit) const override {
    std::string text;
    const bool there = piece.text[0] == ' ' || piece.text.starts_with(spec_.replacement);
    if (!there && (spec_.scheme == PrependScheme::kAlways ||
                   (spec_.scheme == PrependScheme::kFirst && piece.first_bytes > 0))) {
      text = spec_.replacement;
    }
    size_t first_bytes = 0;
    for (size_t i = 0; i < piece.text.size(); ++i) {
      if (piece.text[i] == ' ') {
        text += spec_.replacement;
      } else {
        text += piece.text[i];
      }
      if (i < piece.first_bytes) first_bytes = text.size();
    }
    return emit({text, first_bytes});
  }

 private:
  MetaspacePreTokenizer spec_;
};

class FixedLength : public PreTokenizer::Step {
 public:
  explicit FixedLength(size_t length) : length_(length) {}

  absl::Status Run(TextPiece piece, Emit emit) const override {
    for (size_t begin = 0, end = 0; begin < piece.text.size(); begin = end) {
      for (size_t i = 0; i < length_ && end < piece.text.size(); ++i) {
        end += FirstUtf8Unit(piece.text.substr(end)).size;
      }
      MILLRACE_RETURN_IF_ERROR(emit(piece.Part(begin, end - begin)));
    }
    return absl::OkStatus();
  }

 private:
  size_t length_;
};

// A piece begins where a script other than the last one begins. Spaces and unassigned characters
// are of any script, and are dropped where they stand first, as Hugging Face's tokenizers do.
class UnicodeScripts : public PreTokenizer::Step {
 public:
  absl::Status Run(TextPiece piece, Emit emit) const override {
    size_t begin = 0;
    int last = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8Character character = FirstCharacter(piece.text.substr(at));
      const int script = ScriptOf(character.code);
      if (script != 0 && script != last) {
        if (last != 0) MILLRACE_RETURN_IF_ERROR(emit(piece.Part(begin, at - begin)));
        begin = at;
        last = script;
      }
      at += character.size;
    }
    return last == 0 ? absl::OkStatus() : emit(piece.Part(begin, piece.text.size() - begin));
  }
};

using MadeStep = absl::StatusOr<std::unique_ptr<const PreTokenizer::Step>>;

struct MakeStep {
  MadeStep operator()(SimplePreTokenizer spec) const {
    switch (spec) {
      case SimplePreTokenizer::kPrefixSpace:
        return std::make_unique<PrefixSpace>();
      case SimplePreTokenizer::kSpellBytes:
        return std::make_unique<SpellBytes>();
      case SimplePreTokenizer::kUnicodeScripts:
        break;
    }
    return std::make_unique<UnicodeScripts>();
  }
  MadeStep operator()(const SplitPreTokenizer& spec) const {
    MILLRACE_ASSIGN_OR_RETURN(TextMatcher matcher, TextMatcher::Create(spec.pattern));
    return std::make_unique<Split>(std::move(matcher), spec.behavior, spec.invert);
  }
  MadeStep operator()(const MetaspacePreTokenizer& spec) const {
    return std::make_unique<Metaspace>(spec);
  }
  MadeStep operator()(const FixedLengthPreTokenizer& spec) const {
    return std::make_unique<FixedLength>(spec.length);
  }
};

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(absl::Span<const PreTokenizerSpec> specs) {
  PreTokenizer pre_tokenizer;
  for (const PreTokenizerSpec& spec : specs) {
    MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<const Step> step, std::visit(MakeStep(), spec));
    pre_tokenizer.steps_.push_back(std::move(step));
  }
  return pre_tokenizer;
}

absl::Status PreTokenizer::Run(size_t step, TextPiece piece, Emit emit) const {
  if (step == steps_.size()) return emit(piece);
  return steps_[step]->Run(piece, [&](TextPiece part) { return Run(step + 1, part, emit); });
}

}  // namespace millrace
