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
  std::string name_close;  // may be empty: white space or a key ends the name
  std::string key_open;
  std::string key_close;
  std::string value_open;  // white space may stand before it; may be empty
  std::string value_close;
  std::string call_close;
  // What stands around one or several calls: those that begin with "</" after them.
  std::vector<std::string> dropped;
};

// Takes calls out of an answer. A call is one when its name is followed by an argument or by its
// end; until then, and for markers that stand in prose, the text is content as it is. An argument
// is what its schema says (see XmlValue).
//
// Where a closing marker is missing, the next one that can only stand behind it takes its place,
// and the end of the answer takes every one's place. A closing marker that is followed by none of
// these is a part of the argument: texts about this very form can be arguments.
//
// `format` must outlive the parser.
std::unique_ptr<OutputParser> MakeXmlParser(const XmlFormat* format,
                                            const std::vector<ToolSignature>& tools);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_XML_PARSER_H_
