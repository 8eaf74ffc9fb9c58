#include "loadtest/stream_chunk.h"

#include <charconv>
#include <cstring>

namespace millrace {
namespace {

// Where in a chunk a value stands, as far as anything there is read.
enum class Place {
  kRoot,
  kChoices,
  kChoice,
  kDelta,
  kToolCalls,
  kUsage,
  kDetails,
  kExtension,
  kTiers,
  kError,
  kOther
};

// Behind the names of vLLM's tiers.
constexpr std::string_view kTierEnd = "_cached_tokens";
constexpr size_t kLongestTier = 32;

Place PlaceOf(Place parent, std::string_view key) {
  switch (parent) {
    case Place::kRoot:
      if (key == "choices") return Place::kChoices;
      if (key == "usage") return Place::kUsage;
      if (key == "error") return Place::kError;
      if (key == "sglext") return Place::kExtension;  // SGLang's
      break;
    case Place::kDetails:
    case Place::kExtension:
      if (key == "cached_tokens_details") return Place::kTiers;
      break;
    case Place::kChoice:
      if (key == "delta") return Place::kDelta;
      break;
    case Place::kDelta:
      if (key == "tool_calls") return Place::kToolCalls;
      break;
    case Place::kUsage:
      if (key == "prompt_tokens_details") return Place::kDetails;
      break;
    default:
      break;
  }
  return Place::kOther;
}

bool IsText(Place parent, std::string_view key) {
  if (parent == Place::kChoice) return key == "text";
  return parent == Place::kDelta && (key == "content" || key == "refusal");
}

bool IsReasoning(Place parent, std::string_view key) {
  return parent == Place::kDelta && (key == "reasoning_content" || key == "reasoning");
}

// Returns the tier whose cached tokens a number is, "" of any other.
std::string_view TierOf(Place parent, std::string_view key) {
  if (parent == Place::kDetails && key.ends_with(kTierEnd)) {
    key.remove_suffix(kTierEnd.size());
  } else if (parent != Place::kTiers) {
    return "";
  }
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789_";
  const bool is_name =
      key.size() <= kLongestTier && key.find_first_not_of(kAllowed) == std::string_view::npos;
  return is_name ? key : "";
}

void AppendUtf8(uint32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code);
    return;
  }
  if (code < 0x800) {
    text += static_cast<char>(0xc0 | (code >> 6));
  } else {
    if (code < 0x10000) {
      text += static_cast<char>(0xe0 | (code >> 12));
    } else {
      text += static_cast<char>(0xf0 | (code >> 18));
      text += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    }
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
  }
  text += static_cast<char>(0x80 | (code & 0x3f));
}

// Returns the four hexadecimal digits at `at`, nullopt if there are not as many.
std::optional<uint32_t> Hex4(std::string_view raw, size_t at) {
  if (at + 4 > raw.size()) return std::nullopt;
  uint32_t code = 0;
  const char* const begin = raw.data() + at;
  const auto [end, error] = std::from_chars(begin, begin + 4, code, 16);
  if (error != std::errc() || end != begin + 4) return std::nullopt;
  return code;
}

// Appends what a \u escape stands for, whose digits begin at `at`; half of a pair alone becomes
// U+FFFD. Returns how many characters it took.
size_t AppendEscapedCode(std::string_view raw, size_t at, std::string& text) {
  std::optional<uint32_t> code = Hex4(raw, at);
  if (!code) return 0;
  size_t taken = 4;
  if (*code >= 0xd800 && *code < 0xdc00 && raw.substr(at + 4, 2) == "\\u") {
    const std::optional<uint32_t> low = Hex4(raw, at + 6);
    if (low && *low >= 0xdc00 && *low < 0xe000) {
      code = 0x10000 + ((*code - 0xd800) << 10) + (*low - 0xdc00);
      taken = 10;
    }
  }
  AppendUtf8(*code >= 0xd800 && *code < 0xe000 ? 0xfffd : *code, text);
  return taken;
}

void AppendUnescaped(std::string_view raw, std::string& text) {
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\' || i + 1 == raw.size()) {
      text += raw[i];
      continue;
    }
    const char c = raw[++i];
    switch (c) {
      case 'n':
        text += '\n';
        break;
      case 't':
        text += '\t';
        break;
      case 'r':
        text += '\r';
        break;
      case 'b':
        text += '\b';
        break;
      case 'f':
        text += '\f';
        break;
      case 'u':
        i += AppendEscapedCode(raw, i + 1, text);
        break;
      default:
        text += c;
    }
  }
}

