#include "text/tools/marked_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "text/tools/content_writer.h"
#include "text/tools/json_call.h"
#include "text/tools/json_mender.h"
#include "text/tools/marker_scanner.h"

namespace millrace {
namespace {

constexpr size_t kMaxHeader = 512;
constexpr size_t kMaxId = 128;

std::vector<std::string> AllMarkers(const MarkedFormat& format) {
  std::vector<std::string> all = format.open;
  all.insert(all.end(), format.close.begin(), format.close.end());
  return all;
}

class MarkedParser : public OutputParser {
 public:
  MarkedParser(const MarkedFormat* format, const std::vector<ToolSignature>& tools)
      : format_(*format),
        tools_(tools),
        outside_(AllMarkers(*format)),
        inside_(AllMarkers(*format)) {}

  void Commit(OutputDelta*) override { forced_ = state_ != State::kContent; }

  void Finish(AnswerEnd end, OutputDelta* out) override {
    content_.Add(outside_.Take(), out);
    raw_ += inside_.Take();
    const bool begun = state_ == State::kArguments || (state_ == State::kObject && announced_);
    if (begun) {
      FinishArguments(end, out);
      complete_ += end == AnswerEnd::kWhole ? 1 : 0;
    } else if (state_ != State::kContent && !after_call() && !forced_) {
      content_.Add(raw_, out);
    }
    content_.Finish(out);
  }

  int32_t complete_calls() const override { return complete_; }

 private:
  enum class State { kContent, kBetween, kObject, kHeader, kArguments };

  void Step(char c, OutputDelta* out) override {
    if (state_ == State::kContent) return StepContent(c, out);
    if (state_ == State::kObject) return StepObject(c, out);
    if (state_ == State::kArguments) return StepArguments(c, out);
    std::string passed;
    const std::optional<size_t> marker = inside_.Step(c, &passed);
    StepInside(passed, out);
    if (!marker.has_value()) {
      if (state_ == State::kBetween || state_ == State::kHeader) return;
      // The scanner of the new state sees what this one held back.
      for (const char held : inside_.Take()) Step(held, out);
      return;
    }
    if (state_ == State::kHeader) Abandon(out);
    if (state_ == State::kContent) return Found(*marker, out);
    if (*marker < format_.open.size()) return Open(*marker);
    if (!after_call()) {  // the end of nothing
      Abandon(out);
      return content_.Add(inside_.markers()[*marker], out);
    }
    raw_.clear();
    state_ = State::kContent;
    content_.SkipSpace();
  }

  // Returns whether nothing but separators has come since a call.
  bool after_call() const { return state_ == State::kBetween && calls_ > section_calls_; }

  // Takes bytes in which no marker is. They may end the section.
  void StepInside(const std::string& passed, OutputDelta* out) {
    for (const char c : passed) {
      if (state_ == State::kContent) {
        StepContent(c, out);
      } else if (state_ == State::kBetween) {
        StepBetween(c, out);
      } else if (state_ == State::kHeader) {
        StepHeader(c, out);
      } else if (state_ == State::kObject) {
        StepObject(c, out);
      } else {
        StepArguments(c, out);
      }
    }
  }

  void Open(size_t marker) {
    if (state_ == State::kContent) section_calls_ = calls_;
    state_ = State::kBetween;
    raw_ += format_.open[marker];
    bare_ = false;
  }

  void StepContent(char c, OutputDelta* out) {
    const bool first = calls_ == 0 && content_.only_space() && !outside_held_;
    if (format_.bare && first && c == (python() ? '[' : '{')) {
      section_calls_ = calls_;
      bare_ = true;
      raw_.clear();
      if (!python()) return BeginObject(c, out);
      raw_ = c;
      state_ = State::kBetween;
      return;
    }
    std::string passed;
    const std::optional<size_t> marker = outside_.Step(c, &passed);
    content_.Add(passed, out);
    outside_held_ = !marker.has_value() && passed.empty();
    if (marker.has_value()) Found(*marker, out);
  }

