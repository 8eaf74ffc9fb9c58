#include "server/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/help.h"
#include "config/speculative_config.h"
#include "engine/engine_impl.h"
#include "engine/infer_engine.h"
#include "engine/text_set.h"
#include "executors/factory.h"
#include "plan/step_plan.h"
#include "server/device_spec.h"
#include "server/doctor/memory_report.h"
#include "server/endpoint_options.h"
#include "server/guard/listen.h"
#include "server/key_ring.h"
#include "server/kv_events/kv_events_config.h"
#include "server/model_location.h"
#include "server/node.h"
#include "server/startup_guard.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

// Beyond --drain-timeout: for the last words to get to clients that do read.
constexpr Duration kLastWords = std::chrono::seconds(1);

// From the closing of the ports: for requests that have been sent, or a client that has not read
// yet that the connection takes no more.
constexpr Duration kLastRequests = std::chrono::milliseconds(500);
// During --drain-delay, for a device that fails.
constexpr Duration kLookEvery = std::chrono::milliseconds(20);

// It takes milliseconds.
constexpr Duration kLongestGrpcStart = std::chrono::seconds(30);

// Removes a ready file of an earlier run, which would tell lies. InvalidArgument if something else
// is there, as /dev/null, which a file that is renamed would replace.
absl::Status RemoveReadyFile(const std::string& path) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) return absl::OkStatus();
  if (S_ISREG(found.st_mode) && unlink(path.c_str()) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ready-file: ", Printable(path),
                   S_ISREG(found.st_mode)
                       ? absl::StrCat(": ", strerror(errno))
                       : " is there and is no regular file; allowed: a file, or nothing yet"));
}

// Whole or not at all: who waits for the file never reads half of it.
absl::Status WriteReadyFile(const std::string& path, const Ports& ports) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream file(temporary);
  file << absl::StrCat("{\"http\": ", ports.http, ", \"grpc\": ", ports.grpc,
                       ", \"admin\": ", ports.admin);
  if (ports.metrics != 0) file << absl::StrCat(", \"metrics\": ", ports.metrics);
  file << "}\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    return absl::InvalidArgumentError(absl::StrCat("ready-file: cannot write ", path));
  }
  return absl::OkStatus();
}

std::string Environment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// OpenTelemetry's variables say what its users expect them to.
OtlpOptions MakeOtlpOptions(const std::string& endpoint) {
  OtlpOptions options;
  options.endpoint = endpoint;
  options.headers = ParseOtlpHeaders(Environment("OTEL_EXPORTER_OTLP_HEADERS", ""));
  options.resource = {Environment("OTEL_SERVICE_NAME", "millraced"), std::string(Version())};
  return options;
}

// Sets what is drafted. Unimplemented: drafts are asked for, and the model takes none.
absl::Status SetLookup(const std::string& setting, int32_t max_draft_tokens,
                       EngineOptions& options) {
  MILLRACE_ASSIGN_OR_RETURN(const SpeculativeConfig config, ParseSpeculativeConfig(setting));
  if (!config.lookup) {
    options.lookup.reset();
    return absl::OkStatus();
  }
  if (!setting.empty() && max_draft_tokens == 0) {
    return absl::UnimplementedError(
        "speculative-config: this model takes no drafts on this device; allowed: {\"method\": "
        "\"none\"}");
  }
  static_assert(kMaxSpeculativeTokens == kMaxDraftTokens);
  options.lookup = {.min_match = config.prompt_lookup_min,
                    .max_tokens = config.num_speculative_tokens};
  return absl::OkStatus();
}

// The model on the log line that says what is served.
std::string Describe(const InferEngine& engine) {
  std::vector<std::string> names;
  for (const TensorSpec& input : engine.info().inputs) names.push_back(input.name);
  return StrCat(engine.model_name(), " (", engine.info().platform, ", inputs ", JoinList(names),
                ")");
}

