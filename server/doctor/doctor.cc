#include "server/doctor/doctor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/control_group.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/text_set.h"
#include "executors/device_spec.h"
#include "executors/factory.h"
#include "hub/hub.h"
#include "server/doctor/gpu_driver.h"
#include "server/doctor/machine_memory.h"
#include "server/doctor/memory_report.h"
#include "server/doctor/start_checks.h"
#include "server/model_location.h"

namespace millrace {
namespace {

constexpr int kLeastCapability = 8;
constexpr rlim_t kFewFiles = 4096;

// Returns the message without the subject that the finding has already.
std::string Message(const absl::Status& status) {
  constexpr std::string_view kSubject = "model: ";
  std::string message(status.message());
  if (message.starts_with(kSubject)) message.erase(0, kSubject.size());
  return message;
}

class Examination {
 public:
  explicit Examination(const Settings& settings) : settings_(settings) {}

  std::vector<Finding> Run() {
    CheckProcessor();
    CheckLimits();
    CheckGpu();
    for (Finding& finding : ExamineStart(settings_)) findings_.push_back(std::move(finding));
    if (settings_.device != Device::kFake) {
      CheckModel();
    } else {
      CheckText("");
    }
    CheckPort("http-port", settings_.host, settings_.http_port);
    CheckPort("grpc-port", settings_.host, settings_.grpc_port);
    CheckPort("admin-port", "127.0.0.1", settings_.admin_port);
    if (!settings_.metrics_host.empty()) {
      CheckPort("metrics-port", settings_.metrics_host, settings_.metrics_port);
    }
    return std::move(findings_);
  }

 private:
  void Add(Verdict verdict, std::string subject, std::string fact, std::string advice = "") {
    findings_.push_back({verdict, std::move(subject), std::move(fact), std::move(advice)});
  }

  static std::string ProcessorName() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("model name"))
        return line.substr(std::min(line.find(':') + 2, line.size()));
    }
    return "a processor without a name";
  }

  void CheckProcessor() {
    const int cores = UsableCores();
    std::vector<std::string> features;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features.push_back("AVX2");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      features.push_back("AVX-512");
    }
    if (__builtin_cpu_supports("avx512vnni")) features.push_back("VNNI");
    if (__builtin_cpu_supports("avx512bf16")) features.push_back("BF16");
