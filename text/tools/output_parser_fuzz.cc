// Fuzzes the parsers of tool calls and reasoning. The first byte chooses the parsers, the rest is
// an answer: given in pieces, it must come out as it does given whole, and no byte may be read that
// is not there. Without a call, reasoning and recipients all of it must come out as content, and
// the arguments of element calls must be JSON.
#include <nlohmann/json.hpp>

#include "base/fuzz_test_util.h"
#include "text/tools/output_format.h"
#include "text/tools/xml_value.h"

namespace {

using millrace::FuzzCheck;

struct Whole {
  std::string content;
  std::string reasoning;
  std::vector<std::string> names;
  std::vector<std::string> arguments;

  bool operator==(const Whole&) const = default;

  void Add(const millrace::OutputDelta& delta) {
    content += delta.content;
    reasoning += delta.reasoning;
    for (const millrace::ToolCallDelta& call : delta.calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index == names.size()) {
        FuzzCheck(!call.name.empty(), "a call without a name");
        names.push_back(call.name);
        arguments.emplace_back();
      } else {
        FuzzCheck(index + 1 == names.size() && call.name.empty(), "a call out of order");
      }
      arguments[index] += call.arguments;
    }
  }
};

const std::vector<millrace::OutputFormat>& Formats() {
  static const auto& formats = *new std::vector<millrace::OutputFormat>([] {
    std::vector<millrace::OutputFormat> all;
    const auto add = [&all](std::string_view tools, std::string_view reasoning) {
      auto format = millrace::OutputFormat::Choose("", tools, reasoning);
      if (format.ok()) all.push_back(*std::move(format));
    };
    for (const std::string& tools : millrace::OutputFormat::ToolParsers()) add(tools, "none");
    for (const std::string& reasoning : millrace::OutputFormat::ReasoningParsers()) {
      add("none", reasoning);
      add("hermes", reasoning);
      add("qwen3_coder", reasoning);
      add("openai", reasoning);
    }
    return all;
  }());
  return formats;
}

std::unique_ptr<millrace::OutputParser> MakeParser(const millrace::OutputFormat& format,
                                                   bool inside) {
  return format.MakeParser(
      {.tools = format.tools() != nullptr,
       .reasoning = format.reasoning() != nullptr,
       .signatures = {{"f", R"({"type":"object","properties":{"a":{"type":"integer"},)"
                            R"("s":{"type":"string"},"o":{"type":"object"},)"
                            R"("e":{"enum":["1",2,null]},"m":{"anyOf":[{"type":"string"},)"
                            R"({"type":"array"}]}}})"},
                      {"g", ""}},
       .inside_reasoning = inside});
}

// Returns what the answer means, given in pieces of at most `most` bytes.
Whole Parse(const millrace::OutputFormat& format, bool inside, std::string_view text, size_t most,
            millrace::AnswerEnd end) {
  Whole whole;
  const auto parser = MakeParser(format, inside);
  if (parser == nullptr) return whole;
  millrace::FuzzRandom random(text);
  while (!text.empty()) {
    const size_t size = most == 0 ? text.size() : 1 + random.Below(most);
    millrace::OutputDelta delta;
    parser->Add(text.substr(0, size), &delta);
    whole.Add(delta);
    text.remove_prefix(std::min(size, text.size()));
  }
  millrace::OutputDelta last;
  parser->Finish(end, &last);
  whole.Add(last);
  FuzzCheck(parser->complete_calls() >= 0 &&
                parser->complete_calls() <= static_cast<int32_t>(whole.names.size()),
            "more complete calls than calls");
  return whole;
}

bool IsUtf8(std::string_view text) { return nlohmann::json::accept(millrace::Quoted(text)); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const uint8_t choice = input.Byte();
  const millrace::OutputFormat& format = Formats()[choice % Formats().size()];
  const bool inside = input.Byte() % 2 == 1;
  const auto end = input.Byte() % 4 == 0 ? millrace::AnswerEnd::kCut : millrace::AnswerEnd::kWhole;
  const Whole whole = Parse(format, inside, input.rest(), 0, end);
  for (const size_t most : {1, 3, 17}) {
    FuzzCheck(Parse(format, inside, input.rest(), most, end) == whole, "pieces change the answer");
  }
  const millrace::ToolFormat* tools = format.tools();
  if (tools != nullptr && tools->kind != millrace::ToolFormat::Kind::kHarmony) {
    const bool plain = format.reasoning() == nullptr && whole.names.empty() &&
                       tools->kind != millrace::ToolFormat::Kind::kRecipients;
    FuzzCheck(!plain || whole.content == input.rest(), "text that is no call is lost");
    const bool checks = tools->kind == millrace::ToolFormat::Kind::kXml &&
                        end == millrace::AnswerEnd::kWhole && IsUtf8(input.rest());
    for (const std::string& arguments : whole.arguments) {
      FuzzCheck(!checks || nlohmann::json::accept(arguments), "arguments that are no JSON");
    }
  }
  static_cast<void>(format.BeginsReasoning(input.rest()));
  static_cast<void>(format.ForcedCall("f", input.rest()));
  return 0;
}
