#include "formats/gguf/gguf_split.h"

#include <cstdio>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kForm = "-00001-of-00001.gguf";
constexpr size_t kDigits = 5;
constexpr size_t kNumberAt = 1;
constexpr size_t kCountAt = 10;

}  // namespace

std::string GgufPart::Name(int number) const {
  char end[64];
  std::snprintf(end, sizeof(end), "-%05d-of-%05d.gguf", number, count);
  return prefix + end;
}

std::vector<std::string> GgufPart::Names() const {
  std::vector<std::string> names;
  for (int i = 1; i <= count; ++i) names.push_back(Name(i));
  return names;
}

std::optional<GgufPart> ParseGgufPart(std::string_view name) {
  if (name.size() <= kForm.size()) return std::nullopt;
  const std::string_view end = name.substr(name.size() - kForm.size());
  GgufPart part{std::string(name.substr(0, name.size() - kForm.size())),
                ParseNumber<int>(end.substr(kNumberAt, kDigits)).value_or(0),
                ParseNumber<int>(end.substr(kCountAt, kDigits)).value_or(0)};
  const bool fits = part.number >= 1 && part.number <= part.count && part.count <= kMaxGgufParts;
  if (!fits || part.Name(part.number) != name) return std::nullopt;
  return part;
}

}  // namespace millrace