#endif
    const std::string fact = StrCat(ProcessorName(), ", ", cores, " cores, ",
                                    features.empty() ? "no vectors" : JoinList(features));
    const bool computes = settings_.device == Device::kCpu || settings_.device == Device::kTorch;
    if (computes && features.empty()) {
      Add(Verdict::kWarning, "processor", fact,
          "a model will be slow on it: take a machine with AVX2, or --device cuda");
    } else if (computes && settings_.threads > cores) {
      Add(Verdict::kWarning, "processor", fact,
          StrCat("--threads is ", settings_.threads,
                 ", more than the cores that this process may "
                 "use: leave it out"));
    } else {
      Add(Verdict::kOk, "processor", fact);
    }
  }

  void CheckLimits() {
    rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
      const std::string fact = files.rlim_max == RLIM_INFINITY ? std::string("no limit")
                                                               : StrCat("at most ", files.rlim_max);
      const bool few = files.rlim_max < kFewFiles;
      Add(few ? Verdict::kWarning : Verdict::kOk, "open files", fact,
          few ? "each client takes one: raise the hard limit (ulimit -Hn, LimitNOFILE)" : "");
    }
    rlimit space;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
      Add(Verdict::kWarning, "address space", StrCat("at most ", Mebibytes(space.rlim_cur)),
          "model files are mapped, and threads reserve stacks: lift it (ulimit -v unlimited)");
    }
  }

  void CheckGpu() {
    const bool wanted = settings_.device == Device::kCuda;
    const bool built = CudaKernelTable().ok();
    if (wanted && !built) {
      Add(Verdict::kError, "CUDA", "this server was built without it",
          "build it with MILLRACE_CUDA=ON, or take the CUDA image");
    }
    const absl::StatusOr<DriverFacts> driver = ReadDriver();
    if (!driver.ok()) {
      const bool none = absl::IsNotFound(driver.status());
      if (wanted) {
        Add(Verdict::kError, "driver", Message(driver.status()),
            none ? "install NVIDIA's driver; in a container, pass the GPU (--gpus, nvidia.com/gpu)"
                 : "nvidia-smi says more; a restart after an update of the driver often helps");
      } else {
        Add(Verdict::kOk, "GPU", "none is used");
      }
      return;
    }
    if (wanted) Add(Verdict::kOk, "driver", driver->version);
    if (wanted && driver->gpus.empty()) {
      Add(Verdict::kError, "GPU", "the driver has none", "in a container, pass it");
    }
    for (const GpuFacts& gpu : driver->gpus) {
      const std::string fact = StrCat(gpu.name, ", compute capability ", gpu.major, ".", gpu.minor,
                                      ", ", Mebibytes(gpu.free), " free of ", Mebibytes(gpu.total));
      if (!wanted) {
        Add(Verdict::kOk, "GPU", StrCat(fact, ", not used"), built ? "--device cuda uses it" : "");
      } else if (gpu.major < kLeastCapability) {
        Add(Verdict::kError, "GPU", fact, "take a GPU of compute capability 8.0 or later");
      } else {
        Add(Verdict::kOk, "GPU", fact);
      }
    }
    // Each node has as many ranks.
    const int needed =
        settings_.virtual_ranks ? 1 : settings_.tensor_parallel_size / settings_.nnodes;
    if (wanted && driver->gpus.size() < static_cast<size_t>(needed)) {
      Add(Verdict::kError, "GPUs",
          StrCat("there are ", driver->gpus.size(), ", --tensor-parallel-size needs ", needed,
                 settings_.nnodes > 1 ? " on each node" : ""),
          "lower it");
    }
  }

  void CheckModel() {
    Settings offline = settings_;
    offline.offline = true;
    const absl::StatusOr<std::string> path = ModelPath(offline);
    if (!path.ok()) {
      if (absl::IsNotFound(path.status()) && IsHubModel(settings_.model) && !settings_.offline) {
        Add(Verdict::kUnknown, "model",
            StrCat(settings_.model,
                   " is not whole in the local cache; neither it nor its tokenizer nor what it "
                   "takes of the memory is checked"),
            StrCat("the server will fetch it; `millraced get ", settings_.model, "` does so now"));
      } else {
        Add(Verdict::kError, "model", Message(path.status()), "name one that is there");
      }
      return;
    }
    if (IsPackage(*path)) {
      const bool readable = access(path->c_str(), R_OK) == 0;
      Add(readable ? Verdict::kUnknown : Verdict::kError, "model",
          StrCat(*path, readable ? ": what is in the package is not checked"
                                 : ": there is no such file, or it cannot be read"));
      if (!settings_.tokenizer.empty()) CheckText(*path);
      return;
    }
    const absl::StatusOr<OpenedModel> model =
        OpenModel(*path, MakeModelSpec(settings_, *path).runner);
    if (!model.ok()) {
      Add(Verdict::kError, "model", Message(ExplainModelError(settings_, *path, model.status())),
          "name another, or fetch it again");
      return;
    }
    Add(Verdict::kOk, "model",
        StrCat(*path, ": ", model->config.architecture, ", ", model->config.num_layers(),
               " layers"));
    const bool too_long = settings_.max_model_len > model->config.context_length;
    if (too_long) {
      Add(Verdict::kError, "max-model-len",
          StrCat(settings_.max_model_len, " is more than the model's ",
                 model->config.context_length),
          "lower it, or leave it out");
    }
    Add(Verdict::kUnknown, "loading",
        settings_.device == Device::kTorch
            ? "the numbers in the weights, and whether the device computes all of the model, are "
              "not checked"
            : "the numbers in the weights are not checked");
    CheckText(*path);
    if (settings_.device == Device::kTorch) {
      Add(Verdict::kUnknown, "memory", "what LibTorch takes is not checked");
    } else if (!too_long && (settings_.device != Device::kCuda || CudaKernelTable().ok())) {
      CheckMemory(*path);
    }
  }

  // `path` is the model's; empty for the fake device.
  void CheckText(const std::string& path) {
    const absl::Status sampling = LoadSamplingDefaults(settings_, path).status();
    if (!sampling.ok()) Add(Verdict::kError, "sampling", Message(sampling), "name another");
    const ParserNames parsers = {settings_.tool_call_parser, settings_.reasoning_parser};
    if (settings_.device == Device::kFake) {
      const absl::Status text = TextSet::Bytes(parsers).status();
      if (!text.ok()) Add(Verdict::kError, "parsers", Message(text), "name another");
      return;
    }
    Settings offline = settings_;
    offline.offline = true;
    const absl::StatusOr<std::string> tokenizer = TokenizerPath(offline, path);
    if (!tokenizer.ok()) {
      const bool fetches = absl::IsNotFound(tokenizer.status()) && !settings_.offline;
      Add(fetches ? Verdict::kUnknown : Verdict::kError, "tokenizer",
          fetches ? StrCat(settings_.tokenizer, " is not in the local cache, and is not checked")
                  : Message(tokenizer.status()),
          fetches ? "the server will fetch it" : "name one that is there");
      return;
    }
    const auto text = TextSet::Load(*tokenizer, parsers);
    if (text.ok()) {
      Add(Verdict::kOk, "tokenizer", *tokenizer);
      CheckTemplate(**text);
    } else {
      Add(Verdict::kError, "tokenizer and parsers", Message(text.status()),
          "name another model's with --tokenizer, or another parser");
    }
  }

  // Says what the chat template does with each kind of message, which it was rendered for.
  void CheckTemplate(const TextSet& text) {
    if (!text.has_chat_template()) {
      return Add(Verdict::kOk, "chat template", "none, or one that is not rendered: no chats");
    }
    const TemplateTraits& traits = text.template_traits();
    for (const std::string& line : Describe(traits)) {
      Add(traits.renders ? Verdict::kOk : Verdict::kWarning, "chat template", line,
          traits.renders ? "" : "take a model whose template renders a question");
    }
  }

  void CheckMemory(const std::string& path) {
    const absl::StatusOr<MemoryReport> report = ReportMemory(settings_, path);
    if (!report.ok()) {
      // The plan's dry run asks the device for everything that the model computes.
      const bool refused = absl::IsUnimplemented(report.status());
      Add(Verdict::kError, refused ? "model" : "memory", Message(report.status()),
          "take another model, or other settings");
      return;
    }
    const std::string needs = StrCat(report->place, ": needs ", Mebibytes(report->total));
    if (!report->available.has_value()) {
      Add(Verdict::kUnknown, "memory", StrCat(needs, ", and how much there is, is unknown"),
          "--dry-run lists the parts");
      return;
    }
    const std::string fact =
        StrCat(needs, ", has ", Mebibytes(*report->available), " ", report->available_note);
    if (report->fits()) {
      Add(Verdict::kOk, "memory", fact);
    } else {
      Add(Verdict::kError, "memory", fact,
          "lower --kv-cache-memory, or round the weights with --quantization; --dry-run lists the "
          "parts");
    }
  }

  void CheckPort(const std::string& setting, const std::string& host, int32_t port) {
    if (port == 0) return;
    const std::string subject = StrCat("port ", port);
    if (const int error = TryToListen(host, port); error != 0) {
      const bool taken = error == EADDRINUSE;
      Add(Verdict::kError, subject,
          taken ? StrCat("is taken by another program on ", host)
                : StrCat("cannot be listened on at ", host, ": ", std::strerror(error)),
          StrCat(
              "choose another with --", setting,
              taken ? StrCat(", or end what listens (ss -ltnp sport = :", port, ")")
              : error == EADDRNOTAVAIL
                  ? StrCat(", or another ", setting == "metrics-port" ? "--metrics-host" : "--host",
                           ": it is no address of this machine")
                  : ""));
    } else {
      Add(Verdict::kOk, subject, StrCat("free on ", host, " (--", setting, ")"));
    }
  }

  // Returns 0 or an errno.
  static int TryToListen(const std::string& host, int32_t port) {
    if (host == "localhost") {
      const int error = TryToListen("127.0.0.1", port);
      // The machine may be without IPv6.
      return error == 0 && TryToListen("::1", port) == EADDRINUSE ? EADDRINUSE : error;
    }
    sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(static_cast<uint16_t>(port))};
    sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    const bool is_v4 = inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
    if (!is_v4 && inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return EADDRNOTAVAIL;
    const int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const auto* address =
        is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
    const socklen_t size = is_v4 ? sizeof(v4) : sizeof(v6);
    const int error = bind(fd, address, size) != 0 || listen(fd, 1) != 0 ? errno : 0;
    close(fd);
    return error;
  }

  const Settings& settings_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> Examine(const Settings& settings) { return Examination(settings).Run(); }

