#include "config/cross_checks.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "config/node_checks.h"
#include "config/speculative_config.h"
#include "config/tls_settings.h"
#include "config/value.h"

namespace millrace {
namespace {

constexpr int32_t kMaxGpuRanks = 8;
constexpr std::string_view kOutputLengths = "expected one output length, or two, the shorter first";

class CrossChecks {
 public:
  CrossChecks(const Settings& settings, const GivenSettings& given)
      : settings_(settings), given_(given) {}

  absl::Status Check(Command command) const {
    switch (command) {
      case Command::kHealth:
        return CheckHealth();
      case Command::kGet:
      case Command::kRemove:
        MILLRACE_RETURN_IF_ERROR(RefuseOtherFlags(command));
        return CheckNamesModel(command);
      case Command::kConvert:
        return CheckConvert();
      case Command::kList:
        return RefuseOtherFlags(command);
      default:
        break;
    }
    MILLRACE_RETURN_IF_ERROR(CheckDevice());
    MILLRACE_RETURN_IF_ERROR(CheckBudget());
    MILLRACE_RETURN_IF_ERROR(CheckSeveralNodes(command));
    if (IsGiven("revision") && settings_.model.empty()) {
      return Contradiction("revision", "but no --model is given that it is of");
    }
    if (command == Command::kBench) return CheckBench();
    MILLRACE_RETURN_IF_ERROR(CheckChat(command));
    return CheckServing();
  }

 private:
  bool IsGiven(std::string_view name) const { return given_.count(name) > 0; }

