#include "formats/hf_names.h"

#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kLayer = "blk.";

// The number in "blk.3.attn_q"; empty where there is none.
std::string_view LayerNumber(std::string_view name) {
  if (!name.starts_with(kLayer)) return {};
  name.remove_prefix(kLayer.size());
  return name.substr(0, name.find('.'));
}

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  const size_t at = from.empty() ? text.npos : text.find(from);
  if (at == text.npos) return std::string(text);
  return StrCat(text.substr(0, at), to, text.substr(at + from.size()));
}

// All spellings of a tensor or a module; none where the family has none.
std::vector<std::string> Translate(std::string_view gguf, const Family& family) {
  const std::string_view number = LayerNumber(gguf);
  const std::string pattern = Replaced(gguf, number, "#");
  std::vector<std::string> names;
  for (const auto spellings : {family.spellings, family.shared_spellings}) {
    for (const Spelling& spelling : spellings) {
      if (spelling.gguf == pattern) names.push_back(Replaced(spelling.hf, "#", number));
    }
    if (!names.empty()) break;
  }
  return names;
}

// The spellings of the tensor `part` of a module.
std::vector<std::string> Parts(const std::string& module, std::string_view part) {
  std::vector<std::string> names = {StrCat(module, ".", part)};
  if (part == "weight_scale") names.push_back(module + ".weight_scale_inv");
  if (module.ends_with("LayerNorm")) {
    names.push_back(module + (part == "weight" ? ".gamma" : ".beta"));
  }
  return names;
}

}  // namespace

std::vector<std::string> HfNames(std::string_view gguf_name, const Family& family) {
  std::vector<std::string> names = Translate(gguf_name, family);
  if (const size_t dot = gguf_name.rfind('.'); names.empty() && dot != gguf_name.npos) {
    for (const std::string& module : Translate(gguf_name.substr(0, dot), family)) {
      for (std::string& name : Parts(module, gguf_name.substr(dot + 1))) {
        names.push_back(std::move(name));
      }
    }
  }
  if (names.empty()) return {std::string(gguf_name)};
  if (family.hf_prefixes.empty()) return names;
  std::vector<std::string> prefixed;
  for (const std::string_view prefix : family.hf_prefixes) {
    for (const std::string& name : names) prefixed.push_back(StrCat(prefix, name));
  }
  return prefixed;
}

}  // namespace millrace
