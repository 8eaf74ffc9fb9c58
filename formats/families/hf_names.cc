#include "formats/families/hf_names.h"

#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

// With what the names of a language model's tensors begin, by itself and within another model.
constexpr std::string_view kModel = "model.";
constexpr std::string_view kNestedModel = "model.language_model.";

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// "blk.3.ffn_up.7.weight" as the pattern "blk.#.ffn_up.#.weight" and its numbers.
struct Pattern {
  std::string text;
  std::vector<std::string_view> numbers;
};

Pattern PatternOf(std::string_view name) {
  Pattern pattern;
  if (!name.starts_with("blk.")) return {std::string(name), {}};
  while (true) {
    const size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    const bool number = IsNumber(part);
    pattern.text += number ? "#" : part;
    if (number) pattern.numbers.push_back(part);
    if (dot == name.npos) return pattern;
    pattern.text += '.';
    name.remove_prefix(dot + 1);
  }
}

// The text with its numbers in the places of #.
std::string Filled(std::string_view text, const std::vector<std::string_view>& numbers) {
  std::string filled;
  size_t next = 0;
  for (const char c : text) {
    if (c == '#' && next < numbers.size()) {
      filled += numbers[next++];
    } else {
      filled += c;
    }
  }
  return filled;
}

// The name that `to` stands for where `name` is, or begins with, what `from` stands for; empty
// where it does not. Both have one #, or none.
std::string Matched(std::string_view name, std::string_view from, std::string_view to) {
  const size_t at = from.find('#');
  if (!name.starts_with(from.substr(0, at))) return {};
  if (at == from.npos) {
    const std::string_view part = name.substr(from.size());
    return part.empty() || part[0] == '.' ? StrCat(to, part) : std::string();
  }
  const size_t end = name.find('.', at);
  if (end == name.npos) return {};
  const std::string_view number = name.substr(at, end - at);
  const std::string_view tail = from.substr(at + 1);
  if (!IsNumber(number) || !name.substr(end).starts_with(tail)) return {};
  const std::string_view part = name.substr(end + tail.size());
  if (!part.empty() && part[0] != '.') return {};
  return Filled(to, {number}).append(part);
}

// All spellings of a tensor or a module; none where the family has none.
std::vector<std::string> Translate(std::string_view gguf, const Family& family) {
  const Pattern pattern = PatternOf(gguf);
  std::vector<std::string> names;
  for (const auto spellings : {family.spellings, family.shared_spellings}) {
    for (const Spelling& spelling : spellings) {
      if (spelling.gguf == pattern.text) names.push_back(Filled(spelling.hf, pattern.numbers));
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

// Adds the spellings of a language model within another model.
void AddNested(std::vector<std::string>* names) {
  for (size_t i = 0, count = names->size(); i < count; ++i) {
    const std::string& name = (*names)[i];
    if (!name.starts_with(kModel)) continue;
    names->push_back(StrCat(kNestedModel, name.substr(kModel.size())));
  }
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
  if (family.nested_in_folders) AddNested(&names);
  if (family.hf_prefixes.empty()) return names;
  std::vector<std::string> prefixed;
  for (const std::string_view prefix : family.hf_prefixes) {
    for (const std::string& name : names) prefixed.push_back(StrCat(prefix, name));
  }
  return prefixed;
}

std::string StackedGgufName(std::string_view hf_name, const Family& family) {
  std::string usual;
  if (family.nested_in_folders && hf_name.starts_with(kNestedModel)) {
    usual = StrCat(kModel, hf_name.substr(kNestedModel.size()));
    hf_name = usual;
  }
  for (const auto spellings : {family.spellings, family.shared_spellings}) {
    for (const Spelling& spelling : spellings) {
      if (spelling.gguf.find("_exps") == spelling.gguf.npos &&
          spelling.gguf.find("gate_up_shexp") == spelling.gguf.npos) {
        continue;
      }
      std::string name = Matched(hf_name, spelling.hf, spelling.gguf);
      if (!name.empty()) return name;
    }
  }
  return {};
}

std::string GgufName(std::string_view name_in_file, const Family* family) {
  if (family != nullptr) {
    for (const Spelling& spelling : family->gguf_spellings) {
      std::string name = Matched(name_in_file, spelling.hf, spelling.gguf);
      if (!name.empty()) return name;
    }
  }
  return std::string(name_in_file);
}

}  // namespace millrace
