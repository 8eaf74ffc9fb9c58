#include "text/tools/recipient_parser.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/strings.h"
#include "text/tools/content_writer.h"
#include "text/tools/json_call.h"
#include "text/tools/json_mender.h"
#include "text/tools/marker_scanner.h"

namespace millrace {
namespace {

class RecipientParser : public OutputParser {
 public:
  explicit RecipientParser(const std::vector<ToolSignature>& tools) {
    for (const ToolSignature& tool : tools) names_.push_back(tool.name);
  }

  void Commit(OutputDelta*) override { forced_ = state_ == State::kBeforeArguments; }

  void Finish(AnswerEnd end, OutputDelta* out) override {
    if (state_ == State::kArguments) {
      FinishArguments(end, out);
      complete_ += end == AnswerEnd::kWhole ? 1 : 0;
    } else if (state_ == State::kContent) {
      content_.Add(scanner_.Take(), out);
    } else if (!forced_) {
      content_.Add(raw_, out);
    }
    content_.Finish(out);
  }

  int32_t complete_calls() const override { return complete_; }

 private:
  enum class State { kRecipient, kBeforeArguments, kArguments, kContent };

  void Step(char c, OutputDelta* out) override {
    switch (state_) {
      case State::kRecipient:
        return StepRecipient(c, out);
      case State::kBeforeArguments:
        raw_ += c;
        if (IsAnswerSpace(c)) return;
        return c == '{' ? BeginArguments(out) : Abandon(out);
      case State::kArguments:
        return StepArguments(c, out);
      case State::kContent:
        break;
    }
    std::string passed;
    const bool found = scanner_.Step(c, &passed).has_value();
    content_.Add(passed, out);
    if (!found) return;
    raw_ = kRecipientOpen;
    name_.clear();
    state_ = State::kRecipient;
  }

  void StepRecipient(char c, OutputDelta* out) {
    raw_ += c;
    // The prompt may lack the opening.
    if (kRecipientOpen.starts_with(raw_)) return;
    if (c != '\n') {
      name_ += c;
      if (!MayBeRecipient()) Abandon(out);
      return;
    }
    const std::string_view name = Trim(name_);
    if (name == kRecipientAll) {
      raw_.clear();
      content_.DropSpace();
      state_ = State::kContent;
    } else if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
      name_ = std::string(name);
      state_ = State::kBeforeArguments;
    } else {
      Abandon(out);
    }
  }

  bool MayBeRecipient() const {
    const std::string_view name = Trim(name_);
    return kRecipientAll.starts_with(name) ||
           std::any_of(names_.begin(), names_.end(),
                       [&](const std::string& one) { return one.starts_with(name); });
  }

  void BeginArguments(OutputDelta* out) {
    content_.DropSpace();
    out->BeginCall(calls_++, name_);
    raw_.clear();
    extent_ = JsonExtent();
    mender_ = JsonMender();
    state_ = State::kArguments;
    StepArguments('{', out);
  }

  void StepArguments(char c, OutputDelta* out) {
    const JsonStep step = extent_.Step(c);
    if (step != JsonStep::kBad) {
      std::string mended;
      mender_.Add(std::string_view(&c, 1), &mended);
      out->AddArguments(calls_ - 1, mended);
      if (step != JsonStep::kEnd) return;
    }
    FinishArguments(AnswerEnd::kWhole, out);
    forced_ = false;
    content_.SkipSpace();
    state_ = State::kContent;
    if (step == JsonStep::kBad) return Step(c, out);
    ++complete_;
  }

  void FinishArguments(AnswerEnd end, OutputDelta* out) {
    std::string rest;
    mender_.Finish(end, &rest);
    out->AddArguments(calls_ - 1, rest);
  }

  // Takes the text since the last message for content.
  void Abandon(OutputDelta* out) {
    state_ = State::kContent;
    content_.Add(std::exchange(raw_, std::string()), out);
  }

  std::vector<std::string> names_;
  MarkerScanner scanner_{{std::string(kRecipientOpen)}};
  ContentWriter content_;
  State state_ = State::kRecipient;
  std::string raw_;  // what becomes content if it turns out to be no message
  std::string name_;
  bool forced_ = false;  // the text from here on is a call for certain
  JsonExtent extent_;
  JsonMender mender_;  // of the call's arguments
  int32_t calls_ = 0;
  int32_t complete_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> MakeRecipientParser(const std::vector<ToolSignature>& tools) {
  return std::make_unique<RecipientParser>(tools);
}

}  // namespace millrace
