#include "engine/text/call_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/strings.h"
#include "formats/json/json.h"
#include "text/tools/output_format.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(CallTextTest, LongIntegersKeepTheirDigitsInEachForm) {
  const std::string n = "123456789012345678901234567890";
  const ToolCall call = {.name = "f", .arguments = StrCat(R"({"n":)", n, R"(,"list":[-)", n, "]}")};
  for (const std::string& name : OutputFormat::ToolParsers()) {
    if (name == "auto" || name == "none") continue;
    SCOPED_TRACE(name);
    const auto format = OutputFormat::Choose("", name, "none");
    ASSERT_TRUE(format.ok());
    const std::string text = CallsText(*format->tools(), {call}, 0);
    EXPECT_THAT(text, HasSubstr(StrCat("[-", n, "]")));
    EXPECT_THAT(text, Not(HasSubstr("\xef\xb7\x90")));
    EXPECT_THAT(text, Not(HasSubstr("e+29")));
    EXPECT_THAT(text, Not(HasSubstr(StrCat("\"", n))));
  }
}

}  // namespace
}  // namespace millrace
