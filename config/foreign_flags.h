// Flags of vLLM's, SGLang's and llama.cpp's servers, for people who come from there.
#ifndef MILLRACE_CONFIG_FOREIGN_FLAGS_H_
#define MILLRACE_CONFIG_FOREIGN_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class ForeignKind {
  kSame,    // means the same as one of our settings, and is taken as that one
  kAlways,  // a switch that asks for what this server always does: taken, without effect
  kHint,    // refused, with what to do instead
};

struct ForeignFlag {
  std::string_view origin;  // "vLLM", "SGLang", "llama.cpp" or "vLLM and llama.cpp"
  std::string_view name;    // as it is written: "--port", "-m"
  ForeignKind kind;
  // kSame: the setting's name. Otherwise a sentence: what is always so, or what to do instead.
  std::string_view text;
};

// Returns all of them.
const std::vector<ForeignFlag>& ForeignFlags();

// Returns the flag that is written so, with - or _ between its words; null if it is no foreign one.
const ForeignFlag* FindForeignFlag(std::string_view written);

// Returns the flags of "vLLM", "SGLang" or "llama.cpp" as the Markdown table that the documents
// have between "<!-- flags of vLLM -->" and "<!-- /flags of vLLM -->", a row for those that have
// one answer.
std::string ForeignFlagsMarkdown(std::string_view origin);

// Returns all three tables between their markers: the output of --print-foreign-flags.
std::string AllForeignFlagsMarkdown();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_FOREIGN_FLAGS_H_
