#include "text/tools/harmony_parser.h"

#include <iterator>
#include <string>
#include <utility>

#include "text/tools/marker_scanner.h"

namespace millrace {
namespace {

constexpr size_t kMaxHarmonyHeader = 512;

enum Marker { kStart, kChannel, kConstrain, kMessage, kEnd, kReturn, kCall };
const std::vector<std::string>& Markers() {
  static const auto& markers =
      *new std::vector<std::string>{"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                    "<|end|>",   "<|return|>",  "<|call|>"};
  return markers;
}

// Returns the word of `text` that follows `before`, up to white space or a marker.
std::string WordAfter(const std::string& text, std::string_view before) {
  const size_t at = text.find(before);
  if (at == text.npos) return "";
  const size_t begin = at + before.size();
  const size_t end = text.find_first_of(" \n\t<", begin);
  return text.substr(begin, end == text.npos ? text.npos : end - begin);
}

class HarmonyParser : public OutputParser {
 public:
  HarmonyParser(bool calls, bool separates)
      : takes_calls_(calls), separates_(separates), scanner_(Markers()) {}

  void Finish(AnswerEnd, OutputDelta* out) override {
    const std::string held = scanner_.Take();
    if (state_ == State::kBody) {
      Write(held, out);
    } else if (!any_message_) {
      out->content += header_ + held;  // a model that does not write this format
    }
    EndMessage();
  }

  bool in_reasoning() const override {
    return separates_ && state_ == State::kBody && kind_ == Kind::kReasoning;
  }
  int32_t complete_calls() const override { return complete_; }

 private:
  enum class State { kHeader, kBody };
  enum class Kind { kContent, kReasoning, kCall };

  void Step(char c, OutputDelta* out) override {
    std::string passed;
    const std::optional<size_t> marker = scanner_.Step(c, &passed);
    if (state_ == State::kBody) {
      Write(passed, out);
      if (marker.has_value()) Leave(static_cast<Marker>(*marker), out);
      return;
    }
    header_ += passed;
    if (marker.has_value()) {
      switch (static_cast<Marker>(*marker)) {
        case kMessage:
          return Enter(out);
        case kStart:
        case kEnd:
        case kReturn:
        case kCall:
          header_.clear();
          started_ = *marker == kStart;
          break;
        default:
          header_ += Markers()[*marker];
      }
    }
    if (header_.size() > kMaxHarmonyHeader) {
      state_ = State::kBody;
      kind_ = Kind::kContent;
      Write(std::exchange(header_, std::string()), out);
    }
  }

  // A header has ended: "assistant<|channel|>commentary to=functions.f <|constrain|>json".
  void Enter(OutputDelta* out) {
    state_ = State::kBody;
    any_message_ = true;
    const std::string header = std::exchange(header_, std::string());
    const std::string channel = WordAfter(header, Markers()[kChannel]);
    std::string recipient = WordAfter(header, "to=");
    kind_ = channel == "analysis" ? Kind::kReasoning : Kind::kContent;
    constexpr std::string_view kFunctions = "functions.";
    if (recipient.starts_with(kFunctions)) recipient.erase(0, kFunctions.size());
    if (takes_calls_ && !recipient.empty() && recipient != "assistant" && recipient != "user") {
      kind_ = Kind::kCall;
      empty_ = true;
      out->BeginCall(calls_++, recipient);
    }
    const bool started = std::exchange(started_, false);
    if (!separates_) {
      if (kind_ == Kind::kCall) return;
      if (started) out->content += Markers()[kStart];
      out->content += header + Markers()[kMessage];
      return;
    }
    if (kind_ == Kind::kReasoning && std::exchange(reasoned_, true)) out->reasoning += "\n\n";
    if (kind_ == Kind::kContent && std::exchange(spoke_, true)) out->content += "\n\n";
  }

  void Leave(Marker marker, OutputDelta* out) {
    if (marker == kConstrain || marker == kMessage) return Write(Markers()[marker], out);
    if (kind_ == Kind::kCall && empty_) out->AddArguments(calls_ - 1, "{}");
    EndMessage();
    state_ = State::kHeader;
    started_ = marker == kStart;
    if (marker == kChannel) header_ = Markers()[marker];
    const bool ends = marker == kEnd || marker == kReturn;
    if (!separates_ && kind_ != Kind::kCall && ends) out->content += Markers()[marker];
  }

  void EndMessage() {
    if (state_ == State::kBody && kind_ == Kind::kCall) ++complete_;
  }

  void Write(const std::string& text, OutputDelta* out) {
    if (text.empty()) return;
    empty_ = false;
    if (kind_ == Kind::kCall) {
      out->AddArguments(calls_ - 1, text);
    } else {
      (separates_ && kind_ == Kind::kReasoning ? out->reasoning : out->content) += text;
    }
  }

  const bool takes_calls_;
  const bool separates_;
  MarkerScanner scanner_;
  State state_ = State::kHeader;
  Kind kind_ = Kind::kContent;
  std::string header_;
  bool started_ = false;  // the header began with <|start|>
  bool any_message_ = false;
  bool reasoned_ = false;
  bool spoke_ = false;
  bool empty_ = true;  // the message has no text yet
  int32_t calls_ = 0;
  int32_t complete_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> MakeHarmonyParser(bool calls, bool separates) {
  return std::make_unique<HarmonyParser>(calls, separates);
}

}  // namespace millrace