  // The server's settings in a file or the environment may stay there, and a chat's, too.
  absl::Status CheckChat(Command command) const {
    const bool chats = command == Command::kChat;
    if (chats) MILLRACE_RETURN_IF_ERROR(RefuseOtherFlags(command));
    const bool elsewhere = chats && !settings_.chat_url.empty();
    for (const auto& [name, assignment] : given_) {
      if (!assignment.from_flag) continue;
      const std::string_view group = assignment.setting->group;
      if (!chats && group == kChatGroup) {
        return Contradiction(name, "allowed only with `millraced chat`");
      }
      if (group == kConvertGroup) {
        return Contradiction(name, "allowed only with `millraced convert`");
      }
      if (elsewhere && (group == "Engine" || group == kGpuGroup || group == kTorchGroup ||
                        group == kFakeDeviceGroup || (group == "Model" && name != "model"))) {
        return Contradiction(name, "but --url names a server, which has settings of its own");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckServing() const {
    if (settings_.gpu_memory != 0 && (!settings_.dry_run || settings_.device != Device::kCuda)) {
      return Contradiction("gpu-memory", "allowed only with --dry-run and --device cuda");
    }
    MILLRACE_RETURN_IF_ERROR(RefuseGroup(kBenchGroup, "allowed only with `millraced bench`"));
    MILLRACE_RETURN_IF_ERROR(RefuseGroup(kHealthGroup, "allowed only with `millraced health`"));
    const Settings& s = settings_;
    if (IsGiven("tokenizer-revision") && s.tokenizer.empty()) {
      return Contradiction("tokenizer-revision", "but no --tokenizer is given that it is of");
    }
    if (s.shared_prefix_cache && s.keys.empty()) {
      return Contradiction("shared-prefix-cache", "but without --keys there are no tenants");
    }
    if (const auto read = ParseSpeculativeConfig(s.speculative_config); !read.ok()) {
      return Contradiction("speculative-config", std::string(read.status().message()));
    }
    if (!s.kv_events_config.empty() && !s.prefix_caching) {
      return Contradiction("kv-events-config",
                           "but --prefix-caching is off: no block is stored for others");
    }
    MILLRACE_RETURN_IF_ERROR(CheckPackage());
    if (!IsLoopback(s.host) && s.api_keys.empty() && s.keys.empty() && !s.insecure) {
      return Contradiction("host",
                           "which others can reach: set --api-key or --keys, or --insecure to "
                           "serve all without a key");
    }
    if (const auto wrong = CheckTls(s, [this](std::string_view name) { return IsGiven(name); })) {
      return Contradiction(wrong->name, wrong->what);
    }
    if (IsGiven("metrics-port") && s.metrics_host.empty()) {
      return Contradiction("metrics-port", "but no --metrics-host is given that it is of");
    }
    return CheckPorts();
  }

  absl::Status CheckPorts() const {
    const Settings& s = settings_;
    std::vector<std::pair<std::string_view, int32_t>> ports = {
        {"http-port", s.http_port}, {"grpc-port", s.grpc_port}, {"admin-port", s.admin_port}};
    if (!s.metrics_host.empty()) ports.emplace_back("metrics-port", s.metrics_port);
    for (size_t i = 0; i < ports.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (ports[i].second == 0 || ports[i].second != ports[j].second) continue;
        if (ports[j].first == "http-port" && ports[i].first == "grpc-port") continue;  // they share
        // Blames the one that was given: the other may be a default.
        const bool blame_first = given_.count(ports[i].first) == 0;
        const auto& [blamed, other] =
            blame_first ? std::pair(ports[j], ports[i]) : std::pair(ports[i], ports[j]);
        return Contradiction(blamed.first, StrCat("which is --", other.first,
                                                  " too: expected different ports, or 0"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckBudget() const {
    const Settings& s = settings_;
    if (s.max_num_batched_tokens < s.max_num_seqs) {
      const bool blame_budget = given_.count("max-num-batched-tokens") > 0;
      return Contradiction(blame_budget ? "max-num-batched-tokens" : "max-num-seqs",
                           StrCat(blame_budget ? "fewer" : "more", " than --",
                                  blame_budget ? "max-num-seqs" : "max-num-batched-tokens", " (",
                                  blame_budget ? s.max_num_seqs : s.max_num_batched_tokens,
                                  "): expected a token of each step for each running sequence"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckDevice() const {
    if (settings_.device != Device::kCuda) {
      MILLRACE_RETURN_IF_ERROR(RefuseGroup(kGpuGroup, "allowed only with --device cuda"));
    } else if (IsGiven("threads")) {
      return Contradiction("threads", "but on a GPU no threads compute");
    } else if (IsGiven("gpu-memory-utilization") && settings_.kv_cache_memory > 0) {
      return Contradiction("gpu-memory-utilization", "but --kv-cache-memory says how much");
    }
    if (settings_.device != Device::kTorch) {
      MILLRACE_RETURN_IF_ERROR(RefuseGroup(kTorchGroup, "allowed only with --device torch"));
    }
    MILLRACE_RETURN_IF_ERROR(CheckKvCacheType());
    MILLRACE_RETURN_IF_ERROR(CheckQuantization());
    MILLRACE_RETURN_IF_ERROR(CheckRanks());
    MILLRACE_RETURN_IF_ERROR(CheckFaults());
    if (settings_.device != Device::kFake) {
      return RefuseGroup(kFakeDeviceGroup, "allowed only with --device fake");
    }
    for (const std::string_view name :
         {"model", "tokenizer", "revision", "tokenizer-revision", "threads", "runner", "offline"}) {
      if (IsGiven(name)) return Contradiction(name, "but --device fake runs no model");
    }
    return absl::OkStatus();
  }

  // A language model's package is served with a tokenizer.
  absl::Status CheckPackage() const {
    if (!settings_.model.ends_with(".pt2") || !settings_.tokenizer.empty()) return absl::OkStatus();
    for (const std::string_view name : {"generation-config",
                                        "temperature",
                                        "top-p",
                                        "top-k",
                                        "min-p",
                                        "typical-p",
                                        "repetition-penalty",
                                        "frequency-penalty",
                                        "presence-penalty",
                                        "max-tokens",
                                        "max-model-len",
                                        "max-num-seqs",
                                        "max-num-batched-tokens",
                                        "block-size",
                                        "kv-cache-memory",
                                        "state-cache-memory",
                                        "prefix-caching",
                                        "speculative-config",
                                        "dtype",
                                        "log-prompts",
                                        "otlp-traces-endpoint",
                                        "kv-events-config"}) {
      if (IsGiven(name)) {
        return Contradiction(name,
                             "but an AOTInductor package (.pt2) without --tokenizer has only "
                             "tensors, of the types that it was compiled for");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckKvCacheType() const {
    const Settings& s = settings_;
    if (s.kv_cache_dtype == KvCacheType::kAuto) return absl::OkStatus();
    const bool fp8 = s.kv_cache_dtype == KvCacheType::kFp8;
    if (s.device == (fp8 ? Device::kCuda : Device::kCpu)) return absl::OkStatus();
    return Contradiction("kv-cache-dtype",
                         StrCat("allowed only with --device ", fp8 ? "cuda" : "cpu"));
  }

  absl::Status CheckQuantization() const {
    const Settings& s = settings_;
    if (s.quantization == Quantization::kNone) return absl::OkStatus();
    const bool on_gpu = s.quantization != Quantization::kInt8;
    const bool on_cpu = s.quantization != Quantization::kFp8;
    if ((on_gpu && s.device == Device::kCuda) || (on_cpu && s.device == Device::kCpu)) {
      return absl::OkStatus();
    }
    return Contradiction("quantization",
                         StrCat("allowed only with --device ", on_gpu && on_cpu ? "cpu or cuda"
                                                               : on_gpu         ? "cuda"
                                                                                : "cpu"));
  }

  absl::Status CheckSeveralNodes(Command command) const {
    if (command == Command::kBench) return absl::OkStatus();  // CheckBench refuses the flags
    const auto found =
        CheckNodes(settings_, [this](std::string_view name) { return IsGiven(name); });
    return found.has_value() ? Contradiction(found->name, found->what) : absl::OkStatus();
  }

  bool HasRanks() const { return settings_.tensor_parallel_size > 1; }

  absl::Status CheckRanks() const {
    const Settings& s = settings_;
    if (HasRanks() && s.device != Device::kCpu && s.device != Device::kCuda) {
      return Contradiction("tensor-parallel-size", "allowed only with --device cpu or cuda, or 1");
    }
    if (s.device == Device::kCuda && s.tensor_parallel_size > kMaxGpuRanks * s.nnodes) {
      return Contradiction("tensor-parallel-size",
                           StrCat("allowed with --device cuda: 1 to ", kMaxGpuRanks * s.nnodes));
    }
    if (s.virtual_ranks && !HasRanks()) {
      return Contradiction("virtual-ranks", "but there is one rank (--tensor-parallel-size)");
    }
    if (s.all_reduce == AllReduce::kNccl && (s.virtual_ranks || !HasRanks())) {
      return Contradiction("all-reduce", s.virtual_ranks
                                             ? "but --virtual-ranks share a GPU"
                                             : "but there is one rank (--tensor-parallel-size)");
    }
    const size_t gpus =
        s.virtual_ranks ? 1 : static_cast<size_t>(s.tensor_parallel_size / s.nnodes);
    if (IsGiven("devices") && s.devices.size() != gpus) {
      return Contradiction("devices", StrCat("expected as many as there are ranks",
                                             s.nnodes > 1 ? " on this node: " : ": ", gpus,
                                             s.virtual_ranks ? ", since --virtual-ranks share one"
                                                             : " (--tensor-parallel-size)"));
    }
    if (s.enable_expert_parallel && !HasRanks()) {
      return Contradiction("enable-expert-parallel",
                           "but there is one rank (--tensor-parallel-size)");
    }
    if (IsGiven("step-timeout") && s.device != Device::kCuda && !HasRanks()) {
      return Contradiction("step-timeout",
                           "allowed only with --device cuda, or on the CPU with "
                           "--tensor-parallel-size");
    }
    return absl::OkStatus();
  }

  // Another device's points would be armed and never passed.
  absl::Status CheckFaults() const {
    if (settings_.faults.empty()) return absl::OkStatus();
    if (settings_.device == Device::kTorch) {
      return Contradiction("faults", "allowed only with --device cpu, cuda or fake");
    }
    const std::string_view own = settings_.device == Device::kFake  ? "fake."
                                 : settings_.device == Device::kCpu ? "cpu."
                                                                    : "cuda.";
    for (const std::string_view point : SplitList(settings_.faults)) {
      if (!point.starts_with(own)) {
        return Contradiction("faults", StrCat("but the points of this device begin with ", own));
      }
      if (settings_.device != Device::kCpu || point.starts_with("cpu.nan_row") ||
          point.starts_with("cpu.small_arena")) {
        continue;
      }
      if (point.starts_with("cpu.rank_") != HasRanks()) {
        return Contradiction("faults",
                             "but with --tensor-parallel-size the points of the CPU are "
                             "cpu.nan_row, cpu.small_arena and cpu.rank_…, and without it all "
                             "but the last");
      }
    }
    return absl::OkStatus();
  }

  // The server's settings in a file or the environment may stay there.
  absl::Status CheckBench() const {
    const Settings& s = settings_;
    for (const Setting& setting : SettingsTable()) {
      const auto found = given_.find(setting.name);
      if (setting.serving_only && found != given_.end() && found->second.from_flag) {
        return Contradiction(setting.name, "which means nothing to bench, which serves no clients");
      }
    }
    for (const std::string_view name : {"batch-sizes", "input-len", "output-lens"}) {
      if (IsGiven("points") && IsGiven(name)) {
        return Contradiction(name, "but --points says what to measure");
      }
    }
    if (!AreOutputLengths(s.bench_output_lens)) {
      return Contradiction("output-lens", kOutputLengths);
    }
    for (const BenchPoint& point : s.bench_points) {
      if (!AreOutputLengths(point.outputs)) return Contradiction("points", kOutputLengths);
    }
    if (s.bench_trace && s.device != Device::kCuda) {
      return Contradiction("trace", "allowed only with --device cuda");
    }
    if (s.bench_lone_rank && (s.device != Device::kCuda || !HasRanks() || s.virtual_ranks)) {
      return Contradiction(
          "lone-rank",
          "allowed only with --device cuda and --tensor-parallel-size, and without "
          "--virtual-ranks");
    }
    if (IsGiven("routing") && s.load_format != LoadFormat::kDummy) {
      return Contradiction("routing", "allowed only with --load-format dummy");
    }
    return absl::OkStatus();
  }

  // Refuses flags that the command does not take. The server's settings in a file or the
  // environment may stay there.
  absl::Status RefuseOtherFlags(Command command) const {
    for (const Setting& setting : SettingsTable()) {
      const auto found = given_.find(setting.name);
      if (found == given_.end() || !found->second.from_flag || IsFor(setting, command)) continue;
      const CommandInfo& info = *FindCommand(command);
      return Contradiction(setting.name,
                           StrCat("which means nothing to ", info.word, ", ", info.purpose));
    }
    return absl::OkStatus();
  }

  // The environment's model is the server's, and not meant.
  absl::Status CheckNamesModel(Command command) const {
    const auto found = given_.find("model");
    if (found != given_.end() && found->second.from_flag) return absl::OkStatus();
    const std::string_view word = FindCommand(command)->word;
    return absl::InvalidArgumentError(
        StrCat(word, ": expected a model of the hub, as in `millraced ", word, " org/name`"));
  }

  absl::Status CheckConvert() const {
    MILLRACE_RETURN_IF_ERROR(RefuseOtherFlags(Command::kConvert));
    const auto source = given_.find("model");
    if (source != given_.end() && source->second.from_flag && !settings_.output.empty() &&
        !settings_.model_config.empty()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "convert: expected a checkpoint, the folder to make and --model-config, as in `millraced "
        "convert CHECKPOINT FOLDER --model-config FOLDER`");
  }

  absl::Status CheckHealth() const {
    MILLRACE_RETURN_IF_ERROR(RefuseOtherFlags(Command::kHealth));
    if (settings_.http_port == 0) {
      return Contradiction("http-port", "but health must know the port: expected 1 to 65535");
    }
    return absl::OkStatus();
  }

  static bool AreOutputLengths(const std::vector<int32_t>& lengths) {
    return lengths.size() == 1 || (lengths.size() == 2 && lengths[0] < lengths[1]);
  }

  absl::Status RefuseGroup(std::string_view group, std::string_view why) const {
    for (const Setting& setting : SettingsTable()) {
      if (setting.group == group && IsGiven(setting.name)) return Contradiction(setting.name, why);
    }
    return absl::OkStatus();
  }

  absl::Status Contradiction(std::string_view name, std::string_view what) const {
    const auto found = given_.find(name);
    const Setting& setting = *FindSetting(name);
    const std::string subject =
        found != given_.end() ? StrCat(found->second.origin, ": got ", ShownValue(found->second))
                              : StrCat("default --", name, ": is \"", setting.default_text, "\"");
    return absl::InvalidArgumentError(StrCat(subject, ", ", what));
  }

  const Settings& settings_;
  const GivenSettings& given_;
};

}  // namespace

std::string ShownValue(const Assignment& assignment) {
  return assignment.setting->secret ? "a secret" : StrCat("\"", Printable(assignment.value), "\"");
}

absl::Status CrossCheck(const Settings& settings, const GivenSettings& given, Command command) {
  return CrossChecks(settings, given).Check(command);
}

}  // namespace millrace
