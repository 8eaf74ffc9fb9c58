// The parser of xml_parser.h, whose parts stand in xml_parser.cc (text, and a call's beginning and
// end) and in xml_arguments.cc.
#ifndef MILLRACE_TEXT_TOOLS_XML_CALL_PARSER_H_
#define MILLRACE_TEXT_TOOLS_XML_CALL_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"
#include "text/tools/argument_type.h"
#include "text/tools/content_writer.h"
#include "text/tools/marker_scanner.h"
#include "text/tools/xml_parser.h"
#include "text/tools/xml_value.h"

namespace millrace {

// Longer names of tools and arguments are taken for text.
inline constexpr size_t kMaxXmlName = 256;

// What a marker stands for.
enum class XmlMark { kSectionOpen, kSectionClose, kNameOpen, kKeyOpen, kValueClose, kCallClose };

struct XmlMarker {
  std::string text;
  XmlMark mark;
};

// What MakeXmlParser makes.
class XmlParser : public OutputParser {
 public:
  XmlParser(const XmlFormat* format, const std::vector<ToolSignature>& tools);

  void Commit(OutputDelta* out) override;
  void Finish(AnswerEnd end, OutputDelta* out) override;
  int32_t complete_calls() const override { return complete_; }

 private:
  enum class State {
    kContent,
    kOpening,  // after a section's opening, before the first name
    kName,
    kNameEnd,  // after white space, or a byte that is none of a name's
    kBetween,  // before an argument, or the call's end
    kKey,
    kValueOpen,
    kValue,
    kEnding,  // after a marker that may end the value
  };
  // What a text that may be a marker, perhaps with white space before it, is.
  enum class Match { kMore, kFound, kOther };

  void Step(char c, OutputDelta* out) override;

  // ---- Markers ----

  // Compares held_, without its leading white space, with the markers of these kinds.
  Match MatchHeld(std::initializer_list<XmlMark> marks);
  // Takes text back as if it came anew.
  void Again(const std::string& text, OutputDelta* out);

  // ---- Outside of calls ----

  void StepContent(char c, OutputDelta* out);
  // Begins what may be a call, with a marker that has come.
  void Open(XmlMark mark, const std::string& text);
  // Gives back what only looked like a call. A call may begin within it.
  void Abandon(OutputDelta* out);
  void StepOpening(OutputDelta* out);
  // Goes on with the opening marker that held_ ends with. What stands before it, unless it opens
  // the section, is text.
  void Reopen(OutputDelta* out);

  // ---- A call's beginning ----

  void StepName(char c, OutputDelta* out);
  void StepNameEnd(OutputDelta* out);
  void BeginArguments();
  void Announce(OutputDelta* out);

  // ---- Arguments ----

  void StepBetween(OutputDelta* out);
  // Takes the marker that held_ ends with, which is found_, after a name or an argument.
  void GoOn(OutputDelta* out);
  void BeginKey();
  // Returns whether a key cannot go on so.
  bool BadKey(std::string_view key) const;
  void StepKey(char c, OutputDelta* out);
  void BeginValue(OutputDelta* out);
  ArgumentType TypeOf(const std::string& key, const std::string& attributes) const;
  const OrderedJson* Schema() const;
  void StepValueOpen(OutputDelta* out);
  void StepValue(char c, OutputDelta* out);
  XmlMark OuterMark() const {
    return format_.dropped.empty() ? XmlMark::kNameOpen : XmlMark::kSectionOpen;
  }
  void AddToValue(std::string_view text, OutputDelta* out);
  void EndValue(OutputDelta* out);
  // A marker that ends the value, or the whole call, is followed by what can stand there.
  void StepEnding(OutputDelta* out);
  // The next argument begins where the value's end is missing, if there is such an argument.
  void StepEndingKey(OutputDelta* out);
  // The marker was a part of the value.
  void NoEnd(OutputDelta* out);

  // ---- A call's end ----

  void EndCall(OutputDelta* out);
  void FinishCall(AnswerEnd end, OutputDelta* out);

  const XmlFormat& format_;
  const std::vector<XmlMarker> markers_;
  std::map<std::string, OrderedJson, std::less<>> schemas_;
  MarkerScanner scanner_;
  MarkerScanner value_scanner_{scanner_.markers()};
  ContentWriter content_;
  State state_ = State::kContent;
  XmlMark found_ = XmlMark::kNameOpen;
  std::string raw_;   // what becomes content if it turns out to be no call
  std::string held_;  // what may be the next marker, and white space before it
  std::string name_;
  std::string key_;
  std::vector<std::string> keys_;  // the call's arguments so far
  XmlValue value_;
  XmlMark ending_ = XmlMark::kValueClose;
  std::string ending_text_;
  int inner_ = 0;           // sections that the value's text has opened
  bool wrapped_ = false;    // the call stands in a section
  bool announced_ = false;  // the call has begun
  bool forced_ = false;     // the text from here on is a call for certain
  bool first_ = true;       // no argument yet
  int32_t calls_ = 0;
  int32_t complete_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_XML_CALL_PARSER_H_
