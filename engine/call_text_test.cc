#include "engine/call_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "formats/json.h"
#include "text/tools/output_format.h"

namespace millrace {
namespace {

TEST(CallTextTest, IsReadByTheParserOfItsFormat) {
  const std::string arguments = R"({"zone":"Bern","days":[1,2]})";
  for (const std::string& name : OutputFormat::ToolParsers()) {
    if (name == "auto" || name == "none") continue;
    SCOPED_TRACE(name);
    const auto format = OutputFormat::Choose("", name, "none");
    ASSERT_TRUE(format.ok());
    const auto parser = format->MakeParser(
        {.tools = true,
         .signatures = {{"get_time", R"({"type":"object","properties":{"zone":{"type":"string"},)"
                                     R"("days":{"type":"array"}}})"}}});
    OutputDelta read;
    const ToolCall call = {.name = "get_time", .arguments = arguments};
    parser->Add(CallsText(*format->tools(), {call}, 0), &read);
    parser->Finish(AnswerEnd::kWhole, &read);
    EXPECT_EQ(read.content, "");
    std::string called;
    std::string given;
    for (const ToolCallDelta& call : read.calls) {
      EXPECT_EQ(call.index, 0);
      called += call.name;
      given += call.arguments;
    }
    EXPECT_EQ(called, "get_time");
    EXPECT_EQ(ParseOrdered(given, JsonLimits()).value_or(OrderedJson()).dump(), arguments);
  }
}

}  // namespace
}  // namespace millrace
