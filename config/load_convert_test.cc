// The settings of `millraced convert`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

absl::StatusOr<Startup> Convert(Arguments arguments, const Arguments& environment = {}) {
  arguments.insert(arguments.begin(), "convert");
  return LoadSettings(arguments, environment);
}

std::string Error(const Arguments& arguments, const Arguments& environment = {}) {
  const absl::StatusOr<Startup> startup = Convert(arguments, environment);
  return startup.ok() ? "(no error)" : std::string(startup.status().message());
}

TEST(LoadConvertTest, TheSecondWordIsTheFolder) {
  const absl::StatusOr<Startup> startup = Convert({"step-1000", "new", "--model-config=base"});
  ASSERT_TRUE(startup.ok()) << startup.status();
  EXPECT_EQ(startup->command, Command::kConvert);
  EXPECT_EQ(startup->settings.model, "step-1000");
  EXPECT_EQ(startup->settings.output, "new");
  EXPECT_EQ(startup->settings.model_config, "base");
  EXPECT_EQ(startup->settings.output_type, OutputType::kAuto);
  EXPECT_EQ(startup->settings.shard_size, 5'000'000'000);
}

TEST(LoadConvertTest, EveryFlag) {
  const absl::StatusOr<Startup> startup = Convert(
      {"--model=a", "--output=b", "--model-config=c", "--rules=d", "--output-dtype=bfloat16",
       "--shard-size=1GB", "--check=Once upon a time", "--log=debug"});
  ASSERT_TRUE(startup.ok()) << startup.status();
  EXPECT_EQ(startup->settings.rules, "d");
  EXPECT_EQ(startup->settings.output_type, OutputType::kBfloat16);
  EXPECT_EQ(startup->settings.shard_size, 1'000'000'000);
  EXPECT_EQ(startup->settings.check, "Once upon a time");
}

TEST(LoadConvertTest, Refusals) {
  EXPECT_THAT(Error({"a", "b"}), HasSubstr("convert: expected a checkpoint, the folder to make"));
  EXPECT_THAT(Error({"a", "--model-config=c"}), HasSubstr("convert: expected a checkpoint"));
  // The server's own model in the environment is not the one to convert.
  EXPECT_THAT(Error({"--output=b", "--model-config=c"}, {"MILLRACE_MODEL=a"}),
              HasSubstr("convert: expected a checkpoint"));
  EXPECT_THAT(Error({"a", "b", "--model-config=c", "--threads=2"}),
              HasSubstr("which means nothing to convert, which converts a checkpoint"));
  EXPECT_THAT(Error({"a", "b", "--model-config=c", "--output-dtype=int8"}),
              HasSubstr("expected one of auto, bfloat16, float16, float32"));
}

TEST(LoadConvertTest, OtherCommandsTakeNoneOfThem) {
  EXPECT_EQ(LoadSettings({"m.gguf", "--check=x"}, {}).status().message(),
            "flag --check: got \"x\", allowed only with `millraced convert`");
  EXPECT_FALSE(LoadSettings({"bench", "--rules=x"}, {}).ok());
  EXPECT_TRUE(LoadSettings({"m.gguf"}, {"MILLRACE_RULES=x"}).ok());
}

}  // namespace
}  // namespace millrace
