#include "loadtest/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loadtest/flags.h"
#include "loadtest/url.h"

namespace millrace {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const absl::StatusOr<Options> options = ParseOptions(arguments);
  return options.ok() ? "" : std::string(options.status().message());
}

TEST(OptionsTest, ReadsFlagsInEachForm) {
  const auto options = ParseOptions({"--concurrency=8", "--request-rate", "2.5", "--goodput",
                                     "ttft:200", "tpot:50.5", "--arrival", "trace:x", "--header",
                                     "A-b: c:d", "--save-detailed"});
  // A trace has its own times.
  EXPECT_THAT(std::string(options.status().message()), HasSubstr("--rate"));
  const auto good =
      ParseOptions({"--max-concurrency=8", "--rate", "2.5", "--goodput", "ttft:200", "tpot:50.5",
                    "--duration", "1.5m", "--header", "A-b: c:d", "--save-detailed",
                    "--json=r.json", "--metric-percentiles", "50,99.9"});
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->concurrency, 8);
  EXPECT_EQ(good->rate, 2.5);
  EXPECT_EQ(good->goals.ToString(), "ttft:200 tpot:50.5");
  EXPECT_EQ(good->duration, 90);
  EXPECT_EQ(good->headers.front().second, "c:d");
  EXPECT_TRUE(good->save_detailed);
  EXPECT_THAT(good->percentiles, testing::ElementsAre(50, 99.9));
  EXPECT_EQ(good->url, "http://127.0.0.1:8000");
  EXPECT_EQ(good->num_prompts, 0);
}