std::string Describe(const EngineInfo& info) {
  std::vector<std::string> defaults;
  for (const auto& [name, value] : NamedDefaults(info.sampling)) {
    defaults.push_back(StrCat(name, " ", value));
  }
  if (!defaults.empty()) {
    kLog.Info("requests that do not say it are sampled with: ", JoinList(defaults));
  }
  if (info.embedding_size == 0 && info.longest_sequence < info.max_model_len) {
    // The last token is in no cache.
    kLog.Warning("the KV cache holds ", info.longest_sequence - 1,
                 " tokens, fewer than a sequence of ", info.max_model_len,
                 " has: longer ones are refused; raise --kv-cache-memory, or lower "
                 "--max-model-len (or --max-num-seqs, where layers are recurrent)");
  }
  return absl::StrCat(info.model_name, " (", info.architecture, ", at most ", info.max_model_len,
                      " tokens, ", info.num_blocks, " KV blocks of ", info.block_size, ")");
}

std::string Describe(ServedModel& model) {
  const Engine* const language = model.language();
  return language != nullptr ? Describe(language->info()) : Describe(*model.tensors());
}

}  // namespace

Server::Server(const Settings& settings) : settings_(settings), frontend_(settings.api_keys) {}

Server::~Server() { CloseEndpoints(Duration::zero()); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Settings& settings, NodeEvents events,
                                                      const std::atomic<bool>& stop) {
  const SteadyTime begin = Clock::Real().Now();
  if (!settings.ready_file.empty()) {
    MILLRACE_RETURN_IF_ERROR(RemoveReadyFile(settings.ready_file));
  }
  MILLRACE_RETURN_IF_ERROR(CheckThreads(settings));
  MILLRACE_RETURN_IF_ERROR(CheckKvCacheMemory(settings));
  MILLRACE_RETURN_IF_ERROR(ParseKvEventsConfig(settings.kv_events_config).status());
  std::unique_ptr<Server> server(new Server(settings));
  if (!settings.keys.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(
        auto ring, KeyRing::Open(settings.keys, settings.shared_prefix_cache,
                                 TlsFilesOf(settings).clients != ClientCertificates::kNone));
    server->frontend_.SetKeyRing(std::move(ring));
  }
  if (!settings.ssl_certfile.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(server->tls_,
                              TlsServer::Open(TlsFilesOf(settings), ShareOfCores(8, 1, 4),
                                              server->frontend_.metrics().registry()));
    server->frontend_.Follow(server->tls_->reading());
  }
  const auto begin_serving = [&]() -> absl::Status {
    auto endpoints = std::async(std::launch::async, [&] { return server->OpenEndpoints(); });
    std::function<void()> on_failure = events.on_failure;
    absl::Status begun = server->MeetNodes(std::move(events), stop);
    // A port that is taken is told, to the other nodes too, before minutes go into a model.
    const absl::Status opened = endpoints.get();
    if (begun.ok()) begun = opened;
    if (begun.ok()) begun = server->LoadModel(std::move(on_failure), stop);
    if (begun.ok() || server->nodes_ == nullptr) return begun;
    return EndStart(*server->nodes_, begun, stop);
  };
  if (absl::Status status = begin_serving(); !status.ok()) {
    (void)server.release();
    return status;
  }
  // Who was told to end while it loaded does not turn ready: balancers would send work to it.
  if (stop) return absl::CancelledError("stopped while the model was loaded");
  if (server->nodes_ != nullptr) MILLRACE_RETURN_IF_ERROR(server->nodes_->BeginServing());
  server->frontend_.AddModel(server->model_.get(), settings.served_model_names);
  server->frontend_.SetReady();
  server->grpc_->UpdateHealth();

  const Ports& ports = server->ports_;
  kLog.Info("serving ", Describe(*server->model_), ": HTTP ",
            HostAndPort(settings.host, ports.http), ", gRPC ",
            HostAndPort(settings.host, ports.grpc), ", console http://127.0.0.1:", ports.admin, "/",
            ports.metrics == 0
                ? ""
                : StrCat(", metrics ", HostAndPort(settings.metrics_host, ports.metrics)),
            "; ready after ",
            absl::FormatDuration(absl::Milliseconds(
                absl::ToInt64Milliseconds(absl::FromChrono(Clock::Real().Now() - begin)))));
  if (!settings.ready_file.empty()) {
    if (absl::Status status = WriteReadyFile(settings.ready_file, ports); !status.ok()) {
      if (server->nodes_ != nullptr) return EndStart(*server->nodes_, status, stop);
      return status;
    }
  }
  return server;
}

