// Small helpers for text, and absl::StrCat for std::string_view.
//
// Debian builds Abseil with a string_view of its own, which does not convert from the standard's:
// absl::StrCat refuses std::string_view, and so does absl::Hash.
#ifndef MILLRACE_BASE_STRINGS_H_
#define MILLRACE_BASE_STRINGS_H_

#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// Concatenates everything that absl::StrCat accepts, and std::string_view.
template <typename... Args>
std::string StrCat(const Args&... args) {
  const auto piece = [](const auto& arg) -> decltype(auto) {
    if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, std::string_view>) {
      return AbslView(arg);
    } else {
      return (arg);
    }
  };
  return absl::StrCat(piece(args)...);
}

// Parses all of `text` as a decimal number. Returns nullopt for anything else and for overflow.
template <std::integral Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns `text` without leading and trailing ASCII white space.
std::string_view Trim(std::string_view text);

// Returns the trimmed, non-empty parts between separators. They point into `text`.
std::vector<std::string_view> SplitList(std::string_view text, char separator = ',');

// Joins the parts with ", ".
template <typename Parts>
std::string JoinList(const Parts& parts) {
  std::string joined;
  for (const auto& part : parts) {
    if (!joined.empty()) joined += ", ";
    joined += part;
  }
  return joined;
}

// Makes text from a hostile file or request fit for a log line or message: non-printable bytes are
// escaped, and text beyond `most` bytes is cut.
inline std::string Printable(std::string_view text, size_t most = 80) {
  return absl::CHexEscape(AbslView(text.substr(0, most))) + (text.size() > most ? "..." : "");
}

// Hash for absl::flat_hash_map and flat_hash_set with std::string_view (or std::string) keys.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const {
    return absl::Hash<absl::string_view>{}(AbslView(text));
  }
};

}  // namespace millrace

#endif  // MILLRACE_BASE_STRINGS_H_
