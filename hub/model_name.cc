#include "hub/model_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace millrace {
namespace {

constexpr size_t kMaxRepository = 96;
constexpr size_t kMaxPart = 255;  // limit of file systems
constexpr size_t kMaxName = 1024;

bool IsRepositoryPart(std::string_view part) {
  if (part.empty() || part.find("--") != part.npos || part.find("..") != part.npos) return false;
  for (const char end : {part.front(), part.back()}) {
    if (end == '-' || end == '.') return false;
  }
  return std::all_of(part.begin(), part.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace

std::optional<HubModelName> ParseHubModelName(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view repository = text.substr(0, colon);
  const size_t slash = repository.find('/');
  if (slash == repository.npos || repository.size() > kMaxRepository ||
      !IsRepositoryPart(repository.substr(0, slash)) ||
      !IsRepositoryPart(repository.substr(slash + 1))) {
    return std::nullopt;
  }
  HubModelName name{std::string(repository), ""};
  if (colon == text.npos) return name;
  name.file = text.substr(colon + 1);
  if (!IsSafeFileName(name.file)) return std::nullopt;
  return name;
}

bool IsSafeFileName(std::string_view name) {
  if (name.empty() || name.size() > kMaxName) return false;
  while (true) {
    const size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    const bool printable = std::all_of(part.begin(), part.end(), [](char c) {
      return c != '\\' && (c < 0 || (c >= ' ' && c != 0x7F));
    });
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPart || !printable) {
      return false;
    }
    if (slash == name.npos) return true;
    name.remove_prefix(slash + 1);
  }
}

bool IsSafeRevision(std::string_view revision) {
  return IsSafeFileName(revision) && revision.front() != '-' &&
         revision.find_first_of(" ?*[:^~") == revision.npos;
}

bool IsCommit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool IsSafeEtag(std::string_view etag) {
  return !etag.empty() && etag.size() <= 128 && std::all_of(etag.begin(), etag.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_';
  });
}

std::string PercentEncoded(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (absl::ascii_isalnum(byte) || std::string_view("-_.~").find(c) != std::string_view::npos ||
        (keep_slashes && c == '/')) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

}  // namespace millrace
