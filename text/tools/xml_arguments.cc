// The arguments of calls as elements.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "text/tools/xml_call_parser.h"

namespace millrace {

// ---- Arguments ----

void XmlParser::StepBetween(OutputDelta* out) {
  const Match match = MatchHeld({XmlMark::kKeyOpen, XmlMark::kCallClose, XmlMark::kSectionClose,
                                 XmlMark::kNameOpen, XmlMark::kSectionOpen});
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
void XmlParser::GoOn(OutputDelta* out) {
  if (found_ == XmlMark::kKeyOpen) return BeginKey();
  if (found_ == XmlMark::kCallClose) {
    Announce(out);
    return EndCall(out);
  }
  // The call's end is missing. With no argument either, only a tool that there is has been
  // called.
  if (found_ == XmlMark::kSectionClose) {
    if (!announced_ && schemas_.find(name_) == schemas_.end()) return Abandon(out);
    Announce(out);
    wrapped_ = false;
    return EndCall(out);
  }
  if (!announced_) return Reopen(out);
  const std::string marker(Trim(held_));
  const bool wrapped = wrapped_;
  EndCall(out);
  wrapped_ = wrapped && found_ == XmlMark::kNameOpen;
  Open(found_, marker);
}

void XmlParser::BeginKey() {
  key_.clear();
  held_.clear();
  state_ = State::kKey;
}

// Returns whether a key cannot go on so.
bool XmlParser::BadKey(std::string_view key) const {
  if (key.size() > kMaxXmlName) return true;
  return !format_.key_close.starts_with('<') && key.find_first_of("\n<") != key.npos;
}

void XmlParser::StepKey(char c, OutputDelta* out) {
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

void XmlParser::BeginValue(OutputDelta* out) {
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

ArgumentType XmlParser::TypeOf(const std::string& key, const std::string& attributes) const {
  if (attributes.find("string=\"true\"") != attributes.npos) {
    return {.types = ArgumentType::kString};
  }
  const bool json = attributes.find("string=\"false\"") != attributes.npos;
  const OrderedJson* schema = Schema();
  return json || schema == nullptr ? ArgumentType() : TypeOfArgument(*schema, key);
}

const OrderedJson* XmlParser::Schema() const {
  const auto tool = schemas_.find(name_);
  return tool == schemas_.end() ? nullptr : &tool->second;
}

void XmlParser::StepValueOpen(OutputDelta* out) {
  const std::string_view text =
      std::string_view(held_).substr(std::min(held_.find_first_not_of(" \n\t\r"), held_.size()));
  const std::string_view open = format_.value_open;
  const bool found = open == text;
  if (!found && open.starts_with(text)) return;
  state_ = State::kValue;
  const std::string held = std::exchange(held_, std::string());
  if (!found) Again(held, out);  // The opening is missing.
}

void XmlParser::StepValue(char c, OutputDelta* out) {
  std::string passed;
  const std::optional<size_t> marker = value_scanner_.Step(c, &passed);
  AddToValue(passed, out);
  if (!marker.has_value()) return;
  const XmlMarker& found = markers_[*marker];
  const bool opens = found.mark == XmlMark::kSectionOpen || found.mark == XmlMark::kNameOpen;
  // A call in this form, on lines of its own, within the value.
  if (opens && value_.at_line_start() && found.mark == OuterMark()) ++inner_;
  const bool closes = found.mark == XmlMark::kSectionClose ||
                      (format_.dropped.empty() && found.mark == XmlMark::kCallClose);
  if (opens || inner_ > 0) {
    if (closes) --inner_;
    return AddToValue(found.text, out);
  }
  if (found.mark == XmlMark::kValueClose && value_.complete()) return EndValue(out);
  ending_ = found.mark;
  ending_text_ = found.text;
  state_ = State::kEnding;
}

void XmlParser::AddToValue(std::string_view text, OutputDelta* out) {
  std::string arguments;
  for (const char c : text) value_.Step(c, &arguments);
  out->AddArguments(calls_ - 1, arguments);
}

void XmlParser::EndValue(OutputDelta* out) {
  std::string arguments;
  value_.End(&arguments);
  out->AddArguments(calls_ - 1, arguments);
  inner_ = 0;
  held_.clear();
  state_ = State::kBetween;
}

// A marker that ends the value, or the whole call, is followed by what can stand there.
void XmlParser::StepEnding(OutputDelta* out) {
  const bool value = ending_ == XmlMark::kValueClose;
  const Match match =
      value ? MatchHeld({XmlMark::kKeyOpen, XmlMark::kCallClose, XmlMark::kSectionClose,
                         XmlMark::kNameOpen, XmlMark::kSectionOpen})
            : MatchHeld({XmlMark::kSectionClose, XmlMark::kNameOpen, XmlMark::kSectionOpen});
  // The last marker of all may also stand at the end of a line.
  const bool last = !value && (ending_ == XmlMark::kSectionClose || !wrapped_);
  const bool line_ends = last && held_.find('\n') != held_.npos;
  if (match == Match::kMore && !line_ends) return;
  if (match == Match::kOther && !line_ends) return NoEnd(out);
  const std::string held = held_;
  EndValue(out);
  if (!value) {
    if (ending_ == XmlMark::kSectionClose) wrapped_ = false;
    EndCall(out);
  }
  Again(held, out);
}

// The next argument begins where the value's end is missing, if there is such an argument.
void XmlParser::StepEndingKey(OutputDelta* out) {
  if (BadKey(held_)) return NoEnd(out);
  if (!held_.ends_with(format_.key_close)) return;
  std::string key(Trim(std::string_view(held_).substr(0, held_.size() - format_.key_close.size())));
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
void XmlParser::NoEnd(OutputDelta* out) {
  state_ = State::kValue;
  const std::string held = std::exchange(held_, std::string());
  AddToValue(ending_text_, out);
  Again(held, out);
}

}  // namespace millrace