class Reader {
 public:
  Reader(std::string_view json, StreamChunk& chunk, std::string* text, std::string* reasoning)
      : at_(json.data()),
        end_(at_ + json.size()),
        chunk_(chunk),
        text_(text),
        reasoning_(reasoning) {}

  bool Read() {
    Skip();
    if (at_ == end_ || *at_ != '{' || !Value(Place::kOther, Place::kRoot, "", 0)) return false;
    Skip();
    return at_ == end_;
  }

 private:
  void Skip() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  bool Take(char c) {
    Skip();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  // Reads a string without its escapes undone.
  bool String(std::string_view& raw) {
    if (!Take('"')) return false;
    const char* const begin = at_;
    while (true) {
      const auto* quote = static_cast<const char*>(std::memchr(at_, '"', size_t(end_ - at_)));
      if (quote == nullptr) return false;
      const char* back = quote;
      while (back != begin && back[-1] == '\\') --back;
      at_ = quote + 1;
      if ((quote - back) % 2 == 0) {
        raw = {begin, size_t(quote - begin)};
        return true;
      }
    }
  }

  bool Value(Place parent, Place place, std::string_view key, int depth) {
    if (depth > 64) return false;
    Skip();
    if (at_ == end_) return false;
    switch (*at_) {
      case '{':
        if (place == Place::kError) chunk_.has_error = true;
        return Object(place, depth);
      case '[':
        return Array(place, depth);
      case '"':
        return StringValue(parent, place, key);
      default:
        return Literal(parent, key);
    }
  }

  bool Object(Place place, int depth) {
    ++at_;
    if (Take('}')) return true;
    do {
      std::string_view key;
      if (!String(key) || !Take(':')) return false;
      if (!Value(place, PlaceOf(place, key), key, depth + 1)) return false;
    } while (Take(','));
    return Take('}');
  }

  bool Array(Place place, int depth) {
    ++at_;
    if (Take(']')) return true;
    const Place element = place == Place::kChoices ? Place::kChoice : Place::kOther;
    if (place == Place::kToolCalls) chunk_.has_text = true;
    do {
      if (!Value(Place::kOther, element, "", depth + 1)) return false;
    } while (Take(','));
    return Take(']');
  }

  bool StringValue(Place parent, Place place, std::string_view key) {
    std::string_view raw;
    if (!String(raw)) return false;
    const bool is_reasoning = IsReasoning(parent, key);
    if ((is_reasoning || IsText(parent, key)) && !raw.empty()) {
      chunk_.has_text = true;
      std::string* const to = is_reasoning ? reasoning_ : text_;
      if (to != nullptr) AppendUnescaped(raw, *to);
    } else if (parent == Place::kChoice && key == "finish_reason") {
      chunk_.has_finish = true;
    } else if (place == Place::kError || (parent == Place::kError && key == "message")) {
      chunk_.has_error = true;
      chunk_.error.clear();
      AppendUnescaped(raw, chunk_.error);
    }
    return true;
  }

  // Reads a number, true, false or null.
  bool Literal(Place parent, std::string_view key) {
    const char* const begin = at_;
    while (at_ != end_ && std::strchr(",]} \n\r\t", *at_) == nullptr) ++at_;
    const std::string_view word(begin, size_t(at_ - begin));
    if (word == "null" || word == "true" || word == "false") return true;
    if (word.empty() || std::strchr("-0123456789", word[0]) == nullptr) return false;
    if (parent != Place::kUsage && parent != Place::kDetails && parent != Place::kTiers)
      return true;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(begin, at_, number);
    if (error != std::errc() || end != at_ || number < 0 || number > 1'000'000'000) return true;
    if (parent == Place::kDetails && key == "cached_tokens") chunk_.cached_tokens = number;
    const std::string_view tier = TierOf(parent, key);
    if (!tier.empty() && chunk_.cached_by_tier.size() < kMostTiers) {
      chunk_.cached_by_tier.emplace_back(tier, number);
    }
    if (parent == Place::kUsage && key == "prompt_tokens") chunk_.prompt_tokens = number;
    if (parent == Place::kUsage && key == "completion_tokens") chunk_.completion_tokens = number;
    return true;
  }

  const char* at_;
  const char* end_;
  StreamChunk& chunk_;
  std::string* text_;
  std::string* reasoning_;
};

}  // namespace

bool ReadStreamChunk(std::string_view json, StreamChunk& chunk, std::string* text,
                     std::string* reasoning) {
  return Reader(json, chunk, text, reasoning).Read();
}

}  // namespace millrace
