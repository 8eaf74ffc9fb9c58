#include "nodes/control.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <openssl/crypto.h>
#include <prometheus/registry.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/regular_file.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"
#include "millrace/nodes/v1/nodes.grpc.pb.h"
#include "nodes/sockets.h"
#include "server/guard/entrance.h"
#include "server/guard/guard_metrics.h"
#include "server/tls/tls_server.h"

namespace millrace::nodes {
namespace {

using namespace std::chrono_literals;

constexpr Logger kLog(LogComponent::kServer);

constexpr char kAuthorization[] = "authorization";
constexpr std::string_view kScheme = "Bearer ";
constexpr auto kConnectTimeout = 1s;
constexpr auto kGiveUpPoll = 50ms;
// How long streams may take to end in order before they are cut.
constexpr auto kGrace = 2s;
// Strangers may try again and again, and shall not fill the log.
constexpr Duration kRefusalsEvery = 1s;
// A plan of the longest prompts is some megabytes.
constexpr int kMaxPlanBytes = 256 << 20;
// The limit of the other direction: a Hello, beats and a reason.
constexpr int kMaxReportBytes = 64 << 10;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kMaxStreams = 4;
constexpr int kMaxConnections = 256;
// For the last frames to get to nodes, after gRPC has ended its connections.
constexpr absl::Duration kLastFrames = absl::Milliseconds(100);
constexpr size_t kMaxPemBytes = 8 << 20;  // of a file

constexpr TlsSettings kSettings = {.certificate = "node-tls-cert",
                                   .key = "node-tls-key",
                                   .authorities = "node-tls-ca",
                                   .speaker = "node 0 speaks"};

absl::StatusOr<std::string> ReadFile(std::string_view setting, const std::string& path) {
  absl::StatusOr<std::string> text = ReadRegularFile(path, kMaxPemBytes);
  if (text.ok() && !text->empty()) return text;
  return absl::InvalidArgumentError(
      StrCat(setting, ": cannot read ", Printable(path), ": ",
             text.ok() ? "it is empty" : std::string(text.status().message())));
}

struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string authority;
};

absl::StatusOr<TlsTexts> ReadFiles(const TlsFiles& files) {
  TlsTexts texts;
  MILLRACE_ASSIGN_OR_RETURN(texts.certificate, ReadFile(kSettings.certificate, files.certificate));
  MILLRACE_ASSIGN_OR_RETURN(texts.key, ReadFile(kSettings.key, files.key));
  MILLRACE_ASSIGN_OR_RETURN(texts.authority, ReadFile(kSettings.authorities, files.authority));
  return texts;
}

millrace::TlsFiles ForServer(const TlsFiles& files) {
  return {.certificate = files.certificate,
          .key = files.key,
          .authorities = files.authority,
          .clients = ClientCertificates::kRequired,
          .settings = kSettings};
}

// A node has one connection with one stream, and sends little.
GuardLimits NodeLimits() {
  GuardLimits limits;
  limits.header_block_bytes = limits.header_list_bytes = kMaxMetadataBytes;
  limits.streams = kMaxStreams;
  limits.connections = kMaxConnections;
  limits.all_streams = kMaxStreams * kMaxConnections;
  limits.all_message_bytes = kMaxReportBytes * kMaxConnections;
  return limits;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    const std::optional<TlsFiles>& tls) {
  if (!tls.has_value()) return grpc::InsecureChannelCredentials();
  MILLRACE_ASSIGN_OR_RETURN(const TlsTexts texts, ReadFiles(*tls));
  return grpc::SslCredentials({texts.authority, texts.key, texts.certificate});
}

class Service final : public v1::Nodes::Service {
 public:
  // `peer_of` returns the address of the client whose connection gRPC knows by this descriptor.
  Service(const std::string& key, ControlListener& listener,
          std::function<std::string(int fd)> peer_of)
      : key_(Sha256Of(StrCat(kScheme, key))), listener_(listener), peer_of_(std::move(peer_of)) {}