absl::Status Server::LoadInferEngine(const std::string& path) {
  MILLRACE_ASSIGN_OR_RETURN(auto model, LoadTensorModel({.path = path}, MakeDeviceSpec(settings_)));
  InferOptions options;
  options.model_name = ModelName(settings_, path);
  options.max_waiting = settings_.max_waiting;
  options.stall_timeout = settings_.stall_timeout;
  InferMetrics& metrics = frontend_.metrics().AddInferEngine(options.model_name);
  model_ = std::make_unique<InferEngine>(std::move(options), std::move(model), metrics);
  return absl::OkStatus();
}

absl::Status Server::MeetNodes(NodeEvents events, const std::atomic<bool>& stop) {
  if (settings_.nnodes == 1) return absl::OkStatus();
  frontend_.progress().Begin("waiting for the other nodes");
  MILLRACE_ASSIGN_OR_RETURN(nodes_, JoinNodes(settings_, std::move(events), stop));
  if (FileReading* const reading = nodes_->reading()) frontend_.Follow(*reading);
  return absl::OkStatus();
}

absl::Status Server::LoadModel(std::function<void()> on_failure, const std::atomic<bool>& stop) {
  LoadProgress& progress = frontend_.progress();
  progress.Begin("looking for the model");
  MILLRACE_ASSIGN_OR_RETURN(const std::string path, ModelPath(settings_, &stop, &progress));
  // A language model's package has no tokenizer of its own.
  if (settings_.device != Device::kFake && IsPackage(path) && settings_.tokenizer.empty()) {
    return LoadInferEngine(path);
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::string tokenizer,
                            TokenizerPath(settings_, path, &stop, &progress));
  progress.Begin("loading the model");
  if (settings_.device == Device::kCuda) frontend_.metrics().WatchGpus();
  MILLRACE_ASSIGN_OR_RETURN(const SamplingDefaults sampling, LoadSamplingDefaults(settings_, path));
  auto text = std::async(std::launch::async, [&] {
    const ParserNames parsers = {settings_.tool_call_parser, settings_.reasoning_parser};
    return settings_.device == Device::kFake ? TextSet::Bytes(parsers)
                                             : TextSet::Load(tokenizer, parsers);
  });
  ModelSpec model = MakeModelSpec(settings_, path);
  model.progress = &progress;
  Settings sized = settings_;
  SizeCaches(path, sized);
  if (sized.max_num_seqs < settings_.max_num_seqs) {
    kLog.Warning("max-num-seqs: ", sized.max_num_seqs, " sequences run at once, and not ",
                 settings_.max_num_seqs,
                 ", whose states of recurrent layers would leave too little memory; set "
                 "--kv-cache-memory to have more");
  }
  auto executor = LoadExecutor(model, MakeDeviceSpec(sized), nodes_.get());
  auto loaded_text = text.get();
  MILLRACE_RETURN_IF_ERROR(ExplainModelError(settings_, path, executor.status()));
  MILLRACE_RETURN_IF_ERROR(
      settings_.tokenizer.empty()
          ? ExplainModelError(settings_, path, loaded_text.status())
          : Annotate(loaded_text.status(), StrCat("tokenizer: ", Printable(tokenizer))));
  EngineOptions options;
  options.model_name = ModelName(settings_, path);
  options.sampling = sampling;
  options.prefix_caching = settings_.prefix_caching;
  options.itl_slo = std::chrono::milliseconds(settings_.itl_slo_ms);
  MILLRACE_RETURN_IF_ERROR(
      SetLookup(settings_.speculative_config, (*executor)->info().max_draft_tokens, options));
  options.max_waiting = settings_.max_waiting;
  options.text_threads = ShareOfCores(4, 2, 8);
  options.output_threads = ShareOfCores(8, 1, 4);
  options.stall_timeout = settings_.stall_timeout;
  options.log_prompts = settings_.log_prompts;
  if (!settings_.otlp_traces_endpoint.empty()) {
    traces_ = std::make_unique<OtlpExporter>(MakeOtlpOptions(settings_.otlp_traces_endpoint),
                                             frontend_.metrics().registry());
    options.spans = traces_.get();
  }
  if (kv_events_ != nullptr) {
    kv_events_->Start((*executor)->info().limits.state);
    options.block_events = kv_events_.get();
  }
  options.on_failure = std::move(on_failure);
  MILLRACE_ASSIGN_OR_RETURN(
      model_, EngineImpl::Create(std::move(options), *std::move(executor), *std::move(loaded_text),
                                 frontend_.metrics()));
  return absl::OkStatus();
}

