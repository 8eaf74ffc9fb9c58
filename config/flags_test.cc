// The command line: flags of other servers, and refusals of wrong ones.
#include "config/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/strings.h"
#include "config/foreign_flags.h"
#include "config/help.h"
#include "config/load.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Arguments = std::vector<std::string>;

Startup Load(const Arguments& arguments) {
  absl::StatusOr<Startup> startup = LoadSettings(arguments, {});
  EXPECT_TRUE(startup.ok()) << startup.status();
  return startup.ok() ? *std::move(startup) : Startup();
}

std::string Error(const Arguments& arguments) {
  const absl::StatusOr<Startup> startup = LoadSettings(arguments, {});
  return startup.ok() ? "(no error)" : std::string(startup.status().message());
}

TEST(FlagsTest, TheModelMayStandAlone) {
  EXPECT_EQ(Load({"m.gguf"}).settings.model, "m.gguf");
  EXPECT_EQ(Load({"-m", "m.gguf"}).settings.model, "m.gguf");
  EXPECT_EQ(Load({"-m=m.gguf"}).settings.model, "m.gguf");
  EXPECT_EQ(Load({"serve", "org/name", "--insecure"}).settings.model, "org/name");
  EXPECT_EQ(Load({"--insecure", "org/name", "--threads", "2"}).settings.model, "org/name");
  const Startup bench = Load({"bench", "m.gguf"});
  EXPECT_EQ(bench.command, Command::kBench);
  EXPECT_EQ(bench.settings.model, "m.gguf");
  // A model with a command's name is given by its flag.
  EXPECT_EQ(Load({"--model", "bench"}).settings.model, "bench");
}

TEST(FlagsTest, OneModelAlone) {
  EXPECT_EQ(Error({"a", "b"}), "argument \"b\": expected one model, which is \"a\"; see --help");
  EXPECT_EQ(Error({"a", "-m", "b"}),
            "argument \"a\": the flag -m names a model, too: expected one");
  EXPECT_EQ(Error({"benhc"}),
            "argument \"benhc\": there is no such command; did you mean bench? (--model benhc "
            "serves a model of that name)");
  EXPECT_THAT(Error({""}), HasSubstr("expected --name value, or a model"));
  EXPECT_THAT(Error({"-"}), HasSubstr("expected --name value, or a model"));
}

TEST(FlagsTest, AloneItSaysWhatToDo) {
  const Startup alone = Load({});
  EXPECT_EQ(alone.command, Command::kUsage);
  EXPECT_THAT(alone.print, HasSubstr("millraced model.gguf"));
  EXPECT_THAT(alone.print, HasSubstr("millraced --help"));
  for (const std::string_view line : SplitList(alone.print, '\n')) EXPECT_LE(line.size(), 96u);
  // A container's environment says enough.
  const absl::StatusOr<Startup> container = LoadSettings({}, {"MILLRACE_DEVICE=fake"});
  ASSERT_TRUE(container.ok());
  EXPECT_EQ(container->command, Command::kServe);
  EXPECT_THAT(container->print, IsEmpty());
}

TEST(FlagsTest, FlagsOfOtherServersThatMeanTheSame) {
  EXPECT_EQ(Load({"--port", "81"}).settings.http_port, 81);
  EXPECT_EQ(Load({"-np", "3", "-t", "2"}).settings.max_num_seqs, 3);
  EXPECT_EQ(Load({"-a=mine"}).settings.served_model_names, std::vector<std::string>{"mine"});
  EXPECT_EQ(Load({"-hf", "org/name:Q4_K_M"}).settings.model, "org/name:Q4_K_M");
  EXPECT_EQ(Load({"-tp", "2"}).settings.tensor_parallel_size, 2);
  EXPECT_EQ(Load({"--kv_cache_memory_bytes=2GiB"}).settings.kv_cache_memory, int64_t{2} << 30);
  EXPECT_FALSE(Load({"--no-enable-prefix-caching"}).settings.prefix_caching);
  EXPECT_TRUE(Load({"--enable-prefix-caching"}).settings.prefix_caching);
  EXPECT_EQ(Error({"--port", "x"}),
            "flag --port: got \"x\", expected a whole number from 0 to 65535");
}

TEST(FlagsTest, WhatIsAlwaysSoIsTakenWithAWarning) {
  EXPECT_THAT(Load({"--enable-chunked-prefill", "--threads=1"}).warnings,
              ElementsAre("flag --enable-chunked-prefill: has no effect: prompts are always "
                          "computed in chunks"));
  EXPECT_EQ(
      Error({"--no-enable-chunked-prefill"}),
      "flag --no-enable-chunked-prefill: there is no such setting; vLLM has it; here: prompts "
      "are always computed in chunks");
  EXPECT_EQ(Error({"--enable-chunked-prefill=false"}),
            "flag --enable-chunked-prefill: got \"false\", but prompts are always computed in "
            "chunks");
}

