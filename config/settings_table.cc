#include "config/settings_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/strings.h"
#include "config/command_settings.h"
#include "config/endpoint_settings.h"
#include "config/model_settings.h"
#include "config/node_settings.h"
#include "config/setting_makers.h"
#include "config/tls_settings.h"
#include "config/value.h"

namespace millrace {
namespace {

using setting_makers::Choice;
using setting_makers::ForServing;
using setting_makers::IsText;
using setting_makers::kMaxTokens;
using setting_makers::Path;
using setting_makers::Real;
using setting_makers::Size;
using setting_makers::Switch;
using setting_makers::Text;
using setting_makers::Time;
using setting_makers::Whole;
using setting_makers::WholeList;

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
      Size({"state-cache-memory", "SIZE",
            "memory for checkpoints of the states of recurrent layers, from which prompts that "
            "begin "
            "alike go on, beside --kv-cache-memory; 0: on the CPU half of what that leaves free, "
            "but "
            "no more than four checkpoints for each of --max-num-seqs; on a host's GPUs a quarter "
            "of what there is for the KV cache, and no more than that; else 1GiB"},
           &Settings::state_cache_memory, int64_t{1} << 20, int64_t{16} << 40, /*or_zero=*/true),
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
      ForServing(Text(
          {"speculative-config", "JSON",
           "what of answers is drafted, several tokens of which a step then checks; answers are "
           "the "
           "same, bit for bit. {\"method\": \"ngram\"}, also without it: what followed the last "
           "tokens where they stood before; none: nothing (docs/speculation.md)"},
          "a JSON object with method, num_speculative_tokens, prompt_lookup_min or "
          "prompt_lookup_max",
          &Settings::speculative_config, [](std::string_view) { return true; })),
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
      Whole({"graph-tokens", "TOKENS",
             "steps with parts of prompts are CUDA graphs up to so many tokens, each size from its "
             "second step on; 0, and over NCCL: their kernels are launched one by one"},
            &Settings::graph_tokens, 0, 1024),
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
      ForServing(
          Text({"kv-events-config", "JSON",
                "publish what the prefix cache stores and evicts, by ZeroMQ, to routers that "
                "follow it, as {\"enable_kv_cache_events\": true}; its keys are vLLM's "
                "(docs/scaling-out.md)"},
               "a JSON object", &Settings::kv_events_config,
               [](std::string_view json) {
                 return json.empty() || (json.starts_with('{') && json.ends_with('}'));
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
    add(kConvertGroup, ForServing(ConvertSettings()));
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
             setting.group != kChatGroup && setting.group != kConvertGroup;
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
    case Command::kConvert:
      return setting.group == kConvertGroup || setting.name == "model" || setting.name == "log" ||
             setting.name == "log-format" || setting.name == "config";
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