bool HasErrors(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.verdict == Verdict::kError; });
}

std::string FindingsText(const std::vector<Finding>& findings) {
  static constexpr std::string_view kMarks[] = {"ok     ", "unknown", "warning", "ERROR  "};
  std::string text;
  std::vector<std::string> unknown;
  size_t counts[std::size(kMarks)] = {};
  for (const Finding& finding : findings) {
    const auto index = static_cast<size_t>(finding.verdict);
    ++counts[index];
    if (finding.verdict == Verdict::kUnknown) unknown.push_back(finding.subject);
    text += StrCat(kMarks[index], "  ", finding.subject, ": ", finding.fact, "\n");
    if (!finding.advice.empty()) text += StrCat("         do: ", finding.advice, "\n");
  }
  const size_t errors = counts[static_cast<size_t>(Verdict::kError)];
  const size_t warnings = counts[static_cast<size_t>(Verdict::kWarning)];
  return StrCat(text,
                errors > 0 ? StrCat("It cannot serve: ", errors, " errors")
                : unknown.empty()
                    ? "This machine can serve with these settings"
                    : StrCat("Nothing that was checked is wrong; not checked: ", JoinList(unknown)),
                warnings == 0 ? "" : StrCat("; ", warnings, " warnings"), ".\n");
}

}  // namespace millrace