TEST(FlagsTest, TheOthersSayWhatReplacesThem) {
  EXPECT_EQ(Error({"--ctx-size", "4096"}),
            "flag --ctx-size: there is no such setting; llama.cpp has it; here: use "
            "--max-model-len, the limit of one sequence; it is not divided among slots");
  EXPECT_EQ(Error({"-ngl", "99"}),
            "flag -ngl: there is no such setting; llama.cpp has it; here: use --device cuda: the "
            "whole model runs on the GPU, or none of it");
  EXPECT_THAT(Error({"--swap_space=4"}), HasSubstr("vLLM has it; here: leave it out"));
}

// The flags of vLLM's own example commands and of its engine's and server's arguments.
TEST(FlagsTest, VllmsCommonFlagsAreKnown) {
  const char* const kFlags[] = {"--port",
                                "--host",
                                "--tokenizer",
                                "--tokenizer-mode",
                                "--revision",
                                "--tokenizer-revision",
                                "--trust-remote-code",
                                "--download-dir",
                                "--load-format",
                                "--dtype",
                                "--kv-cache-dtype",
                                "--max-model-len",
                                "--guided-decoding-backend",
                                "--distributed-executor-backend",
                                "--pipeline-parallel-size",
                                "--tensor-parallel-size",
                                "--data-parallel-size",
                                "--enable-expert-parallel",
                                "--max-parallel-loading-workers",
                                "--block-size",
                                "--enable-prefix-caching",
                                "--disable-sliding-window",
                                "--seed",
                                "--swap-space",
                                "--cpu-offload-gb",
                                "--gpu-memory-utilization",
                                "--num-gpu-blocks-override",
                                "--max-num-batched-tokens",
                                "--max-num-seqs",
                                "--max-logprobs",
                                "--disable-log-stats",
                                "--quantization",
                                "--rope-scaling",
                                "--rope-theta",
                                "--hf-overrides",
                                "--enforce-eager",
                                "--disable-custom-all-reduce",
                                "--limit-mm-per-prompt",
                                "--mm-processor-kwargs",
                                "--enable-lora",
                                "--max-loras",
                                "--max-lora-rank",
                                "--lora-modules",
                                "--enable-chunked-prefill",
                                "--speculative-config",
                                "--model-loader-extra-config",
                                "--served-model-name",
                                "--otlp-traces-endpoint",
                                "--scheduling-policy",
                                "--override-generation-config",
                                "--generation-config",
                                "--compilation-config",
                                "--kv-transfer-config",
                                "--enable-sleep-mode",
                                "--calculate-kv-scales",
                                "--reasoning-parser",
                                "--uvicorn-log-level",
                                "--allowed-origins",
                                "--allow-credentials",
                                "--api-key",
                                "--chat-template",
                                "--response-role",
                                "--ssl-keyfile",
                                "--ssl-certfile",
                                "--root-path",
                                "--enable-auto-tool-choice",
                                "--tool-call-parser",
                                "--disable-log-requests",
                                "--enable-log-requests",
                                "--max-log-len",
                                "--config"};
  EXPECT_GE(std::size(kFlags), 38u);
  for (const std::string flag : kFlags) {
    const std::string error = Error({flag, "x"});
    EXPECT_THAT(error, Not(HasSubstr("see --help"))) << flag;
    EXPECT_THAT(error, Not(HasSubstr("did you mean"))) << flag;
  }
}

TEST(FlagsTest, LlamaServersCommonFlagsAreKnown) {
  for (const std::string flag : {"-m",          "--model",
                                 "-hf",         "--hf-repo",
                                 "--hf-file",   "-a",
                                 "--alias",     "--host",
                                 "--port",      "--api-key",
                                 "-t",          "--threads",
                                 "-tb",         "-c",
                                 "--ctx-size",  "-np",
                                 "--parallel",  "-b",
                                 "-ub",         "-cb",
                                 "-ctk",        "-ctv",
                                 "-ngl",        "-sm",
                                 "-ts",         "-mg",
                                 "-fa",         "-n",
                                 "--predict",   "--temp",
                                 "--top-k",     "--mlock",
                                 "--no-mmap",   "--embeddings",
                                 "--pooling",   "--jinja",
                                 "--metrics",   "--slots",
                                 "--lora",      "--mmproj",
                                 "--grammar",   "-md",
                                 "--log-file",  "-v",
                                 "--timeout",   "--api-key-file",
                                 "--reranking", "-kvu",
                                 "--numa",      "--no-webui",
                                 "--cache-ram", "--chat-template-file"}) {
    const std::string error = Error({flag, "x"});
    EXPECT_THAT(error, Not(HasSubstr("see --help"))) << flag;
    EXPECT_THAT(error, Not(HasSubstr("did you mean"))) << flag;
  }
}

