#include "config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/strings.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using Arguments = std::vector<std::string>;

class LoadTest : public testing::Test {
 protected:
  LoadTest() : path_(testing::TempDir() + StrCat("load_test_", getpid(), ".yaml")) {}
  ~LoadTest() override { std::filesystem::remove(path_); }

  // The flags that read a file with this text.
  Arguments WithFile(const std::string& text, Arguments more = {}) {
    std::ofstream(path_, std::ios::binary) << text;
    more.push_back("--config=" + path_);
    return more;
  }

  static Settings Load(const Arguments& arguments,
                       const std::vector<std::string>& environment = {}) {
    absl::StatusOr<Startup> startup = LoadSettings(arguments, environment);
    EXPECT_TRUE(startup.ok()) << startup.status();
    return startup.ok() ? startup->settings : Settings();
  }

  // The error, with the file's path as FILE.
  std::string Error(const Arguments& arguments, const std::vector<std::string>& environment = {}) {
    const absl::StatusOr<Startup> startup = LoadSettings(arguments, environment);
    if (startup.ok()) return "(no error)";
    EXPECT_EQ(startup.status().code(), absl::StatusCode::kInvalidArgument);
    std::string message(startup.status().message());
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    for (size_t at; (at = message.find(path_)) != message.npos;)
      message.replace(at, path_.size(), "FILE");
    return message;
  }

  const std::string path_;
};

TEST_F(LoadTest, Defaults) {
  const Settings settings = Load({});
  EXPECT_EQ(settings.host, "127.0.0.1");
  EXPECT_EQ(settings.http_port, 8000);
  EXPECT_EQ(settings.grpc_port, 8001);
  EXPECT_EQ(settings.admin_port, 8002);
  EXPECT_EQ(settings.device, Device::kCpu);
  EXPECT_EQ(settings.max_num_batched_tokens, 512);
  EXPECT_EQ(settings.block_size, 16);
  EXPECT_EQ(settings.drain_timeout, seconds(30));
  EXPECT_TRUE(settings.prefix_caching);
  EXPECT_FALSE(settings.insecure);
  EXPECT_THAT(settings.api_keys, IsEmpty());
}

