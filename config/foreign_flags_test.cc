#include "config/foreign_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "base/strings.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ForeignFlagsTest, ATableHasTheFlagsOfItsServerAlone) {
  const std::string vllm = ForeignFlagsMarkdown("vLLM");
  EXPECT_THAT(vllm, HasSubstr("| `--port` | `--http-port` | the same |\n"));
  EXPECT_THAT(vllm, HasSubstr("| `--async-scheduling` | taken | the next step is always planned "
                              "while one runs |\n"));
  EXPECT_THAT(vllm, HasSubstr("| `--enable-reasoning` | refused | use --reasoning-parser |\n"));
  EXPECT_THAT(vllm, Not(HasSubstr("`--ctx-size`")));
  EXPECT_THAT(ForeignFlagsMarkdown("llama.cpp"), HasSubstr("| `--port` | `--http-port` |"));
  EXPECT_THAT(ForeignFlagsMarkdown("SGLang"), Not(HasSubstr("`--port`")));
  for (const std::string_view line : SplitList(vllm, '\n')) {
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 4) << line;
  }
}

// ctest runs in the root of the source tree.
TEST(ForeignFlagsTest, TheDocumentedTablesAreThese) {
  constexpr struct {
    std::string_view origin;
    const char* page;
  } kPages[] = {{"vLLM", "docs/coming-from-vllm.md"},
                {"SGLang", "docs/coming-from-sglang.md"},
                {"llama.cpp", "docs/coming-from-llama-cpp.md"}};
  for (const auto& [origin, page] : kPages) {
    std::ifstream file(page);
    const std::string document(std::istreambuf_iterator<char>(file), {});
    const std::string expected =
        StrCat("<!-- flags of ", origin, " -->\n", ForeignFlagsMarkdown(origin), "<!-- /flags of ",
               origin, " -->\n");
    EXPECT_THAT(AllForeignFlagsMarkdown(), HasSubstr(expected));
    EXPECT_NE(document.find(expected), document.npos)
        << "The table of " << page << " is not that of config/foreign_flags.cc. Put this between "
        << "its markers (millraced --print-foreign-flags prints it):\n"
        << expected;
  }
}

}  // namespace
}  // namespace millrace