absl::Status Server::OpenEndpoints() {
  outputs_ = std::make_shared<OutputBudget>(static_cast<uint64_t>(settings_.answer_memory),
                                            &frontend_.metrics().registry());
  HttpOptions http = MakeHttpOptions(settings_, tls_.get());
  http.outputs = outputs_;
  http_ = std::make_unique<HttpServer>(frontend_, std::move(http));
  MILLRACE_ASSIGN_OR_RETURN(ports_.http, http_->Start());

  HttpOptions admin = MakeAdminOptions(settings_);
  admin.outputs = outputs_;
  // The way of SIGTERM, once: a second signal would end the process at once.
  admin.drain = [this] {
    if (!drain_asked_.exchange(true) && !frontend_.draining()) kill(getpid(), SIGTERM);
  };
  admin_ = std::make_unique<HttpServer>(frontend_, admin);
  MILLRACE_ASSIGN_OR_RETURN(ports_.admin, admin_->Start());

  if (!settings_.metrics_host.empty()) {
    HttpOptions metrics = MakeMetricsOptions(settings_);
    metrics.outputs = outputs_;
    metrics_ = std::make_unique<HttpServer>(frontend_, std::move(metrics));
    MILLRACE_ASSIGN_OR_RETURN(ports_.metrics, metrics_->Start());
  }

  const StartupWatch watch("gRPC", kLongestGrpcStart);
  GrpcOptions grpc = MakeGrpcOptions(settings_, tls_.get());
  grpc.outputs = outputs_;
  MILLRACE_ASSIGN_OR_RETURN(grpc_, GrpcServer::Start(frontend_, grpc));
  ports_.grpc = grpc_->port();
  if (SharesPort(settings_)) MILLRACE_RETURN_IF_ERROR(OpenSharedPort());
  return OpenKvEvents();
}

absl::Status Server::OpenKvEvents() {
  MILLRACE_ASSIGN_OR_RETURN(const KvEventsConfig config,
                            ParseKvEventsConfig(settings_.kv_events_config));
  if (!config.enabled) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(
      kv_events_, KvEventPublisher::Open(config, settings_.host, frontend_.metrics().registry()));
  kLog.Info("KV events ", Listens(config.endpoint) ? "are published at " : "are sent to ",
            kv_events_->endpoint(), ", topic \"", Printable(config.topic), "\"",
            kv_events_->replay_endpoint().empty()
                ? ""
                : StrCat("; replay and snapshots at ", kv_events_->replay_endpoint()),
            ". They hold the tokens of prompts, and whoever reaches an endpoint reads them");
  const auto warn = [](const std::string& endpoint) {
    if (IsLocal(endpoint)) return;
    kLog.Warning(
        "KV events: whoever reaches ", endpoint,
        " reads the tokens of all tenants' prompts, without a key: admit the router alone");
  };
  if (Listens(config.endpoint)) warn(kv_events_->endpoint());
  warn(kv_events_->replay_endpoint());
  return absl::OkStatus();
}

