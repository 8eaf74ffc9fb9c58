// Reasoning between two markers at the start of an answer: <think>…</think> and its kin.
#ifndef MILLRACE_TEXT_TOOLS_THINK_PARSER_H_
#define MILLRACE_TEXT_TOOLS_THINK_PARSER_H_

#include <memory>
#include <string>
#include <string_view>

#include "text/tools/content_writer.h"
#include "text/tools/marker_scanner.h"
#include "text/tools/output_parser.h"

namespace millrace {

struct ThinkFormat {
  std::string open;
  std::string close;
};

// Takes the reasoning out and hands the remainder to `next`, or to the content if that is null.
// White space at both ends of the reasoning is dropped, and after it.
class ThinkParser : public OutputParser {
 public:
  // `inside`: the prompt has already written the opening marker.
  ThinkParser(const ThinkFormat& format, bool inside, std::unique_ptr<OutputParser> next)
      : scanner_({format.open, format.close}),
        next_(std::move(next)),
        state_(inside ? State::kReasoning : State::kBegin) {
    if (inside) reasoning_.SkipSpace();
  }

  void Finish(OutputDelta* out) override {
    const std::string held = scanner_.Take();
    if (state_ == State::kReasoning) {
      AddReasoning(held, out);
    } else {
      Pass(state_ == State::kBegin ? space_ + held : held, out);
    }
    if (next_ != nullptr) next_->Finish(out);
  }

  bool in_reasoning() const override { return state_ == State::kReasoning; }
  int32_t complete_calls() const override { return next_ == nullptr ? 0 : next_->complete_calls(); }

 private:
  enum class State { kBegin, kReasoning, kAfter, kContent };

  void Step(char c, OutputDelta* out) override {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (state_ == State::kContent) return Pass(std::string_view(&c, 1), out);
    if (state_ == State::kAfter) {
      if (space) return;
      state_ = State::kContent;
      return Pass(std::string_view(&c, 1), out);
    }
    std::string passed;
    const std::optional<size_t> marker = scanner_.Step(c, &passed);
    if (state_ == State::kBegin) {
      if (marker == 0) return Begin();
      if (!marker.has_value() && passed.empty()) return;
      if (!marker.has_value() && space && passed.size() == 1) {
        space_ += c;
        return;
      }
      state_ = State::kContent;
      const std::string held = scanner_.Take();
      return Pass(space_ + passed + (marker ? scanner_.markers()[*marker] : held), out);
    }
    AddReasoning(passed, out);
    if (marker == 1) state_ = State::kAfter;
    // Models open what the prompt had opened already.
    if (marker == 0 && !reasoning_.only_space()) AddReasoning(scanner_.markers()[0], out);
  }

  void Begin() {
    state_ = State::kReasoning;
    space_.clear();
    reasoning_.SkipSpace();
  }

  void AddReasoning(std::string_view text, OutputDelta* out) {
    OutputDelta part;
    for (const char c : text) reasoning_.Add(c, &part);
    out->reasoning += part.content;
  }

  void Pass(std::string_view text, OutputDelta* out) {
    if (next_ != nullptr) {
      next_->Add(text, out);
    } else {
      out->content += text;
    }
  }

  MarkerScanner scanner_;
  std::unique_ptr<OutputParser> next_;
  State state_;
  std::string space_;  // before the marker, if it comes
  ContentWriter reasoning_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_THINK_PARSER_H_
