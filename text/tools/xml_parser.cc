#include "text/tools/xml_parser.h"

#include <map>
#include <utility>

#include "text/tools/content_writer.h"
#include "text/tools/json_call.h"
#include "text/tools/marker_scanner.h"

namespace millrace {
namespace {

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \n\t\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

enum class ValueType { kAny, kText, kTextOrNull };

ValueType TypeOf(const OrderedJson& schema) {
  const auto type = schema.is_object() ? schema.find("type") : schema.end();
  if (type == schema.end()) return ValueType::kAny;
  if (type->is_string()) return *type == "string" ? ValueType::kText : ValueType::kAny;
  bool text = false, null = false;
  for (const OrderedJson& one : *type) {
    if (one != "string" && one != "null") return ValueType::kAny;
    (one == "string" ? text : null) = true;
  }
  if (!text) return ValueType::kAny;
  return null ? ValueType::kTextOrNull : ValueType::kText;
}

std::vector<std::string> Openings(const XmlFormat& format) {
  std::vector<std::string> markers = {format.name_open};
  markers.insert(markers.end(), format.dropped.begin(), format.dropped.end());
  return markers;
}

class XmlParser : public OutputParser {
 public:
  XmlParser(const XmlFormat* format, const std::vector<ToolSignature>& tools)
      : format_(*format), scanner_(Openings(*format)) {
    for (const ToolSignature& tool : tools) {
      schemas_[tool.name] = ParseOrdered(tool.parameters, kCallJson).value_or(OrderedJson());
    }
  }

  void Finish(OutputDelta* out) override {
    if (state_ == State::kContent) AddContent(scanner_.Take(), out);
    if (state_ == State::kName) AddContent(format_.name_open + text_, out);
    content_.Finish(out);
  }

  int32_t complete_calls() const override { return complete_; }

 private:
  enum class State { kContent, kName, kBetween, kKey, kValueOpen, kValue };

  void Step(char c, OutputDelta* out) override {
    if (state_ == State::kContent) return StepContent(c, out);
    text_ += c;
    switch (state_) {
      case State::kName:
        return StepName(out);
      case State::kBetween:
        return StepBetween(out);
      case State::kKey:
        if (!Ends(format_.key_close)) return;
        key_ = std::string(Trimmed(std::exchange(text_, std::string())));
        state_ = format_.value_open.empty() ? State::kValue : State::kValueOpen;
        return;
      case State::kValueOpen:
        if (!Ends(format_.value_open)) return;
        text_.clear();
        state_ = State::kValue;
        return;
      default:
        if (Ends(format_.value_close)) AddValue(out);
    }
  }

  // Cuts the marker off the text that has come, if it ends so.
  bool Ends(std::string_view marker) {
    if (!text_.ends_with(marker)) return false;
    text_.resize(text_.size() - marker.size());
    return true;
  }

  void AddContent(std::string_view text, OutputDelta* out) {
    for (const char c : text) content_.Add(c, out);
  }

  void StepContent(char c, OutputDelta* out) {
    std::string passed;
    const std::optional<size_t> marker = scanner_.Step(c, &passed);
    AddContent(passed, out);
    if (!marker.has_value()) return;
    content_.DropSpace();
    content_.SkipSpace();
    if (*marker > 0) return;
    text_.clear();
    state_ = State::kName;
  }

  void StepName(OutputDelta* out) {
    const std::string* end = nullptr;
    for (const std::string& close : format_.name_close) {
      if (end == nullptr && Ends(close)) end = &close;
    }
    // A call without arguments.
    const bool empty = end == nullptr && Ends(format_.call_close);
    if (empty) end = &format_.call_close;
    if (end == nullptr) return;
    name_ = std::string(Trimmed(text_));
    if (name_.empty() && Trimmed(*end).empty()) return;  // The name may begin on the next line.
    if (name_.empty()) return Abandon(*end, out);
    const bool by_key = *end == format_.key_open;
    out->BeginCall(calls_++, name_);
    first_ = true;
    text_.clear();
    state_ = by_key ? State::kKey : State::kBetween;
    if (empty) EndCall(out);
  }

  // Gives back what only looked like a call: it has no name.
  void Abandon(std::string_view end, OutputDelta* out) {
    AddContent(format_.name_open + std::exchange(text_, std::string()), out);
    AddContent(end, out);
    state_ = State::kContent;
  }

  void StepBetween(OutputDelta* out) {
    if (Ends(format_.call_close)) return EndCall(out);
    if (!Ends(format_.key_open)) return;
    text_.clear();
    state_ = State::kKey;
  }

  void EndCall(OutputDelta* out) {
    out->AddArguments(calls_ - 1, first_ ? "{}" : "}");
    ++complete_;
    text_.clear();
    state_ = State::kContent;
    content_.SkipSpace();
  }

  void AddValue(OutputDelta* out) {
    // DeepSeek says beside the key whether the value is a string: x" string="true
    std::string attributes;
    if (const size_t quote = key_.find('"'); quote != key_.npos) {
      attributes = key_.substr(quote);
      key_.resize(quote);
    }
    std::string_view value = text_;
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    out->AddArguments(calls_ - 1,
                      (first_ ? "{" : ", ") + Quoted(key_) + ": " + ValueOf(value, attributes));
    first_ = false;
    text_.clear();
    state_ = State::kBetween;
  }

  static std::string Quoted(std::string_view text) {
    return OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

  std::string ValueOf(std::string_view value, const std::string& attributes) const {
    if (attributes.find("string=\"true\"") != attributes.npos) return Quoted(value);
    const ValueType type = TypeOfArgument();
    const std::string_view trimmed = Trimmed(value);
    if (type == ValueType::kTextOrNull && trimmed != "null" && !trimmed.starts_with('"')) {
      return Quoted(value);
    }
    if (type != ValueType::kText && OrderedJson::accept(trimmed)) return std::string(trimmed);
    if (type != ValueType::kAny) return Quoted(value);
    if (trimmed == "True" || trimmed == "False") return trimmed == "True" ? "true" : "false";
    return trimmed == "None" ? "null" : Quoted(value);
  }

  ValueType TypeOfArgument() const {
    const auto tool = schemas_.find(name_);
    if (tool == schemas_.end() || !tool->second.is_object()) return ValueType::kAny;
    const auto properties = tool->second.find("properties");
    if (properties == tool->second.end() || !properties->is_object()) return ValueType::kAny;
    const auto property = properties->find(key_);
    return property == properties->end() ? ValueType::kAny : TypeOf(*property);
  }

  const XmlFormat& format_;
  std::map<std::string, OrderedJson, std::less<>> schemas_;
  MarkerScanner scanner_;
  ContentWriter content_;
  State state_ = State::kContent;
  std::string text_;
  std::string name_;
  std::string key_;
  bool first_ = true;
  int32_t calls_ = 0;
  int32_t complete_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> MakeXmlParser(const XmlFormat* format,
                                            const std::vector<ToolSignature>& tools) {
  return std::make_unique<XmlParser>(format, tools);
}

}  // namespace millrace
