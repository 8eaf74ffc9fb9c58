#include "text/tools/xml_parser.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "text/tools/argument_type.h"
#include "text/tools/content_writer.h"
#include "text/tools/json_call.h"
#include "text/tools/marker_scanner.h"
#include "text/tools/xml_value.h"

namespace millrace {
namespace {

// Longer names of tools and arguments are taken for text.
constexpr size_t kMaxName = 256;

// What a marker stands for.
enum class Mark { kSectionOpen, kSectionClose, kNameOpen, kKeyOpen, kValueClose, kCallClose };

struct Marker {
  std::string text;
  Mark mark;
};

std::vector<Marker> MarkersOf(const XmlFormat& format) {
  std::vector<Marker> markers = {{format.name_open, Mark::kNameOpen},
                                 {format.key_open, Mark::kKeyOpen},
                                 {format.value_close, Mark::kValueClose},
                                 {format.call_close, Mark::kCallClose}};
  for (const std::string& text : format.dropped) {
    markers.push_back({text, text.starts_with("</") ? Mark::kSectionClose : Mark::kSectionOpen});
  }
  return markers;
}

std::vector<std::string> Texts(const std::vector<Marker>& markers) {
  std::vector<std::string> texts;
  for (const Marker& marker : markers) texts.push_back(marker.text);
  return texts;
}

class XmlParser : public OutputParser {
 public:
  XmlParser(const XmlFormat* format, const std::vector<ToolSignature>& tools)
      : format_(*format), markers_(MarkersOf(*format)), scanner_(Texts(markers_)) {
    for (const ToolSignature& tool : tools) {
      schemas_[tool.name] = ParseOrdered(tool.parameters, kCallJson).value_or(OrderedJson());
    }
  }

  void Commit(OutputDelta* out) override {
    forced_ = state_ != State::kContent;
    // The name is whole, even where nothing ends it.
    const bool named = state_ == State::kNameEnd || (state_ == State::kName && !name_.empty());
    if (named && format_.name_close.empty()) BeginArguments();
    if (state_ == State::kBetween && !announced_) Announce(out);
  }

  void Finish(AnswerEnd end, OutputDelta* out) override {
    if (state_ == State::kContent) {
      content_.Add(scanner_.Take(), out);
    } else if (!announced_) {
      if (!forced_) content_.Add(raw_, out);
    } else {
      FinishCall(end, out);
    }
    content_.Finish(out);
  }

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

  void Step(char c, OutputDelta* out) override {
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
        return ending_ == Mark::kKeyOpen ? StepEndingKey(out) : StepEnding(out);
    }
  }

  // ---- Markers ----