  grpc::Status Join(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::Message, v1::Message>* stream) override {
    if (!HasKey(*context)) {
      return Refuse(*context, grpc::StatusCode::UNAUTHENTICATED,
                    "its key is another than that of node 0 (--node-key)");
    }
    v1::Message first;
    if (!stream->Read(&first) || !first.has_hello()) {
      return Refuse(*context, grpc::StatusCode::INVALID_ARGUMENT, "it did not say hello");
    }
    const absl::StatusOr<Outbox*> outbox = listener_.Admit(first.hello(), PeerOf(*context));
    if (!outbox.ok()) {
      return Refuse(*context, static_cast<grpc::StatusCode>(outbox.status().code()),
                    std::string(outbox.status().message()));
    }
    const int node = first.hello().node_rank();
    std::thread sender([&] {
      while (const std::optional<v1::Message> message = (*outbox)->Next()) {
        if (!stream->Write(*message)) break;
      }
    });
    for (v1::Message message; stream->Read(&message);) {
      listener_.Receive(node, std::move(message));
    }
    listener_.Closed(node);
    (*outbox)->Close();
    sender.join();
    return grpc::Status::OK;
  }

 private:
  bool HasKey(const grpc::ServerContext& context) const {
    const auto found = context.client_metadata().find(kAuthorization);
    if (found == context.client_metadata().end()) return false;
    const Sha256Digest given = Sha256Of({found->second.data(), found->second.size()});
    return CRYPTO_memcmp(given.data(), key_.data(), key_.size()) == 0;
  }

  // gRPC sees the end of a socket pair: "fd:12".
  std::string PeerOf(const grpc::ServerContext& context) const {
    const std::string peer = context.peer();
    const auto fd = ParseNumber<int>(std::string_view(peer).substr(peer.find(':') + 1));
    return fd.has_value() ? peer_of_(*fd) : "";
  }

  grpc::Status Refuse(const grpc::ServerContext& context, grpc::StatusCode code,
                      const std::string& why) {
    const std::lock_guard lock(mutex_);
    const SteadyTime now = Clock::Real().Now();
    if (last_refusal_.has_value() && now - *last_refusal_ < kRefusalsEvery) {
      ++unlogged_refusals_;
    } else {
      last_refusal_ = now;
      const int64_t unlogged = std::exchange(unlogged_refusals_, 0);
      kLog.Warning("refused a node at ", Printable(PeerOf(context)), ": ", why,
                   unlogged == 0 ? "" : StrCat(" (and ", unlogged, " more since the last one)"));
    }
    return {code, why};
  }

  const Sha256Digest key_;
  ControlListener& listener_;
  const std::function<std::string(int fd)> peer_of_;

  std::mutex mutex_;                        // guards:
  std::optional<SteadyTime> last_refusal_;  // that was logged
  int64_t unlogged_refusals_ = 0;
};

class ControlServerImpl final : public ControlServer {
 public:
  ControlServerImpl(const std::string& key, ControlListener& listener)
      : service_(key, listener, [this](int fd) { return entrance_->PeerOf(fd); }) {}

  ~ControlServerImpl() override {
    if (entrance_ != nullptr) entrance_->StopAccepting();
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + kGrace);
      server_->Wait();
    }
    if (entrance_ != nullptr) entrance_->Close(kLastFrames);
  }

  FileReading* reading() override { return tls_ == nullptr ? nullptr : &tls_->reading(); }

  absl::Status Serve(const std::string& address, int port, const std::optional<TlsFiles>& tls) {
    TransportRules transport;
    if (tls.has_value()) {
      MILLRACE_ASSIGN_OR_RETURN(tls_, TlsServer::Open(ForServer(*tls), 1, registry_));
      transport.tls = tls_.get();
    }
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
      builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
    }
    builder.SetMaxReceiveMessageSize(kMaxReportBytes);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC's server does not start");
    entrance_ = std::make_unique<Entrance>(
        EntranceOptions{.host = address,
                        .port = port,
                        .host_setting = "master-addr",
                        .port_setting = "master-port",
                        .component = LogComponent::kServer,
                        .transport = std::move(transport),
                        .limits = NodeLimits()},
        metrics_, [this](int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); });
    return entrance_->Start().status();
  }

 private:
  prometheus::Registry registry_;  // of the guard, whose counts nobody reads
  GuardMetrics metrics_{registry_};
  std::unique_ptr<TlsServer> tls_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Entrance> entrance_;  // owns the nodes' sockets
};

// While it lives, cancels a call once `give_up` returns true: a synchronous one cannot be left in
// any other way.
class Patience {
 public:
  Patience(grpc::ClientContext& call, const std::function<bool()>& give_up)
      : thread_([this, &call, &give_up] {
          while (!done_.Wait(Clock::Real().Now() + kGiveUpPoll)) {
            if (give_up()) call.TryCancel();
          }
        }) {}
  ~Patience() {
    done_.Raise();
    thread_.join();
  }

