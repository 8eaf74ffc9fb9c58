#include "text/tools/think_parser.h"

#include <optional>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "text/tools/content_writer.h"
#include "text/tools/marker_scanner.h"

namespace millrace {
namespace {

enum class ThinkMark { kOpen, kClose, kAnswerOpen, kCallOpen };

void Append(OutputDelta from, OutputDelta* out) {
  out->content += from.content;
  out->reasoning += from.reasoning;
  for (ToolCallDelta& call : from.calls) out->calls.push_back(std::move(call));
}

class ThinkParser : public OutputParser {
 public:
  ThinkParser(const ThinkFormat& format, bool inside, const std::vector<std::string>& call_opens,
              NextParser make_next)
      : label_(format.label),
        scanner_(MarkersOf(format, call_opens, &marks_)),
        answer_scanner_({format.answer_close}),
        make_next_(std::move(make_next)),
        next_(make_next_()),
        state_(inside ? State::kReasoning : State::kBegin) {
    if (inside) reasoning_.SkipSpace();
    labelled_ = inside && !label_.empty();
  }

  void Commit(OutputDelta* out) override {
    if (next_ != nullptr) next_->Commit(out);
  }

  void Finish(AnswerEnd end, OutputDelta* out) override {
    const std::string held = scanner_.Take();
    if (call_ != nullptr) {
      FinishCall(end, held, out);
    } else if (state_ == State::kReasoning) {
      AddReasoning(held, out);
      EndLabel(out);
    } else if (state_ != State::kContent) {
      // Nothing comes after a closing marker: that is no answer's text.
      Pass((dropped_.empty() ? space_ : std::string()) + held, out);
    } else if (const std::string rest = answer_scanner_.Take(); !rest.empty()) {
      Pass(after_answer_ + rest, out);
    }
    if (next_ != nullptr) next_->Finish(end, out);
  }

  bool in_reasoning() const override { return state_ == State::kReasoning; }
  bool may_be_call() const override {
    return in_reasoning() && (call_ != nullptr || scanner_.holds());
  }
  int32_t complete_calls() const override { return next_ == nullptr ? 0 : next_->complete_calls(); }

 private:
  enum class State { kBegin, kReasoning, kAfter, kContent };

  static std::vector<std::string> MarkersOf(const ThinkFormat& format,
                                            const std::vector<std::string>& call_opens,
                                            std::vector<ThinkMark>* marks) {
    std::vector<std::string> markers;
    const auto add = [&](const std::string& text, ThinkMark mark) {
      if (text.empty()) return;
      markers.push_back(text);
      marks->push_back(mark);
    };
    add(format.open, ThinkMark::kOpen);
    for (const std::string& text : format.more_opens) add(text, ThinkMark::kOpen);
    add(format.close, ThinkMark::kClose);
    for (const std::string& text : format.more_closes) add(text, ThinkMark::kClose);
    add(format.answer_open, ThinkMark::kAnswerOpen);
    for (const std::string& text : call_opens) add(text, ThinkMark::kCallOpen);
    return markers;
  }

  void Step(char c, OutputDelta* out) override {
    if (state_ == State::kContent) return StepContent(c, out);
    std::string passed;
    const std::optional<size_t> marker = scanner_.Step(c, &passed);
    if (state_ == State::kReasoning) {
      Think(passed, out);
      if (marker.has_value()) StepMarker(*marker, out);
      return;
    }
    for (size_t i = 0; i < passed.size(); ++i) {
      if (StepOutside(passed[i])) continue;
      // The answer has begun: with what came before, and with what is held back.
      std::string text = (state_ == State::kBegin ? space_ : std::string()) + passed.substr(i);
      text += marker.has_value() ? scanner_.markers()[*marker] : scanner_.Take();
      return BeginContent(dropped_ + text, out);
    }
    if (marker.has_value()) StepMarkerOutside(*marker, out);
  }

  // Takes a byte before or after the reasoning. False: the answer begins with it.
  bool StepOutside(char c) {
    if (!IsAnswerSpace(c)) return false;
    // A closing marker is one if it ends its line; "</think> is …" is prose.
    if (!dropped_.empty() && c != '\n') return false;
    if (!dropped_.empty()) state_ = State::kAfter;
    dropped_.clear();
    if (state_ == State::kBegin) space_ += c;
    return true;
  }

  void StepMarkerOutside(size_t marker, OutputDelta* out) {
    const std::string& text = scanner_.markers()[marker];
    switch (marks_[marker]) {
      case ThinkMark::kOpen:
        return Begin();
      case ThinkMark::kAnswerOpen:
        in_answer_ = true;
        state_ = State::kAfter;
        return;
      case ThinkMark::kClose:
        // The thought was closed already, by the prompt or by this answer.
        if (state_ == State::kBegin) dropped_ += std::exchange(space_, std::string()) + text;
        return;
      case ThinkMark::kCallOpen:
        return BeginContent((state_ == State::kBegin ? space_ : std::string()) + text, out);
    }
  }

  void BeginContent(const std::string& text, OutputDelta* out) {
    state_ = State::kContent;
    dropped_.clear();
    if (!in_answer_) return Pass(text, out);
    for (const char c : text) StepContent(c, out);
  }

