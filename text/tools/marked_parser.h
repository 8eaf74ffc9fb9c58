// Tool calls between markers, in JSON (Hermes and Qwen, Llama 3, Mistral, DeepSeek V3, Granite,
// Kimi, Cohere, Apertus) or in literals (LFM2, Llama 4, Gemma 4).
#ifndef MILLRACE_TEXT_TOOLS_MARKED_PARSER_H_
#define MILLRACE_TEXT_TOOLS_MARKED_PARSER_H_

#include <memory>
#include <string>
#include <vector>

#include "text/tools/literal_reader.h"
#include "text/tools/output_parser.h"

namespace millrace {

// How calls are written. A call is either an object with a name and arguments, or a header, which
// has the name, and the arguments after it. What is no JSON of the arguments is mended
// (JsonMender).
struct MarkedFormat {
  std::vector<std::string> open;  // markers before a call, or before a list of calls
  std::vector<std::string> close;
  // A call is an object whose only key is the name, before its arguments.
  bool keyed = false;
  // An answer that begins with an object that names a tool, or with a list of calls in Python's
  // form, is a call.
  bool bare = false;
  // The texts around the name in a header; the name ends before the last one that is there.
  std::vector<std::string> before_name;
  std::vector<std::string> after_name;
  bool header = false;
  // In a header, the texts around the id that the model gives the call. The first may be empty: the
  // header begins with it. Without the second there is none.
  std::string before_id = {};
  std::string after_id = {};
  // Bytes between calls that mean nothing, beside white space.
  std::string separators = ",;[]";
  // In a header's call, how its arguments are written.
  ArgumentForm arguments = ArgumentForm::kJson;
};

// `format` must outlive the parser.
std::unique_ptr<OutputParser> MakeMarkedParser(const MarkedFormat* format,
                                               const std::vector<ToolSignature>& tools);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_MARKED_PARSER_H_