 private:
  Event done_;
  std::thread thread_;
};

// Returns false once a try has failed: the channel would pause for a second before the next one,
// and who joins tries again sooner.
bool Connects(grpc::Channel& channel) {
  const auto deadline = std::chrono::system_clock::now() + kConnectTimeout;
  for (;;) {
    const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return false;
    if (!channel.WaitForStateChange(state, deadline)) return false;
  }
}

class ControlClientImpl final : public ControlClient {
 public:
  ControlClientImpl(Outbox& outbox, ControlListener& listener)
      : outbox_(outbox), listener_(listener) {}

  ~ControlClientImpl() override {
    if (!sender_.joinable()) return;  // not joined: another try may use the outbox
    outbox_.Close();
    context_.TryCancel();
    sender_.join();
    reader_.join();
  }

  absl::Status Open(const Where& where, const std::string& key, const std::optional<TlsFiles>& tls,
                    const v1::Hello& hello, const std::function<bool()>& give_up) {
    MILLRACE_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentials(tls));
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetMaxReceiveMessageSize(kMaxPlanBytes);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // without an earlier try's back-off
    if (tls.has_value()) arguments.SetSslTargetNameOverride(where.name);
    const std::string target = WithPort(where.address, where.port);
    const auto channel = grpc::CreateCustomChannel(target, credentials, arguments);
    if (!Connects(*channel)) {
      return absl::UnavailableError(StrCat("no connection to ", target));
    }
    stub_ = v1::Nodes::NewStub(channel);
    context_.AddMetadata(kAuthorization, StrCat(kScheme, key));
    stream_ = stub_->Join(&context_);
    const auto greet = [&]() -> absl::Status {
      const Patience patience(context_, give_up);
      v1::Message message;
      *message.mutable_hello() = hello;
      if (!stream_->Write(message) || !stream_->Read(&message) || !message.has_welcome()) {
        return Explain(stream_->Finish(), target);
      }
      welcome_ = message.welcome();
      return absl::OkStatus();
    };
    MILLRACE_RETURN_IF_ERROR(greet());
    sender_ = std::thread([this] { Send(); });
    reader_ = std::thread([this] { Receive(); });
    return absl::OkStatus();
  }

  const v1::Welcome& welcome() const override { return welcome_; }

 private:
  static absl::Status Explain(const grpc::Status& status, const std::string& target) {
    switch (status.error_code()) {
      case grpc::StatusCode::OK:
      case grpc::StatusCode::UNKNOWN:
      case grpc::StatusCode::UNIMPLEMENTED:
      case grpc::StatusCode::INTERNAL:
        return absl::FailedPreconditionError(StrCat("what answers at ", target, " is no node 0 (",
                                                    Printable(status.error_message()), ")"));
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:
        return absl::UnavailableError(
            StrCat("no answer of ", target, ": ", Printable(status.error_message(), 200)));
      default:
        return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                            StrCat("node 0 at ", target,
                                   " refused this node: ", Printable(status.error_message(), 400)));
    }
  }

  void Send() {
    while (const std::optional<v1::Message> message = outbox_.Next()) {
      if (!stream_->Write(*message)) return;
    }
    stream_->WritesDone();
  }

  void Receive() {
    for (v1::Message message; stream_->Read(&message);) listener_.Receive(0, std::move(message));
    listener_.Closed(0);
  }

  Outbox& outbox_;
  ControlListener& listener_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::Nodes::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Message, v1::Message>> stream_;
  v1::Welcome welcome_;
  std::thread sender_;
  std::thread reader_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const std::string& address, int port, const std::string& key,
    const std::optional<TlsFiles>& tls, ControlListener& listener) {
  auto server = std::make_unique<ControlServerImpl>(key, listener);
  MILLRACE_RETURN_IF_ERROR(server->Serve(address, port, tls));
  return server;
}

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Join(
    const Where& where, const std::string& key, const std::optional<TlsFiles>& tls,
    const v1::Hello& hello, Outbox& outbox, ControlListener& listener,
    const std::function<bool()>& give_up) {
  auto client = std::make_unique<ControlClientImpl>(outbox, listener);
  if (absl::Status status = client->Open(where, key, tls, hello, give_up); !status.ok()) {
    return status;
  }
  return client;
}

}  // namespace millrace::nodes