  // Takes a marker that stands in the content. A closing one belongs to the calls before it.
  void Found(size_t marker, OutputDelta* out) {
    if (marker < format_.open.size()) return Open(marker);
    if (!content_.skips()) content_.Add(outside_.markers()[marker], out);
  }

  void StepBetween(char c, OutputDelta* out) {
    if (c == '{') return BeginObject(c, out);
    raw_ += c;
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (space || format_.separators.find(c) != std::string::npos) return;
    if (after_call()) raw_ = c;  // the separators meant nothing
    if (!format_.header) return Abandon(out);
    header_ = c;
    state_ = State::kHeader;
  }

  void BeginObject(char c, OutputDelta* out) {
    state_ = State::kObject;
    reader_ = JsonCallReader(format_.keyed);
    announced_ = false;
    StepObject(c, out);
  }

  void StepObject(char c, OutputDelta* out) {
    if (!announced_) raw_ += c;
    const JsonStep step = reader_.Step(c);
    if (step == JsonStep::kBad) {
      if (!announced_) return Abandon(out);
      // Small models forget the object's own bracket.
      complete_ += reader_.has_all_arguments() ? 1 : 0;
      FinishArguments(AnswerEnd::kWhole, out);
      content_.SkipSpace();
      Abandon(out);
      return StepContent(c, out);
    }
    const bool ended = step == JsonStep::kEnd;
    const bool known = !bare_ || FindTool(reader_.name()) != nullptr;
    if (ended && !reader_.has_name()) return Abandon(out);
    if (ended && bare_ && !reader_.announced()) return Abandon(out);
    if (!announced_ && (reader_.announced() || ended)) {
      if (!known) return Abandon(out);
      Announce(out);
    }
    if (announced_) AddArguments(reader_.TakeArguments(), out);
    if (ended) EndCall(out, reader_.announced());
  }

  void Announce(OutputDelta* out) {
    announced_ = true;
    raw_.clear();
    content_.DropSpace();
    out->BeginCall(calls_++, reader_.name());
    mender_ = JsonMender();
    AddArguments(reader_.TakeArguments(), out);
  }

  void AddArguments(std::string_view text, OutputDelta* out) {
    std::string mended;
    mender_.Add(text, &mended);
    out->AddArguments(calls_ - 1, mended);
  }

  void FinishArguments(AnswerEnd end, OutputDelta* out) {
    std::string rest;
    if (literal_.has_value()) {
      literal_->Finish(end, &rest);
      literal_.reset();
    } else {
      mender_.Finish(end, &rest);
    }
    out->AddArguments(calls_ - 1, rest);
  }

  void EndCall(OutputDelta* out, bool has_arguments) {
    if (!has_arguments) out->AddArguments(calls_ - 1, "{}");
    FinishArguments(AnswerEnd::kWhole, out);
    ++complete_;
    raw_.clear();
    forced_ = false;
    content_.SkipSpace();
    state_ = State::kBetween;
  }

  void StepHeader(char c, OutputDelta* out) {
    raw_ += c;
    if (c != (python() ? '(' : '{')) {
      header_ += c;
      const bool names = !python() || IsCallNameByte(c);
      if (!names || header_.size() > kMaxHeader) Abandon(out);
      return;
    }
    const std::string name = NameOf(header_);
    const ToolSignature* tool = FindTool(name);
    if (name.empty() || (bare_ && tool == nullptr)) return Abandon(out);
    if (format_.arguments != ArgumentForm::kJson) {
      const std::string_view parameters = tool == nullptr ? "" : std::string_view(tool->parameters);
      literal_.emplace(format_.arguments,
                       ParseOrdered(parameters, kCallJson).value_or(OrderedJson()));
    }
    out->BeginCall(calls_++, name, IdOf(header_, name));
    mender_ = JsonMender();
    raw_.clear();
    content_.DropSpace();
    extent_ = JsonExtent();
    state_ = State::kArguments;
    StepArguments(c, out);
  }

