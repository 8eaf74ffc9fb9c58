// Tool calls between markers, in JSON: Hermes and Qwen, Llama 3, Mistral, DeepSeek V3, Granite,
// Kimi.
#ifndef MILLRACE_TEXT_TOOLS_MARKED_PARSER_H_
#define MILLRACE_TEXT_TOOLS_MARKED_PARSER_H_

#include <memory>
#include <string>
#include <vector>

#include "text/tools/output_parser.h"

namespace millrace {

// How calls are written. A call is either an object with a name and arguments, or a header, which
// has the name, and the arguments after it.
struct MarkedFormat {
  std::vector<std::string> open;  // markers before a call, or before a list of calls
  std::vector<std::string> close;
  // An answer that begins with an object that names a tool is a call.
  bool bare = false;
  // The texts around the name in a header; the name ends before the last one that is there.
  std::vector<std::string> before_name;
  std::vector<std::string> after_name;
  bool header = false;
  std::string id_end;  // what stands before it in a header is the call's id; may be empty
  // Bytes between calls that mean nothing, beside white space.
  std::string separators = ",;[]";
};

// `format` must outlive the parser.
std::unique_ptr<OutputParser> MakeMarkedParser(const MarkedFormat* format,
                                               const std::vector<ToolSignature>& tools);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_MARKED_PARSER_H_
