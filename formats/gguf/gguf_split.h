// Names of the files that a GGUF model is split into.
#ifndef MILLRACE_FORMATS_GGUF_GGUF_SPLIT_H_
#define MILLRACE_FORMATS_GGUF_GGUF_SPLIT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

inline constexpr int kMaxGgufParts = 1024;

// One of several files, as llama.cpp's gguf-split names them: "m-00002-of-00005.gguf", perhaps with
// a folder before it.
struct GgufPart {
  std::string prefix;  // "m"
  int number;          // from 1 to `count`
  int count;

  // Returns the name of part `number`, and those of all parts.
  std::string Name(int number) const;
  std::vector<std::string> Names() const;
};

// Returns nullopt for other names, and for more than kMaxGgufParts.
std::optional<GgufPart> ParseGgufPart(std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_GGUF_GGUF_SPLIT_H_