absl::Status Server::OpenSharedPort() {
  shared_ = std::make_unique<SharedPort>(
      MakeSharedPortOptions(settings_, tls_.get()), frontend_.metrics().registry(),
      SharedPort::Endpoints{.http1 = [this](int fd) { http_->Adopt(fd); },
                            .http2 = [this](int fd) { grpc_->Adopt(fd); }});
  MILLRACE_ASSIGN_OR_RETURN(ports_.http, shared_->Start());
  ports_.grpc = ports_.http;
  return absl::OkStatus();
}

absl::Status Server::SetAllowedHosts(const Settings& settings) {
  // A list that is wrong changes no other one.
  MILLRACE_RETURN_IF_ERROR(admin_->CheckAllowedHosts(settings.admin_allowed_hosts));
  if (metrics_ != nullptr) {
    MILLRACE_RETURN_IF_ERROR(metrics_->CheckAllowedHosts(settings.metrics_allowed_hosts));
  }
  MILLRACE_RETURN_IF_ERROR(http_->SetAllowedHosts(settings.allowed_hosts));
  MILLRACE_RETURN_IF_ERROR(admin_->SetAllowedHosts(settings.admin_allowed_hosts));
  if (metrics_ == nullptr) return absl::OkStatus();
  return metrics_->SetAllowedHosts(settings.metrics_allowed_hosts);
}

void Server::ReloadCertificates() {
  if (tls_ != nullptr) tls_->Reload();
}

// Balancers and clients that ask see that the server is about to end, and are served meanwhile.
void Server::WaitBeforeDrain() {
  kLog.Info("not ready any more: new work is taken for ", ToSeconds(settings_.drain_delay),
            " s yet");
  frontend_.BeginLeave();
  grpc_->UpdateHealth();
  const SteadyTime end = Clock::Real().Now() + settings_.drain_delay;
  while (Clock::Real().Now() < end && model_->health() != Health::kFailed) {
    std::this_thread::sleep_for(kLookEvery);
  }
  // A balancer that asks nobody sends requests until it cannot connect. Those that are on their way
  // by then are still served.
  if (shared_ != nullptr) shared_->DropHandshakes();
  http_->DropHandshakes();
  grpc_->DropHandshakes();
  std::this_thread::sleep_for(kHandshakeTime);
  if (shared_ != nullptr) shared_->StopListening();
  http_->StopListening();
  grpc_->StopListening();
  std::this_thread::sleep_for(kLastRequests);
  grpc_->EndConnections(absl::FromChrono(settings_.drain_timeout + 2 * kLastWords));
}

void Server::Drain() {
  const Clock& clock = Clock::Real();
  if (settings_.drain_delay > Duration::zero()) WaitBeforeDrain();
  const SteadyTime deadline = clock.Now() + settings_.drain_timeout;
  kLog.Info("draining: new work is refused, what was accepted has ",
            ToSeconds(settings_.drain_timeout), " s to finish");
  frontend_.BeginDrain();
  grpc_->UpdateHealth();
  model_->BeginDrain();
  if (!model_->WaitIdle(deadline)) {
    kLog.Warning("the time to drain is over: cancelling what still runs");
    model_->CancelAll();
    model_->WaitIdle(clock.Now() + kLastWords);
  }
  CloseEndpoints(std::max(deadline - clock.Now(), kLastWords));
  kLog.Info("drained");
}

void Server::CloseAfterFailure() {
  frontend_.BeginDrain();
  CloseEndpoints(kLastWords);
  // The process ends without destructors.
  if (traces_ != nullptr) traces_->Close();
}

void Server::CloseEndpoints(Duration grace) {
  const absl::Duration time = absl::FromChrono(grace);
  if (shared_ != nullptr) shared_->Close();
  std::vector<std::future<void>> closing;
  for (std::unique_ptr<HttpServer>* endpoint : {&http_, &admin_, &metrics_}) {
    if (*endpoint == nullptr) continue;
    closing.push_back(std::async(std::launch::async, [endpoint, time] {
      (*endpoint)->Stop(time);
      endpoint->reset();
    }));
  }
  if (grpc_ != nullptr) {
    grpc_->Shutdown(time);
    grpc_.reset();
  }
}

}  // namespace millrace