  std::string NameOf(std::string name) const {
    for (const std::string& before : format_.before_name) {
      if (const size_t at = name.find(before); at != name.npos) name.erase(0, at + before.size());
    }
    for (const std::string& after : format_.after_name) {
      const size_t at = name.find(after);
      if (at == name.npos) continue;
      // A word may follow, as of a fence; two are prose.
      const std::string_view rest = Trim(std::string_view(name).substr(at + after.size()));
      if (rest.find_first_of(" \n\t") != rest.npos) return "";
      name.resize(at);
    }
    while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
    return std::all_of(name.begin(), name.end(), IsCallNameByte) ? name : std::string();
  }

  // Returns the id that the model gave the call; "" if it gave none, or one that it gave
  // before.
  std::string IdOf(std::string_view header, std::string_view name) {
    const size_t end = format_.after_id.empty() ? header.npos : header.find(format_.after_id);
    if (end == header.npos) return "";
    header = header.substr(0, end);
    const size_t begin = header.find(format_.before_id);
    if (begin == header.npos) return "";
    std::string id(Trim(header.substr(begin + format_.before_id.size())));
    const bool valid = !id.empty() && id != name && id.size() <= kMaxId &&
                       std::all_of(id.begin(), id.end(), IsCallNameByte) &&
                       std::find(ids_.begin(), ids_.end(), id) == ids_.end();
    if (!valid) return "";
    ids_.push_back(id);
    return id;
  }

  void StepArguments(char c, OutputDelta* out) {
    if (literal_.has_value()) return StepLiteral(c, out);
    const JsonStep step = extent_.Step(c);
    if (step == JsonStep::kBad) {
      FinishArguments(AnswerEnd::kWhole, out);
      raw_ = c;
      return Abandon(out);
    }
    AddArguments(std::string_view(&c, 1), out);
    if (step == JsonStep::kEnd) EndCall(out, /*has_arguments=*/true);
  }

  void StepLiteral(char c, OutputDelta* out) {
    std::string text;
    const JsonStep step = literal_->Step(c, &text);
    out->AddArguments(calls_ - 1, text);
    if (step == JsonStep::kBad) {
      FinishArguments(AnswerEnd::kWhole, out);
      raw_ = c;
      return Abandon(out);
    }
    if (step == JsonStep::kEnd) EndCall(out, /*has_arguments=*/true);
  }

  bool python() const { return format_.arguments == ArgumentForm::kPython; }

  const ToolSignature* FindTool(std::string_view name) const {
    const auto tool = std::find_if(tools_.begin(), tools_.end(),
                                   [&](const ToolSignature& one) { return one.name == name; });
    return tool == tools_.end() ? nullptr : &*tool;
  }

  // Takes the text since the last call for no call.
  void Abandon(OutputDelta* out) {
    state_ = State::kContent;
    bare_ = false;
    content_.Add(std::exchange(raw_, std::string()), out);
  }

  const MarkedFormat& format_;
  const std::vector<ToolSignature> tools_;
  MarkerScanner outside_;
  MarkerScanner inside_;
  bool outside_held_ = false;
  ContentWriter content_;
  State state_ = State::kContent;
  bool bare_ = false;
  bool announced_ = false;  // the object's call has begun
  bool forced_ = false;     // the text from here on is a call for certain
  JsonCallReader reader_;
  JsonExtent extent_;
  JsonMender mender_;                     // of the call's arguments
  std::optional<LiteralReader> literal_;  // of arguments that are no JSON
  std::string header_;
  std::vector<std::string> ids_;  // of the calls so far
  std::string raw_;               // what becomes content if it turns out to be no call
  int32_t calls_ = 0;
  int32_t section_calls_ = 0;  // calls before this section
  int32_t complete_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> MakeMarkedParser(const MarkedFormat* format,
                                               const std::vector<ToolSignature>& tools) {
  return std::make_unique<MarkedParser>(format, tools);
}

}  // namespace millrace