TEST_F(LoadTest, EveryFlag) {
  const Settings s = Load({"--model=/m.gguf",
                           "--served-model-name",
                           "my model",
                           "--device",
                           "cpu",
                           "--threads=2",
                           "--max-model-len=4096",
                           "--max-num-seqs",
                           "8",
                           "--max-num-batched-tokens=128",
                           "--block-size=32",
                           "--kv-cache-memory=2GiB",
                           "--state-cache-memory=3GiB",
                           "--kv-cache-dtype=float32",
                           "--no-prefix-caching",
                           "--max-waiting=7",
                           "--host=::1",
                           "--http-port=0",
                           "--grpc-port=0",
                           "--admin-port=1",
                           "--ready-file=r.json",
                           "--api-key=a,b",
                           "--api-key",
                           "c",
                           "--insecure",
                           "--unread-timeout=5s",
                           "--answer-memory=8MiB",
                           "--allowed-hosts=a.example, b.example",
                           "--admin-allowed-hosts=ops.example",
                           "--metrics-allowed-hosts=scrape.example:8003",
                           "--drain-timeout=1m",
                           "--stall-timeout=2.5",
                           "--log=warning,http=debug",
                           "--log-format=json",
                           "--log-prompts"});
  EXPECT_EQ(s.model, "/m.gguf");
  EXPECT_EQ(s.served_model_names, std::vector<std::string>{"my model"});
  EXPECT_EQ(s.device, Device::kCpu);
  EXPECT_EQ(s.threads, 2);
  EXPECT_EQ(s.max_model_len, 4096);
  EXPECT_EQ(s.max_num_seqs, 8);
  EXPECT_EQ(s.max_num_batched_tokens, 128);
  EXPECT_EQ(s.block_size, 32);
  EXPECT_EQ(s.kv_cache_memory, int64_t{2} << 30);
  EXPECT_EQ(s.state_cache_memory, int64_t{3} << 30);
  EXPECT_EQ(s.kv_cache_dtype, KvCacheType::kFloat32);
  EXPECT_FALSE(s.prefix_caching);
  EXPECT_EQ(s.max_waiting, 7);
  EXPECT_EQ(s.host, "::1");
  EXPECT_EQ(s.http_port, 0);
  EXPECT_EQ(s.grpc_port, 0);
  EXPECT_EQ(s.admin_port, 1);
  EXPECT_EQ(s.ready_file, "r.json");
  EXPECT_THAT(s.api_keys, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(s.insecure);
  EXPECT_THAT(s.allowed_hosts, ElementsAre("a.example", "b.example"));
  EXPECT_EQ(s.unread_timeout, seconds(5));
  EXPECT_EQ(s.answer_memory, int64_t{8} << 20);
  EXPECT_THAT(s.admin_allowed_hosts, ElementsAre("ops.example"));
  EXPECT_THAT(s.metrics_allowed_hosts, ElementsAre("scrape.example:8003"));
  EXPECT_EQ(s.drain_timeout, seconds(60));
  EXPECT_EQ(s.stall_timeout, milliseconds(2500));
  EXPECT_EQ(s.log, "warning,http=debug");
  EXPECT_EQ(s.log_format, LogFormat::kJson);
  EXPECT_TRUE(s.log_prompts);
}

TEST_F(LoadTest, TheFakeDevice) {
  const Settings s = Load({"--device=fake", "--fake-step-us=5", "--fake_token_us=0",
                           "--fake-prompt-us=4000", "--fake-token-tile=128", "--faults=fake.a=1"});
  EXPECT_EQ(s.device, Device::kFake);
  EXPECT_EQ(s.fake_step_us, 5);
  EXPECT_EQ(s.fake_token_us, 0);
  EXPECT_EQ(s.fake_prompt_us, 4000);
  EXPECT_EQ(s.fake_token_tile, 128);
  EXPECT_EQ(s.faults, "fake.a=1");
}

TEST_F(LoadTest, EventsOfTheCache) {
  EXPECT_EQ(Load({}).kv_events_config, "");
  EXPECT_EQ(Load({"--kv-events-config", R"({"hwm": 3})"}).kv_events_config, R"({"hwm": 3})");
}

TEST_F(LoadTest, RanksOnTheCpu) {
  const Settings s = Load({"--tensor-parallel-size=4", "--enable-expert-parallel",
                           "--step-timeout=2s", "--faults=cpu.rank_hang"});
  EXPECT_EQ(s.tensor_parallel_size, 4);
  EXPECT_TRUE(s.enable_expert_parallel);
  EXPECT_EQ(s.step_timeout, seconds(2));
  EXPECT_EQ(s.faults, "cpu.rank_hang");
  EXPECT_EQ(Load({}).tensor_parallel_size, 1);
  // Values that change nothing are allowed everywhere.
  Load({"--device=fake", "--tensor-parallel-size=1", "--no-enable-expert-parallel"});
}

TEST_F(LoadTest, RanksOnGpus) {
  const Settings s = Load({"--device=cuda", "--tensor-parallel-size=2", "--devices=0,2"});
  EXPECT_EQ(s.tensor_parallel_size, 2);
  EXPECT_THAT(s.devices, ElementsAre(0, 2));
  EXPECT_FALSE(s.virtual_ranks);
  EXPECT_TRUE(Load({"--device=cuda", "--tensor-parallel-size=4", "--virtual-ranks"}).virtual_ranks);
}

TEST_F(LoadTest, TheGpu) {
  const Settings s =
      Load({"--device=cuda", "--kernels=portable", "--gemm=cublaslt", "--step-timeout=2s",
            "--enforce-eager", "--no-exact", "--faults=cuda.hang"});
  EXPECT_EQ(s.kernels, KernelSet::kPortable);
  EXPECT_EQ(s.gemm, Gemm::kCublasLt);
  EXPECT_EQ(s.step_timeout, seconds(2));
  EXPECT_TRUE(s.enforce_eager);
  EXPECT_FALSE(s.exact);
  EXPECT_EQ(s.faults, "cuda.hang");
}

TEST_F(LoadTest, FlagsWinOverTheEnvironmentThatOverTheFile) {
  const Arguments arguments =
      WithFile("threads: 1\nmax-waiting: 1\nmax_num_seqs: 1\n", {"--threads=3", "--threads=4"});
  const Settings s = Load(arguments, {"MILLRACE_THREADS=2", "MILLRACE_MAX_WAITING=2", "OTHER=x"});
  EXPECT_EQ(s.threads, 4);
  EXPECT_EQ(s.max_waiting, 2);
  EXPECT_EQ(s.max_num_seqs, 1);
  EXPECT_EQ(s.block_size, 16);
}

TEST_F(LoadTest, AHigherListReplacesALowerOne) {
  const Arguments file = WithFile("api-key: [a, b]\nallowed-hosts: x\n");
  EXPECT_THAT(Load(file).api_keys, ElementsAre("a", "b"));
  EXPECT_THAT(Load(file, {"MILLRACE_API_KEY=c,d"}).api_keys, ElementsAre("c", "d"));
  Arguments flags = file;
  flags.insert(flags.end(), {"--api-key=e", "--api-key=f"});
  EXPECT_THAT(Load(flags, {"MILLRACE_API_KEY=c,d"}).api_keys, ElementsAre("e", "f"));
  EXPECT_THAT(Load(flags).allowed_hosts, ElementsAre("x"));
}

TEST_F(LoadTest, TheFileMayBeNamedByTheEnvironment) {
  WithFile("threads: 3\n");
  EXPECT_EQ(Load({}, {"MILLRACE_CONFIG=" + path_}).threads, 3);
}

TEST_F(LoadTest, AnEmptyVariableIsAbsent) {
  EXPECT_EQ(Load({}, {"MILLRACE_THREADS=", "MILLRACE_CONFIG="}).threads, 0);
}

TEST_F(LoadTest, YamlAndJson) {
  for (const char* text :
       {"---\n# comment\nhttp-port: 1\nprefix_caching: off\nkv-cache-memory: '2G'\n",
        "{\"http-port\": 1,\n\t\"prefix_caching\": false,\n\t\"kv-cache-memory\": \"2G\"}\n"}) {
    const Settings s = Load(WithFile(text));
    EXPECT_EQ(s.http_port, 1);
    EXPECT_FALSE(s.prefix_caching);
    EXPECT_EQ(s.kv_cache_memory, int64_t{2} << 30);
  }
  for (const char* empty : {"", "# nothing\n", "{}", "---\n"})
    EXPECT_EQ(Load(WithFile(empty)).http_port, 8000);
}

struct Wrong {
  Arguments arguments;
  std::vector<std::string> environment;
  std::string error;
};

TEST_F(LoadTest, WrongFlags) {
  const Wrong wrong[] = {
      {{"-"}, {}, "argument \"-\": expected --name value, or a model; see --help"},
      {{"-p", "1"}, {}, "flag -p: there is no such setting; see --help"},
      {{"--"}, {}, "argument \"--\": expected --name value, or a model; see --help"},
      {{"--htp-port=1"},
       {},
       "flag --htp-port: there is no such setting; did you mean --http-port?"},
      {{"--colour=red"}, {}, "flag --colour: there is no such setting; see --help"},
      {{"--no-http-port"}, {}, "flag --no-http-port: there is no such setting; see --help"},
      {{"--http-port=70000"},
       {},
       "flag --http-port: got \"70000\", expected a whole number from 0 to 65535"},
      {{"--http-port", "-1"},
       {},
       "flag --http-port: got \"-1\", expected a whole number from 0 to 65535"},
      {{"--http_port=x"},
       {},
       "flag --http_port: got \"x\", expected a whole number from 0 to 65535"},
      {{"--http-port="}, {}, "flag --http-port: got \"\", expected a whole number from 0 to 65535"},
      {{"--http-port"},
       {},
       "flag --http-port: got no value, expected a whole number from 0 to 65535"},
      {{"--model", "--insecure"},
       {},
       "flag --model: got no value, expected a path, or org/name, org/name:FILE.gguf or "
       "org/name:Q4_K_M of the Hugging Face hub"},
      {{"--block-size=24"},
       {},
       "flag --block-size: got \"24\", expected a whole number from 0 to 256, a multiple of 16"},
      {{"--max-num-seqs=0"},
       {},
       "flag --max-num-seqs: got \"0\", expected a whole number from 1 to 4096"},
      {{"--kv-cache-memory=1k"},
       {},
       "flag --kv-cache-memory: got \"1k\", expected 0, or bytes, or as 512MiB, 2GiB; from 1MiB to "
       "16TiB"},
      {{"--kv-cache-memory=1K"},
       {},
       "flag --kv-cache-memory: got \"1K\", expected 0, or bytes, or as 512MiB, 2GiB; from 1MiB to "
       "16TiB"},
      {{"--drain-timeout=-1s"},
       {},
       "flag --drain-timeout: got \"-1s\", expected seconds, or as 500ms, 30s, 2m; from 0 to 24h"},
      {{"--stall-timeout=0"},
       {},
       "flag --stall-timeout: got \"0\", expected seconds, or as 500ms, 30s, 2m; from 100ms to "
       "24h"},
      {{"--device=gpu"}, {}, "flag --device: got \"gpu\", expected one of cpu, cuda, torch, fake"},
      {{"--dtype=float16"}, {}, "flag --dtype: got \"float16\", expected one of float32, bfloat16"},
      {{"--host=example.com"},
       {},
       "flag --host: got \"example.com\", expected an IPv4 or IPv6 address, or localhost"},
      {{"--prefix-caching=maybe"},
       {},
       "flag --prefix-caching: got \"maybe\", expected true or false"},
      {{"--no-prefix-caching=true"}, {}, "flag --no-prefix-caching: got \"true\", takes no value"},
      {{"--insecure=maybe"}, {}, "flag --insecure: got \"maybe\", expected true or false"},
      {{"--log-format=xml"}, {}, "flag --log-format: got \"xml\", expected one of text, json"},
      {{"--ready-file="}, {}, "flag --ready-file: got \"\", expected a path"},
      {{"--generation-config="},
       {},
       "flag --generation-config: got \"\", expected auto, vllm, or a path"},
      {{"--served-model-name=a\nb"},
       {},
       "flag --served-model-name: got \"a\\nb\", expected comma-separated names of 1 to 256 "
       "printable characters"},
      {{"--api-key="},
       {},
       "flag --api-key: got a secret, expected comma-separated keys of up to 512 visible ASCII "
       "characters"},
      {{"--api-key=a b"},
       {},
       "flag --api-key: got a secret, expected comma-separated keys of up to 512 visible ASCII "
       "characters"},
      {{"--allowed-hosts=http://x"},
       {},
       "flag --allowed-hosts: got \"http://x\", expected comma-separated host names or addresses, "
       "each with a port or for all, or *"},
      {{"--admin-allowed-hosts=*"},
       {},
       "flag --admin-allowed-hosts: got \"*\", expected comma-separated host names or addresses, "
       "each with a port or for all"},
  };
  for (const Wrong& w : wrong) EXPECT_EQ(Error(w.arguments, w.environment), w.error);
  EXPECT_THAT(Error({"--log=loud"}),
              StartsWith("flag --log: got \"loud\", expected level or component=level"));
}

TEST_F(LoadTest, WrongEnvironment) {
  EXPECT_EQ(Error({}, {"MILLRACE_HTTP_PORT=tcp://10.0.0.1:80"}),
            "environment MILLRACE_HTTP_PORT: got \"tcp://10.0.0.1:80\", expected a whole number "
            "from 0 to 65535");
  // It is wrong even where a flag wins over it.
  EXPECT_EQ(Error({"--threads=1"}, {"MILLRACE_THREADS=x"}),
            "environment MILLRACE_THREADS: got \"x\", expected a whole number from 0 to 1024");
}

TEST_F(LoadTest, WrongFiles) {
  const std::pair<const char*, const char*> wrong[] = {
      {"threads: 1\nhttp_port: 70000\n",
       "FILE:2: http_port: got \"70000\", expected a whole number from 0 to 65535"},
      {"{\n\"threads\": 1.5}",
       "FILE:2: threads: got \"1.5\", expected a whole number from 0 to 1024"},
      {"\nhtp_port: 1\n",
       "FILE:2: htp_port: there is no such setting in a file; did you mean http-port?"},
      {"colour: red\n", "FILE:1: colour: there is no such setting in a file; see --help"},
      {"config: other.yaml\n", "FILE:1: config: there is no such setting in a file"},
      {"threads: 1\nthreads: 2\n", "FILE:2: threads: is set a second time"},
      {"http-port: 1\nhttp_port: 1\n", "FILE:2: http_port: is set a second time"},
      {"threads:\n", "FILE:1: threads: got nothing, expected a whole number from 0 to 1024"},
      {"threads: [1, 2]\n",
       "FILE:1: threads: got more than one value, expected a whole number from 0 to 1024"},
      {"api-key: [[a]]\n",
       "FILE:1: api-key: got more than one value, expected comma-separated keys"},
      {"api-key: []\nhost: 0.0.0.0\n", "FILE:2: host: got \"0.0.0.0\", which others can reach"},
      {"[1]: x\n", "FILE:1: : there is no such setting in a file; see --help"},
      {"just text\n", "FILE: expected one map of settings to their values"},
      {"- threads\n", "FILE: expected one map of settings to their values"},
      {"threads: 1\n---\nthreads: 2\n", "FILE: expected one map of settings to their values"},
      {"threads: 1\nmodel: [x\n", "FILE:3: is neither YAML nor JSON: "},
      {"{\"threads\": 1", "is neither YAML nor JSON: "},
  };
  for (const auto& [text, error] : wrong)
    EXPECT_THAT(Error(WithFile(text)), HasSubstr(error)) << text;
  EXPECT_THAT(Error(WithFile("x: " + std::string(100'000, '['))),
              HasSubstr("is neither YAML nor JSON: "));
  EXPECT_EQ(Error(WithFile(std::string(2 << 20, '#'))),
            StrCat("flag --config: FILE: is larger than 1 MiB"));
  EXPECT_EQ(Error({"--config=/nowhere/x.yaml"}),
            "flag --config: /nowhere/x.yaml: cannot be read: No such file or directory");
  EXPECT_EQ(Error({}, {"MILLRACE_CONFIG=/"}),
            "environment MILLRACE_CONFIG: /: cannot be read: Is a directory");
}

TEST_F(LoadTest, WhatIsLeftToTheDeviceIsTheDevices) {
  const Settings cpu = Load({});
  EXPECT_EQ(cpu.block_size, 16);
  EXPECT_EQ(cpu.max_num_batched_tokens, 512);
  EXPECT_EQ(cpu.kv_cache_memory, 0);  // by the model and the memory
  EXPECT_EQ(cpu.state_cache_memory, 0);
  EXPECT_EQ(Load({"--nnodes=2", "--tensor-parallel-size=2", "--master-addr=127.0.0.1",
                  "--node-key=0123456789abcdef"})
                .kv_cache_memory,
            int64_t{1} << 30);
  EXPECT_EQ(Load({"--device=torch"}).kv_cache_memory, int64_t{1} << 30);
  EXPECT_EQ(Load({"--device=torch"}).state_cache_memory, int64_t{1} << 30);
  EXPECT_EQ(LoadSettings({"bench"}, {})->settings.kv_cache_memory, int64_t{1} << 30);
  const Settings gpu = Load({"--device=cuda"});
  EXPECT_EQ(gpu.state_cache_memory, 0);  // by the model and the memory
  EXPECT_EQ(Load({"--device=cuda", "--nnodes=2", "--tensor-parallel-size=2",
                  "--master-addr=127.0.0.1", "--node-key=0123456789abcdef"})
                .state_cache_memory,
            int64_t{1} << 30);
  EXPECT_EQ(gpu.block_size, 64);
  EXPECT_EQ(gpu.max_num_batched_tokens, 8192);
  EXPECT_EQ(gpu.kv_cache_memory, 0);
}

TEST_F(LoadTest, AVariableThatIsNearlyASettingIsWarnedOf) {
  const absl::StatusOr<Startup> startup =
      LoadSettings({}, {"MILLRACE_MAX_NUM_SEQ=4", "MILLRACE_SERVICE_HOST=10.0.0.1",
                        "MILLRACE_PORT=tcp://x", "MILLRACE=1"});
  ASSERT_TRUE(startup.ok());
  EXPECT_THAT(startup->warnings, ElementsAre("environment MILLRACE_MAX_NUM_SEQ: there is no such "
                                             "setting; did you mean MILLRACE_MAX_NUM_SEQS?"));
}

TEST_F(LoadTest, SaysWhatWasGivenButNoSecret) {
  const absl::StatusOr<Startup> startup =
      LoadSettings({"--threads=2", "--api-key=hunter2"}, {"MILLRACE_DEVICE=cpu"});
  ASSERT_TRUE(startup.ok());
  EXPECT_EQ(startup->given,
            "device=\"cpu\" (environment MILLRACE_DEVICE), threads=\"2\" (flag --threads), "
            "api-key=a secret (flag --api-key)");
}

TEST_F(LoadTest, TellsWhichSettingsWereSetOtherwise) {
  const auto load = [this](const std::string& text) {
    const absl::StatusOr<Startup> startup = LoadSettings(WithFile(text), {});
    EXPECT_TRUE(startup.ok()) << startup.status();
    return startup.ok() ? *startup : Startup();
  };
  const Startup first = load("api-key: [one, two]\nallowed-hosts: [a.example, b.example]\n");
  EXPECT_THAT(first.given, HasSubstr("allowed-hosts=\"a.example,b.example\" ("));
  EXPECT_THAT(first.given, HasSubstr("api-key=a secret ("));
  EXPECT_THAT(first.values.at("api-key"), Not(HasSubstr("one")));
  EXPECT_THAT(ChangedSettings(first, load("api-key: one,two\n"
                                          "allowed-hosts: [a.example, b.example]\n")),
              IsEmpty());
  EXPECT_THAT(ChangedSettings(first, load("api-key: [other, two]\n"
                                          "allowed-hosts: [c.example, b.example]\n")),
              ElementsAre("allowed-hosts", "api-key"));
  EXPECT_THAT(ChangedSettings(first, load("allowed-hosts: [a.example, b.example]\n")),
              ElementsAre("api-key"));
}

TEST_F(LoadTest, WhatIsPrintedInsteadOfServing) {
  const auto print = [](const Arguments& arguments) { return LoadSettings(arguments, {})->print; };
  EXPECT_THAT(print({"--help"}), HasSubstr("Usage: millraced"));
  EXPECT_THAT(print({"--threads=x", "-h"}), HasSubstr("Usage: millraced"));
  EXPECT_THAT(print({"--version"}), testing::MatchesRegex("millraced [0-9.]+\n"));
  EXPECT_THAT(print({"--print-settings-table"}), StartsWith("| setting |"));
  EXPECT_THAT(print({"--print-foreign-flags"}), StartsWith("<!-- flags of vLLM -->\n| vLLM |"));
  EXPECT_EQ(print({"--threads=1"}), "");
  EXPECT_EQ(LoadSettings({"--threads=x", "--print-kernels"}, {})->command, Command::kPrintKernels);
}

TEST_F(LoadTest, ReadsMainsArguments) {
  const char* const argv[] = {"millraced", "--threads", "5"};
  const absl::StatusOr<Startup> startup = LoadSettings(3, argv);
  ASSERT_TRUE(startup.ok()) << startup.status();
  EXPECT_EQ(startup->settings.threads, 5);
  EXPECT_TRUE(LoadSettings(0, argv).ok());
}

}  // namespace
}  // namespace millrace