TEST(OptionsTest, ATraceHasItsFile) {
  const auto options = ParseOptions({"--arrival", "trace", "times.jsonl"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->trace_file, "times.jsonl");
  EXPECT_THAT(ErrorOf({"--arrival", "trace"}), HasSubstr("--arrival trace FILE"));
  EXPECT_THAT(ErrorOf({"--arrival", "trace", "--seed", "1"}), HasSubstr("--arrival trace FILE"));
}

TEST(OptionsTest, ErrorsNameTheFlagWhatCameAndWhatIsAllowed) {
  EXPECT_EQ(ErrorOf({"--concurrency", "0"}),
            "flag --concurrency: got \"0\", expected a whole number from 1 to 1000000");
  EXPECT_EQ(ErrorOf({"--protocol", "tcp"}),
            "flag --protocol: got \"tcp\", expected one of http, grpc");
  EXPECT_THAT(ErrorOf({"--nope", "1"}), HasSubstr("flag --nope: there is no such flag"));
  EXPECT_THAT(ErrorOf({"--seed"}), HasSubstr("its value is missing"));
  EXPECT_THAT(ErrorOf({"--quiet=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("neither a flag nor a command"));
  EXPECT_THAT(ErrorOf({"--goodput", "ttft"}), HasSubstr("ttft:MS"));
  EXPECT_THAT(ErrorOf({"--goodput", ":5"}), HasSubstr("ttft:MS"));
  EXPECT_THAT(ErrorOf({"--goodput", "p99:5"}), HasSubstr("ttft:MS"));
  EXPECT_THAT(ErrorOf({"--header", "a b: c"}), HasSubstr("NAME:VALUE"));
  EXPECT_THAT(ErrorOf({"--header", "a: b\r\nc: d"}), HasSubstr("NAME:VALUE"));
  EXPECT_THAT(ErrorOf({"--header", "a: \x01"}), HasSubstr("printable"));
  EXPECT_THAT(ErrorOf({"--api-key", "\xc3\xa4"}), HasSubstr("printable"));
  EXPECT_THAT(ErrorOf({"--input-len", "zipf:1"}), HasSubstr("lognormal:MEDIAN:SIGMA"));
  EXPECT_THAT(ErrorOf({"--duration", "-1s"}), HasSubstr("a time, as"));
  EXPECT_THAT(ErrorOf({"--cancel-ratio", "1.5"}), HasSubstr("a number from 0 to 1"));
}

TEST(OptionsTest, RefusesWhatContradictsItself) {
  EXPECT_THAT(ErrorOf({"--arrival", "poisson"}), HasSubstr("needs --rate"));
  EXPECT_THAT(ErrorOf({"--arrival", "ramp", "--rate", "5"}), HasSubstr("needs --duration"));
  EXPECT_THAT(ErrorOf({"--burstiness", "2", "--rate", "5", "--arrival", "constant"}),
              HasSubstr("--burstiness"));
  EXPECT_THAT(ErrorOf({"--extra-body", "[]"}), HasSubstr("a JSON object"));
  EXPECT_THAT(ErrorOf({"--extra-body", "{}", "--protocol", "grpc"}), HasSubstr("HTTP alone"));
  EXPECT_THAT(ErrorOf({"--endpoint", "v1"}), HasSubstr("begins with /"));
  EXPECT_THAT(ErrorOf({"--endpoint", "/v1 HTTP/1.1\r\nX: y"}), HasSubstr("begins with /"));
  EXPECT_THAT(ErrorOf({"--vocab-size", "5", "--endpoint", "/v1/chat/completions"}),
              HasSubstr("--vocab-size"));
  EXPECT_THAT(ErrorOf({"--rates", "1,2"}), HasSubstr("sweep"));
  EXPECT_THAT(ErrorOf({"sweep"}), HasSubstr("--slo"));
  EXPECT_THAT(ErrorOf({"sweep", "--slo", "ttft:1", "--arrival", "ramp"}), HasSubstr("--arrival"));
  EXPECT_THAT(ErrorOf({"sweep", "--rates", "1", "--concurrencies", "1"}), HasSubstr("not of both"));
  EXPECT_THAT(ErrorOf({"compare", "a.json"}), HasSubstr("two files"));
}

TEST(OptionsTest, RefusesWhatHasNoUse) {
  EXPECT_THAT(ErrorOf({"--burst-size", "3", "--rate", "5"}), HasSubstr("--burst-size: it is for"));
  EXPECT_THAT(ErrorOf({"--ramp-up-start-rps", "3", "--rate", "5"}), HasSubstr("--arrival ramp"));
  EXPECT_THAT(ErrorOf({"--burstiness", "2"}), HasSubstr("--burstiness: a closed loop"));
  EXPECT_THAT(ErrorOf({"--think-time", "2s"}), HasSubstr("needs --turns"));
  EXPECT_THAT(ErrorOf({"--slow-rate", "5"}), HasSubstr("needs --slow-ratio"));
  EXPECT_THAT(ErrorOf({"--num-prefixes", "5"}), HasSubstr("needs --prefix-len"));
  EXPECT_THAT(ErrorOf({"--save-detailed"}), HasSubstr("needs --json"));
  EXPECT_THAT(ErrorOf({"--steps", "3"}), HasSubstr("--steps: it is for `millrace-loadtest sweep`"));
  EXPECT_THAT(ErrorOf({"sweep", "--rates", "1,2", "--rate", "3"}), HasSubstr("--rate: --rates"));
  EXPECT_TRUE(ParseOptions({"sweep", "--slo", "ttft:1", "--rate", "3", "--steps", "3"}).ok());
}

TEST(OptionsTest, ARunHasAnEnd) {
  EXPECT_EQ(ParseOptions({})->num_prompts, 100);
  EXPECT_EQ(ParseOptions({"--duration", "5"})->num_prompts, 0);
  const auto sweep = ParseOptions({"sweep", "--slo", "ttft:100"});
  EXPECT_EQ(sweep->duration, 30);
  EXPECT_EQ(sweep->num_prompts, 0);
  EXPECT_EQ(ParseOptions({"sweep", "--slo", "ttft:100", "--num-prompts", "7"})->duration, 0);
  EXPECT_EQ(ParseOptions({"sweep", "--concurrencies", "1"})->num_prompts, 100);
}

TEST(OptionsTest, PrintsWhatItIsAskedFor) {
  const auto help = ParseOptions({"--seed", "1", "--help"});
  ASSERT_TRUE(help.ok());
  for (const LoadFlag& flag : LoadFlags()) {
    EXPECT_THAT(help->print, HasSubstr("  --" + std::string(flag.name)));
    EXPECT_FALSE(flag.help.ends_with('.')) << flag.name;
  }
  EXPECT_THAT(ParseOptions({"--version"})->print, testing::StartsWith("millrace-loadtest "));
  EXPECT_FALSE(ParseOptions({"--print-completion", "csh"}).ok());
}

TEST(OptionsTest, TlsNeedsAServerThatSpeaksIt) {
  const auto error = [](const std::vector<std::string>& arguments) {
    return std::string(ParseOptions(arguments).status().message());
  };
  for (const std::string flag : {"--cacert=a", "--cert=a", "--key=a", "--insecure"}) {
    EXPECT_THAT(error({flag}), HasSubstr("it is for --url https://HOST:PORT")) << flag;
  }
  EXPECT_THAT(error({"--url=https://a", "--key=b"}), HasSubstr("it is the key of --cert"));
  EXPECT_THAT(error({"--url=https://a", "--insecure", "--cacert=b"}), HasSubstr("--insecure"));
  EXPECT_EQ(error({"--url=https://a", "--cacert=b", "--cert=c", "--key=d"}), "");
}

TEST(UrlTest, ReadsAddresses) {
  const auto url = ParseUrl("http://gpu.example:8000/prefix/");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->Authority(), "gpu.example:8000");
  EXPECT_EQ(url->path, "/prefix");
  EXPECT_EQ(ParseUrl("[::1]:8001")->Authority(), "[::1]:8001");
  EXPECT_EQ(ParseUrl("http://host")->port, "80");
  EXPECT_FALSE(ParseUrl("http://host")->has_tls);
  const auto secure = ParseUrl("https://host/x");
  ASSERT_TRUE(secure.ok());
  EXPECT_TRUE(secure->has_tls);
  EXPECT_EQ(secure->Authority(), "host:443");
  EXPECT_EQ(secure->Scheme(), "https");
  for (const std::string_view bad :
       {"", "http://", "http://:80", "http://a:0", "http://a:99999", "http://a:b", "https://",
        "http://a b", "http://a\r\nX: y", "http://[::1", "http://u@a"}) {
    EXPECT_FALSE(ParseUrl(bad).ok()) << bad;
  }
}

TEST(OptionsTest, AReplayIsOfAFileOrSynthetic) {
  const auto file = ParseOptions({"replay", "s.jsonl", "--concurrency", "4"});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->replays());
  EXPECT_EQ(file->endpoint, "/v1/chat/completions");
  EXPECT_EQ(file->num_prompts, 0);  // as many as the file has
  const auto synthetic =
      ParseOptions({"replay", "--turns", "4", "--tools", "2", "--branches", "2"});
  ASSERT_TRUE(synthetic.ok()) << synthetic.status();
  EXPECT_EQ(synthetic->num_prompts, 100);
  EXPECT_THAT(ErrorOf({"replay"}), HasSubstr("replay needs a file"));
  EXPECT_THAT(ErrorOf({"replay", "a", "b"}), HasSubstr("one file at most"));
  EXPECT_THAT(ErrorOf({"replay", "a", "--turns", "3"}),
              HasSubstr("--turns: a replay has no use for it where it has a file"));
  EXPECT_THAT(ErrorOf({"replay", "--turns", "3", "--dataset", "d"}),
              HasSubstr("--dataset: a replay has no use for it"));
  EXPECT_THAT(ErrorOf({"--tools", "3"}), HasSubstr("it is for `millrace-loadtest replay` alone"));
  EXPECT_THAT(ErrorOf({"replay", "--turns", "3", "--result-len", "3"}), HasSubstr("--tools"));
  EXPECT_THAT(ErrorOf({"replay", "--turns", "3", "--branch-ratio", "0.5"}),
              HasSubstr("--branches"));
  EXPECT_THAT(ErrorOf({"replay", "--turns", "3", "--protocol", "grpc"}), HasSubstr("over HTTP"));
  EXPECT_THAT(ErrorOf({"replay", "--turns", "3", "--endpoint", "/v1/completions"}),
              HasSubstr("/chat/completions"));
  EXPECT_THAT(ErrorOf({"replay", "--turns", "3", "--duration", "9", "--save-trace", "t"}),
              HasSubstr("--num-prompts"));
  EXPECT_THAT(ErrorOf({"replay", "a", "--extra-body", "{\"messages\": []}"}),
              HasSubstr("messages of its own"));
}

}  // namespace
}  // namespace millrace
