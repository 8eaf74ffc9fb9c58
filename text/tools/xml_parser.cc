#include "text/tools/xml_parser.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "text/tools/json_call.h"
#include "text/tools/xml_call_parser.h"

namespace millrace {
namespace {

std::vector<XmlMarker> MarkersOf(const XmlFormat& format) {
  std::vector<XmlMarker> markers = {{format.name_open, XmlMark::kNameOpen},
                                    {format.key_open, XmlMark::kKeyOpen},
                                    {format.value_close, XmlMark::kValueClose},
                                    {format.call_close, XmlMark::kCallClose}};
  for (const std::string& text : format.dropped) {
    markers.push_back(
        {text, text.starts_with("</") ? XmlMark::kSectionClose : XmlMark::kSectionOpen});
  }
  return markers;
}

std::vector<std::string> Texts(const std::vector<XmlMarker>& markers) {
  std::vector<std::string> texts;
  for (const XmlMarker& marker : markers) texts.push_back(marker.text);
  return texts;
}

}  // namespace

XmlParser::XmlParser(const XmlFormat* format, const std::vector<ToolSignature>& tools)
    : format_(*format), markers_(MarkersOf(*format)), scanner_(Texts(markers_)) {
  for (const ToolSignature& tool : tools) {
    schemas_[tool.name] = ParseOrdered(tool.parameters, kCallJson).value_or(OrderedJson());
  }
}

void XmlParser::Commit(OutputDelta* out) {
  forced_ = state_ != State::kContent;
  // The name is whole, even where nothing ends it.
  const bool named = state_ == State::kNameEnd || (state_ == State::kName && !name_.empty());
  if (named && format_.name_close.empty()) BeginArguments();
  if (state_ == State::kBetween && !announced_) Announce(out);
}

void XmlParser::Finish(AnswerEnd end, OutputDelta* out) {
  if (state_ == State::kContent) {
    content_.Add(scanner_.Take(), out);
  } else if (!announced_) {
    if (!forced_) content_.Add(raw_, out);
  } else {
    FinishCall(end, out);
  }
  content_.Finish(out);
}

void XmlParser::Step(char c, OutputDelta* out) {
  if (state_ == State::kContent) return StepContent(c, out);
  if (!announced_) raw_ += c;
  switch (state_) {
    case State::kName:
      return StepName(c, out);
    case State::kKey:
      return StepKey(c, out);
    case State::kValue:
      return StepValue(c, out);
    case State::kOpening:
      held_ += c;
      return StepOpening(out);
    case State::kNameEnd:
      held_ += c;
      return StepNameEnd(out);
    case State::kBetween:
      held_ += c;
      return StepBetween(out);
    case State::kValueOpen:
      held_ += c;
      return StepValueOpen(out);
    default:
      held_ += c;
      return ending_ == XmlMark::kKeyOpen ? StepEndingKey(out) : StepEnding(out);
  }
}

// ---- Markers ----

// Compares held_, without its leading white space, with the markers of these kinds.
XmlParser::Match XmlParser::MatchHeld(std::initializer_list<XmlMark> marks) {
  const size_t begin = held_.find_first_not_of(" \n\t\r");
  if (begin == held_.npos) return Match::kMore;
  const std::string_view text = std::string_view(held_).substr(begin);
  Match match = Match::kOther;
  for (const XmlMarker& marker : markers_) {
    if (std::find(marks.begin(), marks.end(), marker.mark) == marks.end()) continue;
    if (marker.text == text) {
      found_ = marker.mark;
      return Match::kFound;
    }
    if (std::string_view(marker.text).starts_with(text)) match = Match::kMore;
  }
  return match;
}

// Takes text back as if it came anew.
void XmlParser::Again(const std::string& text, OutputDelta* out) {
  for (const char c : text) Step(c, out);
}

// ---- Outside of calls ----

void XmlParser::StepContent(char c, OutputDelta* out) {
  std::string passed;
  const std::optional<size_t> marker = scanner_.Step(c, &passed);
  content_.Add(passed, out);
  if (!marker.has_value()) return;
  const XmlMarker& found = markers_[*marker];
  if (found.mark == XmlMark::kSectionOpen || found.mark == XmlMark::kNameOpen) {
    wrapped_ = wrapped_ && found.mark == XmlMark::kNameOpen && content_.skips();
    return Open(found.mark, found.text);
  }
  // The end of a section belongs to the calls before it.
  if (found.mark == XmlMark::kSectionClose && content_.skips()) {
    wrapped_ = false;
    return;
  }
  content_.Add(found.text, out);
}

// Begins what may be a call, with a marker that has come.
void XmlParser::Open(XmlMark mark, const std::string& text) {
  raw_ = text;
  held_.clear();
  name_.clear();
  state_ = mark == XmlMark::kNameOpen ? State::kName : State::kOpening;
  wrapped_ = wrapped_ || mark == XmlMark::kSectionOpen;
}

// Gives back what only looked like a call. A call may begin within it.
void XmlParser::Abandon(OutputDelta* out) {
  const std::string text = std::exchange(raw_, std::string());
  held_.clear();
  state_ = State::kContent;
  wrapped_ = false;
  // The marker that it began with is text.
  size_t size = 0;
  for (const XmlMarker& marker : markers_) {
    if (text.starts_with(marker.text)) size = std::max(size, marker.text.size());
  }
  content_.Add(std::string_view(text).substr(0, size), out);
  Again(text.substr(size), out);
}

void XmlParser::StepOpening(OutputDelta* out) {
  const Match match = MatchHeld({XmlMark::kNameOpen, XmlMark::kSectionOpen});
  if (match == Match::kMore) return;
  if (match == Match::kOther) return Abandon(out);
  Reopen(out);
}

// Goes on with the opening marker that held_ ends with. What stands before it, unless it opens
// the section, is text.
void XmlParser::Reopen(OutputDelta* out) {
  const std::string marker(Trim(held_));
  if (found_ == XmlMark::kNameOpen && state_ == State::kOpening) {
    const std::string raw = raw_;
    Open(found_, marker);
    raw_ = raw;
    return;
  }
  raw_.resize(raw_.size() - std::min(raw_.size(), marker.size()));
  content_.Add(std::exchange(raw_, std::string()), out);
  wrapped_ = false;
  Open(found_, marker);
}

// ---- A call's beginning ----

void XmlParser::StepName(char c, OutputDelta* out) {
  if (IsCallNameByte(c) && name_.size() < kMaxXmlName) {
    name_ += c;
    return;
  }
  if (name_.empty()) return IsAnswerSpace(c) ? void() : Abandon(out);
  if (name_.size() == kMaxXmlName) return Abandon(out);
  state_ = State::kNameEnd;
  held_ = c;
  StepNameEnd(out);
}

void XmlParser::StepNameEnd(OutputDelta* out) {
  const std::string_view text = Trim(held_);
  if (!format_.name_close.empty() && text == format_.name_close) return BeginArguments();
  const bool closes = !text.empty() && format_.name_close.starts_with(text);
  const Match match = format_.name_close.empty()
                          ? MatchHeld({XmlMark::kKeyOpen, XmlMark::kCallClose})
                          : MatchHeld({XmlMark::kKeyOpen});
  if (match == Match::kMore || closes) return;
  if (match == Match::kOther) return Abandon(out);
  if (found_ == XmlMark::kKeyOpen) return BeginKey();
  Announce(out);
  EndCall(out);
}

void XmlParser::BeginArguments() {
  held_.clear();
  state_ = State::kBetween;
}

void XmlParser::Announce(OutputDelta* out) {
  if (std::exchange(announced_, true)) return;
  raw_.clear();
  content_.DropSpace();
  out->BeginCall(calls_++, name_);
  first_ = true;
}

// ---- A call's end ----

void XmlParser::EndCall(OutputDelta* out) {
  out->AddArguments(calls_ - 1, first_ ? "{}" : "}");
  ++complete_;
  announced_ = false;
  forced_ = false;
  raw_.clear();
  held_.clear();
  state_ = State::kContent;
  content_.SkipSpace();
}

void XmlParser::FinishCall(AnswerEnd end, OutputDelta* out) {
  const bool cut = end == AnswerEnd::kCut;
  const bool over = state_ == State::kEnding && ending_ != XmlMark::kKeyOpen;
  if (state_ == State::kValue || state_ == State::kEnding || state_ == State::kValueOpen) {
    if (state_ == State::kEnding && ending_ == XmlMark::kKeyOpen) {
      AddToValue(ending_text_ + held_, out);
    }
    if (state_ == State::kValue) AddToValue(value_scanner_.Take(), out);
    if (over || !cut) {
      EndValue(out);
    } else {
      std::string arguments;
      value_.Cut(&arguments);
      out->AddArguments(calls_ - 1, arguments);
    }
  }
  if (!cut || (over && ending_ != XmlMark::kValueClose)) EndCall(out);
}

std::unique_ptr<OutputParser> MakeXmlParser(const XmlFormat* format,
                                            const std::vector<ToolSignature>& tools) {
  return std::make_unique<XmlParser>(format, tools);
}

}  // namespace millrace
