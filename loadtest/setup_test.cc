#include "loadtest/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

TEST(SetupTest, FlagsAreAsAShellReadsThemAndHideSecrets) {
  EXPECT_EQ(FlagsText({"sweep", "--rate", "5", "--label", "it's mine", "--dataset", ""}),
            "sweep --rate 5 --label 'it'\\''s mine' --dataset ''");
  EXPECT_EQ(FlagsText({"--api-key", "k", "--api-key=k", "--header", "A:b", "--header=A:b"}),
            "--api-key ... --api-key=... --header ... --header=...");
  const auto options = ParseOptions({"--rate", "5", "--api-key", "secret"});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->flags, "--rate 5 --api-key ...");
}

TEST(SetupTest, NamesTheMachine) {
  EXPECT_EQ(MachineText("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: x\n", 4,
                        8.5 * (1 << 30)),
            "4 x Some CPU @ 2 GHz, 8.5 GiB of memory");
  EXPECT_EQ(MachineText("processor\t: 0\n", 1, 0), "1 x CPU, 0.0 GiB of memory");
  EXPECT_EQ(MachineText("model name", 1, 0), "1 x CPU, 0.0 GiB of memory");
  const Facts facts = GeneratorFacts({.flags = "--rate 5"});
  ASSERT_THAT(facts, SizeIs(3));
  EXPECT_THAT(facts[0].second, HasSubstr("millrace-loadtest "));
  EXPECT_THAT(facts[1].second, HasSubstr(" GiB of memory"));
  EXPECT_EQ(facts[2].second, "--rate 5");
}

TEST(SetupTest, ReadsWhatServersSay) {
  EXPECT_THAT(ServerFacts(R"({"version": "0.1.0"})",
                          R"({"data": [{"id": "other", "max_model_len": 1},
                              {"id": "m", "object": "model", "created": 5, "max_model_len": 4096,
                               "ready": true, "state": [1], "root": "m"}]})",
                          "m"),
              ElementsAre(Pair("version", "0.1.0"), Pair("max_model_len", "4096"),
                          Pair("ready", "true"), Pair("root", "m")));
}

TEST(SetupTest, TakesAnythingFromAServer) {
  for (const char* text : {"", "{", "[]", "5", R"({"version": {}, "data": {}})",
                           R"({"version": null, "data": [5, {}, {"id": 5}, {"id": "x"}]})"}) {
    EXPECT_THAT(ServerFacts(text, text, "m"), IsEmpty()) << text;
  }
  std::string many = R"({"data": [{"id": "m")";
  for (int i = 0; i < 1000; ++i) {
    many += StrCat(", \"", i, "\": \"", std::string(1000, 'x'), "\"");
  }
  const Facts facts = ServerFacts("", many + "}]}", "m");
  EXPECT_THAT(facts, SizeIs(16));
  EXPECT_THAT(facts[0].second, SizeIs(200));
}

}  // namespace
}  // namespace millrace