  // Compares held_, without its leading white space, with the markers of these kinds.
  Match MatchHeld(std::initializer_list<Mark> marks) {
    const size_t begin = held_.find_first_not_of(" \n\t\r");
    if (begin == held_.npos) return Match::kMore;
    const std::string_view text = std::string_view(held_).substr(begin);
    Match match = Match::kOther;
    for (const Marker& marker : markers_) {
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
  void Again(const std::string& text, OutputDelta* out) {
    for (const char c : text) Step(c, out);
  }

  // ---- Outside of calls ----

  void StepContent(char c, OutputDelta* out) {
    std::string passed;
    const std::optional<size_t> marker = scanner_.Step(c, &passed);
    content_.Add(passed, out);
    if (!marker.has_value()) return;
    const Marker& found = markers_[*marker];
    if (found.mark == Mark::kSectionOpen || found.mark == Mark::kNameOpen) {
      wrapped_ = wrapped_ && found.mark == Mark::kNameOpen && content_.skips();
      return Open(found.mark, found.text);
    }
    // The end of a section belongs to the calls before it.
    if (found.mark == Mark::kSectionClose && content_.skips()) {
      wrapped_ = false;
      return;
    }
    content_.Add(found.text, out);
  }

  // Begins what may be a call, with a marker that has come.
  void Open(Mark mark, const std::string& text) {
    raw_ = text;
    held_.clear();
    name_.clear();
    state_ = mark == Mark::kNameOpen ? State::kName : State::kOpening;
    wrapped_ = wrapped_ || mark == Mark::kSectionOpen;
  }

  // Gives back what only looked like a call. A call may begin within it.
  void Abandon(OutputDelta* out) {
    const std::string text = std::exchange(raw_, std::string());
    held_.clear();
    state_ = State::kContent;
    wrapped_ = false;
    // The marker that it began with is text.
    size_t size = 0;
    for (const Marker& marker : markers_) {
      if (text.starts_with(marker.text)) size = std::max(size, marker.text.size());
    }
    content_.Add(std::string_view(text).substr(0, size), out);
    Again(text.substr(size), out);
  }

  void StepOpening(OutputDelta* out) {
    const Match match = MatchHeld({Mark::kNameOpen, Mark::kSectionOpen});
    if (match == Match::kMore) return;
    if (match == Match::kOther) return Abandon(out);
    Reopen(out);
  }

  // Goes on with the opening marker that held_ ends with. What stands before it, unless it opens
  // the section, is text.
  void Reopen(OutputDelta* out) {
    const std::string marker(Trim(held_));
    if (found_ == Mark::kNameOpen && state_ == State::kOpening) {
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

  void StepName(char c, OutputDelta* out) {
    if (IsCallNameByte(c) && name_.size() < kMaxName) {
      name_ += c;
      return;
    }
    if (name_.empty()) return IsAnswerSpace(c) ? void() : Abandon(out);
    if (name_.size() == kMaxName) return Abandon(out);
    state_ = State::kNameEnd;
    held_ = c;
    StepNameEnd(out);
  }

  void StepNameEnd(OutputDelta* out) {
    const std::string_view text = Trim(held_);
    if (!format_.name_close.empty() && text == format_.name_close) return BeginArguments();
    const bool closes = !text.empty() && format_.name_close.starts_with(text);
    const Match match = format_.name_close.empty() ? MatchHeld({Mark::kKeyOpen, Mark::kCallClose})
                                                   : MatchHeld({Mark::kKeyOpen});
    if (match == Match::kMore || closes) return;
    if (match == Match::kOther) return Abandon(out);
    if (found_ == Mark::kKeyOpen) return BeginKey();
    Announce(out);
    EndCall(out);
  }

  void BeginArguments() {
    held_.clear();
    state_ = State::kBetween;
  }

  void Announce(OutputDelta* out) {
    if (std::exchange(announced_, true)) return;
    raw_.clear();
    content_.DropSpace();
    out->BeginCall(calls_++, name_);
    first_ = true;
  }

  // ---- Arguments ----

  void StepBetween(OutputDelta* out) {
    const Match match = MatchHeld({Mark::kKeyOpen, Mark::kCallClose, Mark::kSectionClose,
                                   Mark::kNameOpen, Mark::kSectionOpen});
    if (match == Match::kMore) return;
    if (match == Match::kFound) return GoOn(out);
    if (!announced_) return Abandon(out);
    // What stands between two arguments is content.
    std::string text = std::exchange(held_, std::string());
    const size_t size = text.find_first_not_of(" \n\t\r") + 1;
    content_.Add(text.substr(0, size), out);
    Again(text.substr(size), out);
  }

  // Takes the marker that held_ ends with, which is found_, after a name or an argument.
  void GoOn(OutputDelta* out) {
    if (found_ == Mark::kKeyOpen) return BeginKey();
    if (found_ == Mark::kCallClose) {
      Announce(out);
      return EndCall(out);
    }
    // The call's end is missing. With no argument either, only a tool that there is has been
    // called.
    if (found_ == Mark::kSectionClose) {
      if (!announced_ && schemas_.find(name_) == schemas_.end()) return Abandon(out);
      Announce(out);
      wrapped_ = false;
      return EndCall(out);
    }
    if (!announced_) return Reopen(out);
    const std::string marker(Trim(held_));
    const bool wrapped = wrapped_;
    EndCall(out);
    wrapped_ = wrapped && found_ == Mark::kNameOpen;
    Open(found_, marker);
  }

  void BeginKey() {
    key_.clear();
    held_.clear();
    state_ = State::kKey;
  }

  // Returns whether a key cannot go on so.
  bool BadKey(std::string_view key) const {
    if (key.size() > kMaxName) return true;
    return !format_.key_close.starts_with('<') && key.find_first_of("\n<") != key.npos;
  }

  void StepKey(char c, OutputDelta* out) {
    key_ += c;
    if (key_.ends_with(format_.key_close)) {
      key_.resize(key_.size() - format_.key_close.size());
      if (!Trim(key_).empty()) return BeginValue(out);
      key_ += format_.key_close;
    } else if (!BadKey(key_)) {
      return;
    }
    if (!announced_) return Abandon(out);
    state_ = State::kBetween;
    content_.Add(format_.key_open, out);
    Again(std::exchange(key_, std::string()), out);
  }

  void BeginValue(OutputDelta* out) {
    std::string attributes;
    std::string key(Trim(key_));
    // DeepSeek says beside the key whether the value is a string: x" string="true
    if (const size_t quote = key.find('"'); quote != key.npos) {
      attributes = key.substr(quote);
      key.resize(quote);
    }
    if (!announced_) {
      Announce(out);
      keys_.clear();
    }
    keys_.push_back(key);
    out->AddArguments(calls_ - 1, StrCat(first_ ? "{" : ", ", Quoted(key), ": "));
    first_ = false;
    value_.Begin(TypeOf(key, attributes));
    value_scanner_.Take();
    held_.clear();
    state_ = format_.value_open.empty() ? State::kValue : State::kValueOpen;
  }

  ArgumentType TypeOf(const std::string& key, const std::string& attributes) const {
    if (attributes.find("string=\"true\"") != attributes.npos) {
      return {.types = ArgumentType::kString};
    }
    const bool json = attributes.find("string=\"false\"") != attributes.npos;
    const OrderedJson* schema = Schema();
    return json || schema == nullptr ? ArgumentType() : TypeOfArgument(*schema, key);
  }

  const OrderedJson* Schema() const {
    const auto tool = schemas_.find(name_);
    return tool == schemas_.end() ? nullptr : &tool->second;
  }

  void StepValueOpen(OutputDelta* out) {
    const std::string_view text =
        std::string_view(held_).substr(std::min(held_.find_first_not_of(" \n\t\r"), held_.size()));
    const std::string_view open = format_.value_open;
    const bool found = open == text;
    if (!found && open.starts_with(text)) return;
    state_ = State::kValue;
    const std::string held = std::exchange(held_, std::string());
    if (!found) Again(held, out);  // The opening is missing.
  }

  void StepValue(char c, OutputDelta* out) {
    std::string passed;
    const std::optional<size_t> marker = value_scanner_.Step(c, &passed);
    AddToValue(passed, out);
    if (!marker.has_value()) return;
    const Marker& found = markers_[*marker];
    const bool opens = found.mark == Mark::kSectionOpen || found.mark == Mark::kNameOpen;
    // A call in this form, on lines of its own, within the value.
    if (opens && value_.at_line_start() && found.mark == OuterMark()) ++inner_;
    const bool closes = found.mark == Mark::kSectionClose ||
                        (format_.dropped.empty() && found.mark == Mark::kCallClose);
    if (opens || inner_ > 0) {
      if (closes) --inner_;
      return AddToValue(found.text, out);
    }
    if (found.mark == Mark::kValueClose && value_.complete()) return EndValue(out);
    ending_ = found.mark;
    ending_text_ = found.text;
    state_ = State::kEnding;
  }

  Mark OuterMark() const { return format_.dropped.empty() ? Mark::kNameOpen : Mark::kSectionOpen; }

  void AddToValue(std::string_view text, OutputDelta* out) {
    std::string arguments;
    for (const char c : text) value_.Step(c, &arguments);
    out->AddArguments(calls_ - 1, arguments);
  }

  void EndValue(OutputDelta* out) {
    std::string arguments;
    value_.End(&arguments);
    out->AddArguments(calls_ - 1, arguments);
    inner_ = 0;
    held_.clear();
    state_ = State::kBetween;
  }

  // A marker that ends the value, or the whole call, is followed by what can stand there.
  void StepEnding(OutputDelta* out) {
    const bool value = ending_ == Mark::kValueClose;
    const Match match = value
                            ? MatchHeld({Mark::kKeyOpen, Mark::kCallClose, Mark::kSectionClose,
                                         Mark::kNameOpen, Mark::kSectionOpen})
                            : MatchHeld({Mark::kSectionClose, Mark::kNameOpen, Mark::kSectionOpen});
    // The last marker of all may also stand at the end of a line.
    const bool last = !value && (ending_ == Mark::kSectionClose || !wrapped_);
    const bool line_ends = last && held_.find('\n') != held_.npos;
    if (match == Match::kMore && !line_ends) return;
    if (match == Match::kOther && !line_ends) return NoEnd(out);
    const std::string held = held_;
    EndValue(out);
    if (!value) {
      if (ending_ == Mark::kSectionClose) wrapped_ = false;
      EndCall(out);
    }
    Again(held, out);
  }

  // The next argument begins where the value's end is missing, if there is such an argument.
  void StepEndingKey(OutputDelta* out) {
    if (BadKey(held_)) return NoEnd(out);
    if (!held_.ends_with(format_.key_close)) return;
    std::string key(
        Trim(std::string_view(held_).substr(0, held_.size() - format_.key_close.size())));
    key.resize(std::min(key.find('"'), key.size()));
    const bool again = std::find(keys_.begin(), keys_.end(), key) != keys_.end();
    const OrderedJson* schema = Schema();
    const bool known = schema != nullptr && ListsProperties(*schema)
                           ? HasProperty(*schema, key)
                           : !key.empty() && value_.at_line_start();
    if (!known || again) return NoEnd(out);
    const std::string held = held_;
    EndValue(out);
    Again(StrCat(format_.key_open, held), out);
  }

  // The marker was a part of the value.
  void NoEnd(OutputDelta* out) {
    state_ = State::kValue;
    const std::string held = std::exchange(held_, std::string());
    AddToValue(ending_text_, out);
    Again(held, out);
  }

  // ---- A call's end ----

  void EndCall(OutputDelta* out) {
    out->AddArguments(calls_ - 1, first_ ? "{}" : "}");
    ++complete_;
    announced_ = false;
    forced_ = false;
    raw_.clear();
    held_.clear();
    state_ = State::kContent;
    content_.SkipSpace();
  }

  void FinishCall(AnswerEnd end, OutputDelta* out) {
    const bool cut = end == AnswerEnd::kCut;
    const bool over = state_ == State::kEnding && ending_ != Mark::kKeyOpen;
    if (state_ == State::kValue || state_ == State::kEnding || state_ == State::kValueOpen) {
      if (state_ == State::kEnding && ending_ == Mark::kKeyOpen) {
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
    if (!cut || (over && ending_ != Mark::kValueClose)) EndCall(out);
  }

  const XmlFormat& format_;
  const std::vector<Marker> markers_;
  std::map<std::string, OrderedJson, std::less<>> schemas_;
  MarkerScanner scanner_;
  MarkerScanner value_scanner_{scanner_.markers()};
  ContentWriter content_;
  State state_ = State::kContent;
  Mark found_ = Mark::kNameOpen;
  std::string raw_;   // what becomes content if it turns out to be no call
  std::string held_;  // what may be the next marker, and white space before it
  std::string name_;
  std::string key_;
  std::vector<std::string> keys_;  // the call's arguments so far
  XmlValue value_;
  Mark ending_ = Mark::kValueClose;
  std::string ending_text_;
  int inner_ = 0;           // sections that the value's text has opened
  bool wrapped_ = false;    // the call stands in a section
  bool announced_ = false;  // the call has begun
  bool forced_ = false;     // the text from here on is a call for certain
  bool first_ = true;       // no argument yet
  int32_t calls_ = 0;
  int32_t complete_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> MakeXmlParser(const XmlFormat* format,
                                            const std::vector<ToolSignature>& tools) {
  return std::make_unique<XmlParser>(format, tools);
}

}  // namespace millrace