TEST(FlagsTest, SglangsFlags) {
  const Settings s =
      Load({"--model-path", "m.gguf", "--context-length=512", "--max-running-requests=8",
            "--max-queued-requests=9", "--tp=2", "--page-size=32"})
          .settings;
  EXPECT_EQ(s.model, "m.gguf");
  EXPECT_EQ(s.max_model_len, 512);
  EXPECT_EQ(s.max_num_seqs, 8);
  EXPECT_EQ(s.max_waiting, 9);
  EXPECT_EQ(s.tensor_parallel_size, 2);
  EXPECT_EQ(s.block_size, 32);
  EXPECT_EQ(Error({"--mem-fraction-static=0.8"}),
            "flag --mem-fraction-static: there is no such setting; SGLang has it; here: use "
            "--gpu-memory-utilization, the share of all that is in use, or --kv-cache-memory");
}

TEST(FlagsTest, SamplingOfRequestsThatDoNotSayIt) {
  Settings s = Load({"--temperature=0", "--top-p=0.9", "--top-k", "-1", "--min-p=0.05",
                     "--typical-p=0.8", "--repetition-penalty=1.1", "--frequency-penalty=-2",
                     "--presence-penalty=0.5", "--max-tokens=64"})
                   .settings;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, -1);
  EXPECT_EQ(s.min_p, 0.05);
  EXPECT_EQ(s.typical_p, 0.8);
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_EQ(s.frequency_penalty, -2);
  EXPECT_EQ(s.presence_penalty, 0.5);
  EXPECT_EQ(s.max_tokens, 64);
  s = Load({"--temp=0.5", "--repeat-penalty=2", "-n", "7", "--typical=0.5"}).settings;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.repetition_penalty, 2);
  EXPECT_EQ(s.max_tokens, 7);
  EXPECT_EQ(s.typical_p, 0.5);
  EXPECT_EQ(Error({"--top-p=0"}), "flag --top-p: got \"0\", expected a number above 0, at most 1");
  EXPECT_EQ(Error({"--temperature=2.5"}),
            "flag --temperature: got \"2.5\", expected a number from 0 to 2");
  EXPECT_EQ(Error({"-n", "-1"}), "flag -n: got \"-1\", expected a whole number from 1 to 16777216");
}

TEST(FlagsTest, WordsOfOllama) {
  EXPECT_EQ(Load({"run", "m.gguf"}).command, Command::kChat);
  EXPECT_EQ(Load({"pull", "org/name"}).command, Command::kGet);
  EXPECT_EQ(Load({"ls"}).command, Command::kList);
  EXPECT_EQ(Load({"remove", "org/name"}).command, Command::kRemove);
  EXPECT_EQ(Load({"version"}).print, Load({"--version"}).print);
  EXPECT_EQ(Load({"help"}).print, Load({"--help"}).print);
  EXPECT_EQ(Load({"help", "bench"}).print, Load({"bench", "--help"}).print);
  EXPECT_EQ(Load({"help", "pull"}).print, Load({"get", "--help"}).print);
  for (const std::string word : {"ps", "show", "create", "stop", "push", "cp"}) {
    EXPECT_THAT(Error({word, "x"}), HasSubstr("there is no such command; ")) << word;
  }
  EXPECT_EQ(Load({"--model", "ps"}).settings.model, "ps");
}

TEST(FlagsTest, AChatTakesWhatServesItsModelOrNamesAServer) {
  const Settings here = Load({"chat", "m.gguf", "--device=cpu", "--system=Be brief."}).settings;
  EXPECT_EQ(here.model, "m.gguf");
  EXPECT_EQ(here.chat_system, "Be brief.");
  const Settings there =
      Load({"chat", "--url=http://h:1/v1", "--api-key=k", "--temperature=0", "m"}).settings;
  EXPECT_EQ(there.chat_url, "http://h:1/v1");
  const Settings asked = Load({"run", "m.gguf", "Why?"}).settings;
  EXPECT_EQ(asked.model, "m.gguf");
  EXPECT_EQ(asked.chat_prompt, "Why?");
  EXPECT_EQ(Error({"chat", "--http-port=1"}),
            "flag --http-port: got \"1\", which means nothing to chat, which talks to a model");
  EXPECT_EQ(Error({"chat", "--url=http://h", "--threads=1"}),
            "flag --threads: got \"1\", but --url names a server, which has settings of its own");
  EXPECT_EQ(Error({"chat", "--url=h:8000"}),
            "flag --url: got \"h:8000\", expected http:// or https:// with a host");
  EXPECT_EQ(Error({"--url=http://h"}),
            "flag --url: got \"http://h\", allowed only with `millraced chat`");
  // The variable may stand in a server's environment, too.
  EXPECT_TRUE(LoadSettings({"serve"}, {"MILLRACE_URL=http://h"}).ok());
}