  void StepContent(char c, OutputDelta* out) {
    if (!in_answer_) return Pass(std::string_view(&c, 1), out);
    std::string passed;
    const bool found = answer_scanner_.Step(c, &passed).has_value();
    for (const char p : passed) {
      // After the answer's closing marker white space alone may come.
      if (!after_answer_.empty() && IsAnswerSpace(p)) {
        after_answer_ += p;
        continue;
      }
      Pass(std::exchange(after_answer_, std::string()) + p, out);
    }
    if (!found) return;
    Pass(std::exchange(after_answer_, std::string()), out);
    after_answer_ = answer_scanner_.markers()[0];
  }

  void Begin() {
    state_ = State::kReasoning;
    labelled_ = !label_.empty();
    before_label_.clear();
    space_.clear();
    dropped_.clear();
    reasoning_.DropSpace();
    // A second thought.
    again_ = !reasoning_.only_space();
    reasoning_.SkipSpace();
  }

  // ---- In the reasoning ----

  void StepMarker(size_t marker, OutputDelta* out) {
    const std::string& text = scanner_.markers()[marker];
    switch (marks_[marker]) {
      case ThinkMark::kClose:
        StopHolding(out);
        EndLabel(out);
        state_ = State::kAfter;
        return;
      case ThinkMark::kCallOpen:
        return HoldCall(text, out);
      case ThinkMark::kOpen:
        // Models open what the prompt had opened already.
        if (call_ != nullptr || !reasoning_.only_space()) Think(text, out);
        return;
      case ThinkMark::kAnswerOpen:
        return Think(text, out);
    }
  }

  void HoldCall(const std::string& text, OutputDelta* out) {
    if (call_ != nullptr) {
      call_->Add(text, &found_);
      if (found_.content.empty() || !found_.calls.empty()) {
        held_ += text;
        return;
      }
      StopHolding(out);  // It was none, but this may be one.
    }
    call_ = make_next_();
    held_ = text;
    found_ = OutputDelta();
    call_->Add(text, &found_);
  }

  void Think(std::string_view text, OutputDelta* out) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (call_ == nullptr) return AddReasoning(text.substr(i), out);
      held_ += text[i];
      call_->Add(text.substr(i, 1), &found_);
      if (!found_.content.empty() && found_.calls.empty()) StopHolding(out);
    }
  }

  // Takes what was held back for reasoning.
  void StopHolding(OutputDelta* out) {
    call_ = nullptr;
    AddReasoning(std::exchange(held_, std::string()), out);
  }

  // Takes the beginning of a label for reasoning: nothing follows it.
  void EndLabel(OutputDelta* out) {
    if (!std::exchange(labelled_, false)) return;
    const std::string begun = std::exchange(before_label_, std::string());
    if (Trim(begun) != label_) AddReasoning(begun, out);
  }

  void FinishCall(AnswerEnd end, const std::string& rest, OutputDelta* out) {
    call_->Add(rest, &found_);
    call_->Finish(end, &found_);
    // An answer that was cut off could have closed its thought.
    const bool called =
        end == AnswerEnd::kCut ? call_->complete_calls() > 0 : !found_.calls.empty();
    if (!called) return AddReasoning(held_ + rest, out);
    state_ = State::kContent;
    Append(std::move(found_), out);
  }

  // Passes over the label where it stands in front, which shows once another byte follows it.
  std::string WithoutLabel(std::string_view text) {
    if (!labelled_) return std::string(text);
    before_label_ += text;
    const std::string_view begun = Trim(before_label_);
    if (begun.size() < label_.size() && label_.starts_with(begun)) return "";
    if (before_label_.size() == label_.size() && begun == label_) return "";
    labelled_ = false;
    std::string all = std::exchange(before_label_, std::string());
    const size_t size = label_.size();
    if (all.starts_with(label_) && IsAnswerSpace(all[size])) all.erase(0, size);
    return all;
  }

  void AddReasoning(std::string_view with_label, OutputDelta* out) {
    const std::string text = WithoutLabel(with_label);
    OutputDelta part;
    reasoning_.Add(text, &part);
    if (!part.content.empty() && std::exchange(again_, false)) out->reasoning += "\n\n";
    out->reasoning += part.content;
  }

  void Pass(std::string_view text, OutputDelta* out) {
    if (next_ != nullptr) {
      next_->Add(text, out);
    } else {
      out->content += text;
    }
  }

  const std::string label_;
  bool labelled_ = false;     // the label may follow
  std::string before_label_;  // what may be the label
  std::vector<ThinkMark> marks_;
  MarkerScanner scanner_;
  MarkerScanner answer_scanner_;
  NextParser make_next_;
  std::unique_ptr<OutputParser> next_;
  State state_;
  std::string space_;         // before the marker, if it comes
  std::string dropped_;       // a closing marker at the beginning, which may be text
  bool in_answer_ = false;    // the answer has its own markers
  std::string after_answer_;  // the answer's closing marker, and white space after it
  ContentWriter reasoning_;
  bool again_ = false;  // a second thought begins
  // What may be a call in a thought that never closes.
  std::unique_ptr<OutputParser> call_;
  std::string held_;
  OutputDelta found_;
};

}  // namespace

std::unique_ptr<OutputParser> MakeThinkParser(const ThinkFormat& format, bool inside,
                                              const std::vector<std::string>& call_opens,
                                              NextParser next) {
  return std::make_unique<ThinkParser>(format, inside, call_opens, std::move(next));
}

}  // namespace millrace
