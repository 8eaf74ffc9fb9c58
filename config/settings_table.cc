#include "config/settings_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/address_range.h"
#include "base/strings.h"
#include "config/node_settings.h"
#include "config/setting_makers.h"
#include "config/tls_settings.h"
#include "config/value.h"

namespace millrace {
namespace {

using setting_makers::Choice;
using setting_makers::Defaults;
using setting_makers::IsText;
using setting_makers::List;
using setting_makers::Make;
using setting_makers::OptionalReal;
using setting_makers::OptionalWhole;
using setting_makers::Path;
using setting_makers::Real;
using setting_makers::Size;
using setting_makers::Switch;
using setting_makers::Text;
using setting_makers::Time;
using setting_makers::Whole;
using setting_makers::WholeList;
using setting_makers::Words;

constexpr auto kMaxTokens = int32_t{1} << 24;
constexpr char kModelNames[] =
    "a path, or org/name, org/name:FILE.gguf or org/name:Q4_K_M of the Hugging Face hub";

Setting ForServing(Setting setting) {
  setting.serving_only = true;
  return setting;
}

std::vector<Setting> ForServing(std::vector<Setting> settings) {
  for (Setting& setting : settings) setting.serving_only = true;
  return settings;
}

bool IsApiKey(std::string_view key) {
  return key.size() <= 512 &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

// A host's name or address as a Host header carries it, perhaps with a port; or *.
bool IsHostName(std::string_view name) {
  return name == "*" || (name.size() <= 255 && std::all_of(name.begin(), name.end(), [](char c) {
                           return absl::ascii_isalnum(c) ||
                                  std::string_view(".-_:[]").find(c) != std::string_view::npos;
                         }));
}

// An Origin header's value, as browsers send it: a scheme, a host and perhaps a port; or *.
bool IsOrigin(std::string_view origin) {
  if (origin == "*") return true;
  const size_t scheme = origin.find("://");
  if (scheme == 0 || scheme == std::string_view::npos) return false;
  const std::string_view host = origin.substr(scheme + 3);
  return !host.empty() && host.find('*') == host.npos && IsHostName(host) &&
         std::all_of(origin.begin(), origin.begin() + static_cast<ptrdiff_t>(scheme),
                     [](char c) { return absl::ascii_islower(c) || c == '-' || c == '+'; });
}

std::vector<Setting> ModelSettings() {
  return {
      Path({"model", "MODEL",
            "GGUF file, Hugging Face folder or, with --device torch, AOTInductor package to serve, "
            "or a model of the hub, from its local cache or fetched into it. Without it: the "
            "default model in ${XDG_CACHE_HOME:-~/.cache}/millrace"},
           &Settings::model, kModelNames),
      Choice({"runner", "KIND",
              "what a decoder is for: auto, as its files say; generate text; or pooling, which "
              "makes embeddings: the last token's unless the files say otherwise"},
             &Settings::runner, std::array<std::string_view, 3>{"auto", "generate", "pooling"}),
      ForServing(
          Path({"tokenizer", "MODEL",
                "GGUF file, Hugging Face folder or model of the hub whose tokenizer and chat "
                "template go with the model. Without it: the model's own"},
               &Settings::tokenizer, kModelNames)),
      Words({"served-model-name", "NAME,...",
             "the model's names in requests, of which metrics have the first; answers have the one "
             "that was asked for. Without it: the file's stem or the folder's name"},
            "comma-separated names of 1 to 256 printable characters", &Settings::served_model_names,
            [](std::string_view name) { return IsText(name, 256); }),
      Text(
          {"revision", "REVISION", "branch, tag or commit of --model at the hub. Without it: main"},
          "1 to 256 printable characters", &Settings::revision,
          [](std::string_view name) { return name.size() <= 256; }),
      ForServing(Text({"tokenizer-revision", "REVISION",
                       "branch, tag or commit of --tokenizer at the hub. Without it: main"},
                      "1 to 256 printable characters", &Settings::tokenizer_revision,
                      [](std::string_view name) { return name.size() <= 256; })),
      ForServing(Path(
          {"generation-config", "FOLDER",
           "how requests are sampled that do not say it. auto: as the model's folder has it, in "
           "generation_config.json; vllm: as vLLM does without one; or as another folder has it"},
          &Settings::generation_config, "auto, vllm, or a path")),
      ForServing(Text({"tool-call-parser", "NAME",
                       "how tool calls are found in answers: auto, as the model's chat template "
                       "writes them; none; or a format by its name, as vLLM has them (docs/"
                       "tools-and-reasoning.md)"},
                      "auto, none, or the name of a format", &Settings::tool_call_parser,
                      [](std::string_view name) { return name.size() <= 64; })),
      ForServing(Text({"reasoning-parser", "NAME",
                       "how reasoning is found in answers: auto, none, or a format by its name"},
                      "auto, none, or the name of a format", &Settings::reasoning_parser,
                      [](std::string_view name) { return name.size() <= 64; })),
      ForServing(Switch("enable-auto-tool-choice",
                        "let the model decide whether it calls a tool; without it tools need a "
                        "tool_choice other than auto",
                        &Settings::enable_auto_tool_choice)),
      Switch("offline",
             "do not ask the hub: its models are what the local cache has (HF_HUB_OFFLINE=1 "
             "says the same)",
             &Settings::offline),
  };
}

// The ranges are those of requests (scheduler/sampling_params.h).
std::vector<Setting> SamplingSettings() {
  return {
      OptionalReal({"temperature", "T",
                    "of requests that do not say it, as all in this group; 0: the likeliest token. "
                    "Without it: as --generation-config has it, or else 1; in bench 0"},
                   &Settings::temperature, 0, 2),
      ForServing(OptionalReal({"top-p", "P", "keep the likeliest tokens of this probability"},
                              &Settings::top_p, 0, 1, /*above_least=*/true)),
      ForServing(OptionalWhole({"top-k", "N", "keep as many of the likeliest tokens; 0, -1: all"},
                               &Settings::top_k, -1, std::numeric_limits<int32_t>::max())),
      ForServing(OptionalReal(
          {"min-p", "P", "drop tokens below this share of the likeliest token's probability"},
          &Settings::min_p, 0, 1)),
      ForServing(
          OptionalReal({"typical-p", "P", "keep the most typical tokens of this probability"},
                       &Settings::typical_p, 0, 1, /*above_least=*/true)),
      ForServing(OptionalReal(
          {"repetition-penalty", "R", "divides the logits of tokens that the text has; 1: none"},
          &Settings::repetition_penalty, 0, 100, /*above_least=*/true)),
      ForServing(OptionalReal(
          {"frequency-penalty", "F", "subtracted for each time that the answer has a token"},
          &Settings::frequency_penalty, -2, 2)),
      ForServing(OptionalReal({"presence-penalty", "F", "subtracted once the answer has a token"},
                              &Settings::presence_penalty, -2, 2)),
      ForServing(OptionalWhole({"max-tokens", "TOKENS",
                                "of answers to requests that do not say it. Without it: as "
                                "--generation-config has it, or else as many as fit"},
                               &Settings::max_tokens, 1, kMaxTokens)),
  };
}

std::vector<Setting> ChatSettings() {
  return {
      Text({"url", "URL",
            "the server to talk to, http://127.0.0.1:8000; its key is --api-key. Without it the "
            "model is served for the chat alone"},
           "http:// or https:// with a host", &Settings::chat_url,
           [](std::string_view url) {
             const bool plain = url.starts_with("http://");
             return (plain || url.starts_with("https://")) && url.size() > (plain ? 7u : 8u);
           }),
      Text({"system", "TEXT", "what the model is told before the chat"}, "a line of text",
           &Settings::chat_system, [](std::string_view) { return true; }),
      Text({"prompt", "TEXT",
            "a message; its answer is printed, and the chat ends. A second word on the command "
            "line is the same"},
           "a line of text", &Settings::chat_prompt, [](std::string_view) { return true; }),
  };
}

std::vector<Setting> EngineSettings() {
  return {
      Choice({"device", "DEVICE",
              "what the model runs on: our code for CPUs, an NVIDIA GPU, or LibTorch on the CPU, "
              "the reference for both; fake runs no model and takes a stated time"},
             &Settings::device, std::array<std::string_view, 4>{"cpu", "cuda", "torch", "fake"}),
      Whole({"threads", "N",
             "compute threads; 0: one for each core that this process may use, by its affinity and "
             "its "
             "control group's quota (cpu.max)"},
            &Settings::threads, 0, 1024),
      Whole({"max-model-len", "TOKENS",
             "longest sequence, prompt and answer together; 0: the model's own limit"},
            &Settings::max_model_len, 0, kMaxTokens),
      Whole({"max-num-seqs", "N", "sequences that run at the same time"}, &Settings::max_num_seqs,
            1, 4096),
      Whole({"max-num-batched-tokens", "TOKENS",
             "token budget of a step, decoding and prefill together; 0: 512, on a GPU 8192"},
            &Settings::max_num_batched_tokens, 0, 65536),
      ForServing(Whole(
          {"itl-slo-ms", "MS",
           "the time that a step with decoding sequences may take, to which prompts are cut, "
           "whatever that costs them; 0: as short as cutting prompts makes it that takes no more "
           "than a tenth longer than uncut ones"},
          &Settings::itl_slo_ms, 0, 60'000)),
      Whole({"block-size", "TOKENS", "tokens in a block of the KV cache; 0: 16, on a GPU 64"},
            &Settings::block_size, 0, 256, 16),
      Size({"kv-cache-memory", "SIZE",
            "memory of the KV cache, on the CPU taken from the system as it is first used; 0: on "
            "the CPU half of what is free beside the weights (a control group's limit counts), but "
            "no more than --max-num-seqs sequences of full length take; on a GPU what "
            "--gpu-memory-utilization leaves; else 1GiB"},
           &Settings::kv_cache_memory, int64_t{1} << 20, int64_t{16} << 40, /*or_zero=*/true),
      Choice({"kv-cache-dtype", "TYPE",
              "of keys and values; auto: float16, on a GPU bfloat16 and float16 (values beyond "
              "±65504 become that), with LibTorch --dtype; fp8 on a GPU; float32 on the CPU, where "
              "attention is slower with it"},
             &Settings::kv_cache_dtype, std::array<std::string_view, 3>{"auto", "fp8", "float32"}),
      Choice({"quantization", "KIND",
              "while float weights are loaded: on a GPU fp8, layers' linears with a scale for each "
              "channel, or int4, with a scale and a minimum for each 32 weights; on the CPU int8, "
              "or int4 with embedding and head in int8, with scales for each 32 weights"},
             &Settings::quantization,
             std::array<std::string_view, 4>{"none", "fp8", "int8", "int4"}),
      Switch(
          "prefix-caching",
          "reuse the KV blocks of a prompt's beginning that was seen before; an encoder never does",
          &Settings::prefix_caching),
      ForServing(Whole(
          {"max-waiting", "N",
           "requests that wait for their turn; one more is refused (429, RESOURCE_EXHAUSTED)"},
          &Settings::max_waiting, 1, 1'000'000)),
      Whole({"tensor-parallel-size", "N",
             "ranks that divide the model's weights and run each step together: GPUs, up to 8 on "
             "each of --nnodes hosts, that each have --kv-cache-memory; or threads on the CPU, "
             "which divide --threads and --kv-cache-memory, too. A request's numbers depend on N"},
            &Settings::tensor_parallel_size, 1, kMaxRanks),
      Switch("enable-expert-parallel",
             "ranks have whole experts of a mixture, not a share of each; the numbers are others",
             &Settings::enable_expert_parallel),
      Time({"step-timeout", "TIME",
            "a GPU's step that takes longer hangs, or on the CPU ranks that get no further for as "
            "long: the device has failed, and the server ends with status 70"},
           &Settings::step_timeout, std::chrono::milliseconds(100), std::chrono::hours(1)),
      Text({"faults", "POINTS",
            "what shall go wrong on a device, or among ranks on the CPU, for tests; with a wrong "
            "name the server lists all"},
           "name[=times][@skip], comma-separated", &Settings::faults,
           [](std::string_view) { return true; }),
  };
}

std::vector<Setting> GpuSettings() {
  return {
      Real({"gpu-memory-utilization", "SHARE",
            "share of the GPU's memory that may be in use, others' included: what is left becomes "
            "KV cache"},
           &Settings::gpu_memory_utilization, 0.01, 1.0),
      Switch("quantize-lm-head",
             "the vocabulary head becomes FP8 while it is loaded, a scale for each 128x128 block",
             &Settings::quantize_lm_head),
      Choice({"load-format", "FORMAT",
              "dummy: weights are drawn instead of read, for benchmarks; the model's config is "
              "enough"},
             &Settings::load_format, std::array<std::string_view, 2>{"auto", "dummy"}),
      Choice(
          {"kernels", "SET",
           "portable: none of those for one architecture alone, for comparisons; the numbers are "
           "the same, bit for bit, but for GGUF's Q4_K, whose weights are rounded to BF16 another "
           "way. --print-kernels lists them"},
          &Settings::kernels, std::array<std::string_view, 2>{"auto", "portable"}),
      Choice(
          {"gemm", "LIBRARY", "what linears run on; cublaslt: that library alone, for comparisons"},
          &Settings::gemm, std::array<std::string_view, 2>{"auto", "cublaslt"}),
      WholeList({"devices", "GPU,...",
                 "the GPU of each rank, among those that CUDA_VISIBLE_DEVICES leaves; without it: "
                 "0, 1, 2 and so on"},
                &Settings::devices, 0, 1023),
      Choice(
          {"all-reduce", "METHOD",
           "how GPUs add their sums; auto: in rank order, by our own kernels where they reach one "
           "another's memory and else over NCCL, with the same bits; nccl: by NCCL's own, whose "
           "order follows the size of a step"},
          &Settings::all_reduce, std::array<std::string_view, 2>{"auto", "nccl"}),
      Switch("virtual-ranks", "all ranks on one GPU, for tests: slower than one rank",
             &Settings::virtual_ranks),
      Switch("enforce-eager", "launch each kernel by itself, without CUDA graphs",
             &Settings::enforce_eager),
      Switch("exact",
             "a sequence's numbers do not depend on what else runs, bit for bit; off: linears of "
             "small batches may be some percent faster",
             &Settings::exact),
  };
}

std::vector<Setting> TorchSettings() {
  return {
      Choice({"dtype", "TYPE", "of weights, activations, keys and values"}, &Settings::dtype,
             std::array<std::string_view, 2>{"float32", "bfloat16"}),
  };
}

std::vector<Setting> EndpointSettings() {
  return {
      Make(
          {"host", "ADDRESS",
           "where HTTP and gRPC listen; beyond loopback only with --api-key, --keys or --insecure"},
          "an IPv4 or IPv6 address, or localhost", Defaults().host, &Settings::host,
          ParseBindAddress),
      Whole({"http-port", "PORT", "HTTP; 0: any free one"}, &Settings::http_port, 0, 65535),
      Whole({"grpc-port", "PORT",
             "gRPC; 0: any free one; the port of HTTP: both on that one (docs/security.md)"},
            &Settings::grpc_port, 0, 65535),
      Whole({"admin-port", "PORT",
             "metrics and administration, always on 127.0.0.1; 0: any free one"},
            &Settings::admin_port, 0, 65535),
      Make({"metrics-host", "ADDRESS",
            "where a listener has /metrics and the probes alone, which need no key there: for "
            "scrapers that reach a pod's address"},
           "an IPv4 or IPv6 address, or localhost", "", &Settings::metrics_host, ParseBindAddress),
      Whole({"metrics-port", "PORT", "of --metrics-host; 0: any free one"}, &Settings::metrics_port,
            0, 65535),
      Path({"ready-file", "PATH",
            "written when the server is ready: {\"http\":PORT,\"grpc\":PORT,\"admin\":PORT}, and "
            "\"metrics\" with --metrics-host"},
           &Settings::ready_file),
      Choice({"unknown-fields", "RULE",
              "what happens to a field of a request that this server does not know; refuse: the "
              "request gets 400 with the field's name; ignore: the field has no effect, and "
              "--log http=debug names it. Known fields with values that are not supported are "
              "refused either way"},
             &Settings::unknown_fields, std::array<std::string_view, 2>{"refuse", "ignore"}),
  };
}

std::vector<Setting> AccessSettings() {
  using namespace std::chrono_literals;
  Setting api_key = Words({"api-key", "KEY,...",
                           "keys that HTTP and gRPC clients must send one of; better given by file "
                           "or environment, where ps does not show it"},
                          "comma-separated keys of up to 512 visible ASCII characters",
                          &Settings::api_keys, IsApiKey);
  api_key.secret = true;
  return {
      std::move(api_key),
      Path({"keys", "FILE",
            "keys with tenants, scopes and limits (docs/tenants.md), read again when it changes; "
            "then all but probes, /metrics at --metrics-host and the console's files needs a key"},
           &Settings::keys),
      Switch("shared-prefix-cache",
             "let the tenants of --keys hit each other's prefixes, which cached_tokens then tells",
             &Settings::shared_prefix_cache),
      Switch("insecure", "listen beyond loopback without keys", &Settings::insecure),
      Words({"allowed-hosts", "NAME,...",
             "hosts that a request's Host or Origin may name besides the server's own; *: any"},
            "comma-separated host names or addresses, each with a port or for all, or *",
            &Settings::allowed_hosts, IsHostName),
      Words({"trusted-proxies", "RANGE,...",
             "proxies whose connections begin with a PROXY header of version 2, which names the "
             "client; on the ports of HTTP and gRPC (docs/security.md)"},
            "comma-separated addresses, or ranges as 10.0.0.0/8", &Settings::trusted_proxies,
            [](std::string_view range) { return ParseAddressRange(range).has_value(); }),
      Whole({"max-connections", "N",
             "connections at once, of HTTP and of gRPC each; then idle ones give way to new ones"},
            &Settings::max_connections, 1, 1'000'000),
      Whole({"grpc-max-streams", "N", "calls at once on one gRPC connection"},
            &Settings::grpc_max_streams, 1, 100'000),
      Time({"header-timeout", "TIME",
            "how long a request's header, or a gRPC connection's first frames, may take to come"},
           &Settings::header_timeout, 100ms, 1h),
      Time({"sse-ping-interval", "TIME",
            "how long an HTTP stream may be quiet, in the queue say, until a comment is sent that "
            "keeps proxies from closing it; 0: none is"},
           &Settings::sse_ping_interval, 0ms, 1h),
      Words({"allowed-origins", "ORIGIN,...",
             "web pages whose scripts may call the HTTP API and read its answers (CORS); *: those "
             "of any page"},
            "comma-separated origins as https://app.example.com or http://localhost:3000, or *",
            &Settings::allowed_origins, IsOrigin),
  };
}

std::vector<Setting> LifeSettings() {
  using namespace std::chrono_literals;
  return {
      Time(
          {"drain-delay", "TIME",
           "how long the server goes on to take requests after SIGTERM, while /readyz says that it "
           "is not ready; then its ports close. With 0 they stay open and answer 503"},
          &Settings::drain_delay, 0s, 1h),
      Time({"drain-timeout", "TIME",
            "how long running streams may take to finish after SIGTERM and --drain-delay"},
           &Settings::drain_timeout, 0s, 24h),
      Time({"stall-timeout", "TIME",
            "with work and no step finished for this long, /livez and gRPC health fail"},
           &Settings::stall_timeout, 100ms, 24h),
  };
}

std::vector<Setting> LogSettings() {
  return {
      Text({"log", "LEVELS",
            "what to log: a level for all, and levels for components, as info,engine=debug"},
           StrCat("level or component=level, comma-separated, each once; levels: debug, info, "
                  "warning, error, off; components: ",
                  JoinList(kLogComponentNames)),
           &Settings::log, [](std::string_view levels) { return CheckLogLevels(levels).ok(); }),
      Choice({"log-format", "FORMAT", "how log lines are written to stderr"}, &Settings::log_format,
             std::array<std::string_view, 2>{"text", "json"}),
      ForServing(
          Text({"otlp-traces-endpoint", "URL",
                "collector of traces (OTLP, protobuf over HTTP) that gets a span of each request, "
                "as http://localhost:4318; without it nothing is traced"},
               "http:// or https:// and a host, perhaps with a port and a path, without a user "
               "(OTEL_EXPORTER_OTLP_HEADERS has credentials), a query and spaces",
               &Settings::otlp_traces_endpoint,
               [](std::string_view url) {
                 if (url.empty()) return true;
                 const size_t scheme = url.find("://");
                 if (scheme == url.npos) return false;
                 const std::string_view host = url.substr(scheme + 3);
                 return (url.starts_with("http://") || url.starts_with("https://")) &&
                        !host.empty() && host.find_first_of("/:") != 0 &&
                        url.find_first_of("@?# ") == url.npos && IsText(url, 2048);
               })),
      ForServing(Switch("log-prompts", "let log lines hold the text of prompts and answers",
                        &Settings::log_prompts)),
      ForServing(Size({"gpu-memory", "SIZE",
                       "with --dry-run --device cuda: plan for GPUs with this much memory, as "
                       "141GiB, that need not be there; 0: for the GPU that is"},
                      &Settings::gpu_memory, int64_t{1} << 30, int64_t{16} << 40,
                      /*or_zero=*/true)),
      ForServing(Switch("dry-run",
                        "print how much memory the model, its KV cache and the rest will take, and "
                        "end: with 0 if the machine has it, else with 1",
                        &Settings::dry_run)),
      Path({"config", "FILE",
            "YAML or JSON file of these settings, its keys named as the flags, with - or _"},
           &Settings::config),
  };
}

std::vector<Setting> FakeDeviceSettings() {
  constexpr int64_t kMost = 10'000'000;
  return {
      Whole({"fake-step-us", "N", "microseconds that a step takes"}, &Settings::fake_step_us,
            int64_t{0}, kMost),
      Whole({"fake-token-us", "N", "microseconds that each of a step's tokens adds"},
            &Settings::fake_token_us, int64_t{0}, kMost),
      Whole({"fake-prompt-us", "N", "microseconds that a step takes more if it has a prompt"},
            &Settings::fake_prompt_us, int64_t{0}, kMost),
      Whole({"fake-token-tile", "TOKENS",
             "tokens that a step with a prompt computes together: it takes as long as whole tiles"},
            &Settings::fake_token_tile, 1, 4096),
      Text(
          {"fake-answer", "TEXT",
           "the answer to every request, for tests of clients. Without it: predictable characters, "
           "as many as are asked for"},
          "1 to 4096 printable characters", &Settings::fake_answer,
          [](std::string_view) { return true; }),
  };
}

// "64:2048:16:80".
std::optional<BenchPoint> ParsePoint(std::string_view text) {
  std::vector<int32_t> numbers;
  for (const std::string_view part : SplitList(text, ':')) {
    const auto number = ParseNumber<int32_t>(part);
    if (!number || *number < 1 || *number > kMaxTokens) return {};
    numbers.push_back(*number);
  }
  const auto colons = static_cast<size_t>(std::count(text.begin(), text.end(), ':'));
  if (numbers.size() < 3 || numbers.size() > 4 || colons + 1 != numbers.size()) return {};
  return BenchPoint{numbers[0], numbers[1], {numbers.begin() + 2, numbers.end()}};
}

std::vector<Setting> BenchSettings() {
  return {
      WholeList({"batch-sizes", "N,...", "sequences at a time, a line of the table for each"},
                &Settings::bench_batch_sizes, 1, 4096),
      Whole({"input-len", "TOKENS", "tokens of each prompt, which are drawn anew for each run"},
            &Settings::bench_input_len, 1, kMaxTokens),
      WholeList({"output-lens", "TOKENS[,TOKENS]",
                 "tokens to generate. Of two lengths a and b, a step is (T(b) - T(a)) / (b - a), T "
                 "being the medians of the wall times; with 1 alone, T is the prefill"},
                &Settings::bench_output_lens, 1, kMaxTokens),
      List({"points", "BATCH:INPUT:OUTPUT[:OUTPUT],...",
            "what to measure instead of the three above, as 64:2048:16:80,1:4096:1"},
           "comma-separated points of 3 or 4 whole numbers", "", &Settings::bench_points,
           ParsePoint),
      Whole({"reps", "N", "timed runs of each length; one more goes before them"},
            &Settings::bench_reps, 1, 1000),
      Path({"json", "FILE", "write all figures there too"}, &Settings::bench_json),
      Path({"peer", "FILE",
            "figures to stand beside these: what --json wrote in another run, or llama-bench -o "
            "json"},
           &Settings::bench_peer),
      Switch("trace",
             "then run each point once more and list where its steps' time goes on the GPU "
             "(--device cuda; needs libcupti)",
             &Settings::bench_trace),
      Switch("lone-rank",
             "run the first of --tensor-parallel-size ranks alone, on one GPU; it plays the "
             "others, so that its tokens mean nothing (--device cuda)",
             &Settings::bench_lone_rank),
      Choice({"routing", "LOADS",
              "how mixtures divide tokens among their experts, with --load-format dummy; uniform: "
              "each expert gets about as many; real: some get several times the mean, as in "
              "trained models"},
             &Settings::bench_routing, std::array<std::string_view, 2>{"uniform", "real"}),
  };
}

std::vector<Setting> HealthSettings() {
  using namespace std::chrono_literals;
  return {
      Choice({"probe", "PROBE",
              "what to ask of the server at --host and --http-port; ready: /readyz; live: /livez"},
             &Settings::probe, std::array<std::string_view, 2>{"ready", "live"}),
      Time({"probe-timeout", "TIME", "how long the answer may take"}, &Settings::probe_timeout,
           100ms, 1h),
  };
}

// `name` with - for _.
std::string Dashed(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed;
}

// Returns whether the setting is about a server's clients, of which `millraced chat` is the only
// one.
bool ConnectsClients(const Setting& setting) {
  return setting.name != "api-key" &&
         (setting.group == "Endpoints" || setting.group == "Access" || setting.group == "TLS" ||
          setting.group == "Life" || setting.name == "dry-run" || setting.name == "gpu-memory");
}

}  // namespace

const std::vector<Setting>& SettingsTable() {
  static const std::vector<Setting>* const table = [] {
    auto* all = new std::vector<Setting>;
    const auto add = [all](std::string_view group, std::vector<Setting> settings) {
      for (Setting& setting : settings) {
        setting.group = group;
        all->push_back(std::move(setting));
      }
    };
    add("Model", ModelSettings());
    add("Sampling", SamplingSettings());
    add("Engine", EngineSettings());
    add("Endpoints", ForServing(EndpointSettings()));
    add("Access", ForServing(AccessSettings()));
    add("TLS", ForServing(TlsSettings()));
    add("Life", ForServing(LifeSettings()));
    add("Logs and settings", LogSettings());
    add(kGpuGroup, GpuSettings());
    add(kNodesGroup, ForServing(NodeSettings()));
    add(kTorchGroup, TorchSettings());
    add(kFakeDeviceGroup, FakeDeviceSettings());
    add(kBenchGroup, BenchSettings());
    add(kHealthGroup, ForServing(HealthSettings()));
    add(kChatGroup, ForServing(ChatSettings()));
    return all;
  }();
  return *table;
}

bool IsFor(const Setting& setting, Command command) {
  switch (command) {
    case Command::kServe:
    case Command::kDoctor:
    case Command::kUsage:
      return setting.group != kBenchGroup && setting.group != kHealthGroup &&
             setting.group != kChatGroup;
    case Command::kChat:
      return setting.group == kChatGroup ||
             (setting.group != kNodesGroup && IsFor(setting, Command::kServe) &&
              !ConnectsClients(setting));
    case Command::kBench:
      return !setting.serving_only;
    case Command::kHealth:
      return setting.group == kHealthGroup || setting.name == "host" ||
             setting.name == "http-port" || setting.name == "admin-port" ||
             setting.name == "config";
    case Command::kGet:
      return setting.name == "model" || setting.name == "revision" || setting.name == "offline" ||
             setting.name == "log" || setting.name == "log-format" || setting.name == "config";
    case Command::kList:
      return setting.name == "config";
    case Command::kRemove:
      return setting.name == "model" || setting.name == "config";
    case Command::kPrintKernels:
      return false;
  }
  return false;
}

const Setting* FindSetting(std::string_view name) {
  const std::string dashed = Dashed(name);
  for (const Setting& setting : SettingsTable()) {
    if (setting.name == dashed) return &setting;
  }
  return nullptr;
}

const Setting* NearestSetting(std::string_view name) {
  if (name.size() > 64) return nullptr;
  const std::string dashed = Dashed(name);
  const Setting* nearest = nullptr;
  int least = 3;  // Further away it is another word.
  for (const Setting& setting : SettingsTable()) {
    const int distance = EditDistance(dashed, setting.name);
    // Up to a third of a short name may be wrong.
    if (distance < least && distance * 3 <= static_cast<int>(setting.name.size())) {
      least = distance;
      nearest = &setting;
    }
  }
  return nearest;
}

std::string EnvironmentName(const Setting& setting) {
  std::string name = "MILLRACE_";
  for (const char c : setting.name) name += c == '-' ? '_' : absl::ascii_toupper(c);
  return name;
}

}  // namespace millrace
