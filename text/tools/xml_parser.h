// Tool calls as elements, one for each argument: Qwen3-Coder, GLM 4.5, MiniMax M2, DeepSeek V3.2.
#ifndef MILLRACE_TEXT_TOOLS_XML_PARSER_H_
#define MILLRACE_TEXT_TOOLS_XML_PARSER_H_

#include <memory>
#include <string>
#include <vector>

#include "text/tools/output_parser.h"

namespace millrace {

// The texts around the parts of a call, in their order.
struct XmlFormat {
  std::string name_open;
  std::vector<std::string> name_close;  // the first of these that comes ends the name
  std::string key_open;
  std::string key_close;
  std::string value_open;  // white space may stand before it; may be empty
  std::string value_close;
  std::string call_close;
  std::vector<std::string> dropped;  // what stands around calls
};

// An argument is what its schema says: a text where that allows strings alone; where it allows null
// as well, null, a JSON string, or else a text; otherwise JSON, or a text if it is none. `format`
// must outlive the parser.
std::unique_ptr<OutputParser> MakeXmlParser(const XmlFormat* format,
                                            const std::vector<ToolSignature>& tools);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_XML_PARSER_H_