TEST(FlagsTest, APlanForAGpuThatIsNotThere) {
  EXPECT_EQ(Load({"--dry-run", "--device=cuda", "--gpu-memory=141GiB"}).settings.gpu_memory,
            int64_t{141} << 30);
  EXPECT_EQ(Error({"--device=cuda", "--gpu-memory=141GiB"}),
            "flag --gpu-memory: got \"141GiB\", allowed only with --dry-run and --device cuda");
}

TEST(FlagsTest, ForeignRowsNameSettings) {
  for (const ForeignFlag& flag : ForeignFlags()) {
    EXPECT_TRUE(flag.name.starts_with('-')) << flag.name;
    EXPECT_EQ(FindForeignFlag(flag.name), &flag) << flag.name << " stands twice";
    if (flag.kind == ForeignKind::kSame) {
      EXPECT_NE(FindSetting(flag.text), nullptr) << flag.name;
      continue;
    }
    // Each flag that an advice names is one of ours.
    for (size_t at = flag.text.find("--"); at != flag.text.npos;
         at = flag.text.find("--", at + 2)) {
      const size_t end = flag.text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at + 2);
      EXPECT_NE(FindSetting(flag.text.substr(at + 2, end - at - 2)), nullptr) << flag.text;
    }
  }
}

// A letter too many anywhere in any flag, and one too few in those that are long enough.
TEST(FlagsTest, DidYouMeanEveryFlag) {
  std::vector<std::string> names(std::begin(kPrintFlags), std::end(kPrintFlags));
  for (const Setting& setting : SettingsTable()) {
    names.emplace_back(setting.name);
    if (setting.kind == SettingKind::kSwitch) names.push_back(StrCat("no-", setting.name));
  }
  for (const std::string& name : names) {
    const std::string more = name + name.back();
    if (FindSetting(more) == nullptr) {
      EXPECT_EQ(AdviceOnUnknown(more, "--"), StrCat("did you mean --", name, "?"));
    }
    if (name.size() < 8) continue;
    std::string fewer = name;
    fewer.erase(name.size() / 2, 1);
    EXPECT_EQ(AdviceOnUnknown(fewer, "--"), StrCat("did you mean --", name, "?"));
  }
  EXPECT_EQ(AdviceOnUnknown("max-seqs", "--"), "did you mean --max-num-seqs?");
  EXPECT_EQ(AdviceOnUnknown("gpu-memory-util", "--"), "did you mean --gpu-memory-utilization?");
  EXPECT_EQ(AdviceOnUnknown("colour", "--"), "see --help");
  EXPECT_EQ(AdviceOnUnknown(std::string(1 << 20, 'x'), "--"), "see --help");
}

TEST(FlagsTest, CommandsTakeTheirFlagsAlone) {
  EXPECT_EQ(Load({"get", "org/name", "--revision", "v1"}).settings.model, "org/name");
  EXPECT_EQ(Load({"rm", "org/name"}).command, Command::kRemove);
  EXPECT_EQ(Load({"list"}).command, Command::kList);
  EXPECT_EQ(Load({"doctor", "m.gguf", "--threads", "1"}).command, Command::kDoctor);
  EXPECT_EQ(Error({"get"}), "get: expected a model of the hub, as in `millraced get org/name`");
  EXPECT_EQ(Error({"list", "--threads=2"}),
            "flag --threads: got \"2\", which means nothing to list, which lists the local cache");
  EXPECT_EQ(Error({"rm", "a/b", "--revision=x"}),
            "flag --revision: got \"x\", which means nothing to rm, which removes a model from the "
            "local cache");
  // The server's own model in the environment is not the one to remove.
  EXPECT_FALSE(LoadSettings({"rm"}, {"MILLRACE_MODEL=org/name"}).ok());
  for (const std::string command : {"bench", "chat", "health", "doctor", "get", "list", "rm"}) {
    EXPECT_THAT(Load({command, "--help"}).print, HasSubstr(StrCat("Usage: millraced ", command)));
  }
}

}  // namespace
}  // namespace millrace
