#include "nodes/control.h"

#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"
#include "millrace/nodes/v1/nodes.grpc.pb.h"
#include "nodes/sockets.h"

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

absl::StatusOr<std::string> ReadFile(std::string_view setting, const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::InvalidArgumentError(StrCat(setting, ": cannot read ", Printable(path)));
  }
  return text.str();
}

struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string authority;
};

absl::StatusOr<TlsTexts> ReadFiles(const TlsFiles& files) {
  TlsTexts texts;
  MILLRACE_ASSIGN_OR_RETURN(texts.certificate, ReadFile("node-tls-cert", files.certificate));
  MILLRACE_ASSIGN_OR_RETURN(texts.key, ReadFile("node-tls-key", files.key));
  MILLRACE_ASSIGN_OR_RETURN(texts.authority, ReadFile("node-tls-ca", files.authority));
  return texts;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    const std::optional<TlsFiles>& tls) {
  if (!tls.has_value()) return grpc::InsecureServerCredentials();
  MILLRACE_ASSIGN_OR_RETURN(const TlsTexts texts, ReadFiles(*tls));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = texts.authority;
  options.pem_key_cert_pairs.push_back({texts.key, texts.certificate});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    const std::optional<TlsFiles>& tls) {
  if (!tls.has_value()) return grpc::InsecureChannelCredentials();
  MILLRACE_ASSIGN_OR_RETURN(const TlsTexts texts, ReadFiles(*tls));
  return grpc::SslCredentials({texts.authority, texts.key, texts.certificate});
}

class Service final : public v1::Nodes::Service {
 public:
  Service(const std::string& key, ControlListener& listener)
      : key_(Sha256Of(StrCat(kScheme, key))), listener_(listener) {}

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
    const absl::StatusOr<Outbox*> outbox = listener_.Admit(first.hello(), context->peer());
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

  grpc::Status Refuse(const grpc::ServerContext& context, grpc::StatusCode code,
                      const std::string& why) {
    const std::lock_guard lock(mutex_);
    const SteadyTime now = Clock::Real().Now();
    if (last_refusal_.has_value() && now - *last_refusal_ < kRefusalsEvery) {
      ++unlogged_refusals_;
    } else {
      last_refusal_ = now;
      const int64_t unlogged = std::exchange(unlogged_refusals_, 0);
      kLog.Warning("refused a node at ", Printable(context.peer()), ": ", why,
                   unlogged == 0 ? "" : StrCat(" (and ", unlogged, " more since the last one)"));
    }
    return {code, why};
  }

  const Sha256Digest key_;
  ControlListener& listener_;

  std::mutex mutex_;                        // guards:
  std::optional<SteadyTime> last_refusal_;  // that was logged
  int64_t unlogged_refusals_ = 0;
};

class ControlServerImpl final : public ControlServer {
 public:
  ControlServerImpl(const std::string& key, ControlListener& listener) : service_(key, listener) {}

  ~ControlServerImpl() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + kGrace);
    server_->Wait();
  }

  absl::Status Serve(const std::string& address, int port, const std::optional<TlsFiles>& tls) {
    MILLRACE_ASSIGN_OR_RETURN(const auto credentials, ServerCredentials(tls));
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 * 1024);
    builder.SetMaxReceiveMessageSize(kMaxReportBytes);
    int bound = 0;
    builder.AddListeningPort(WithPort(address, port), credentials, &bound);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && bound != 0) return absl::OkStatus();
    return absl::UnavailableError(
        StrCat("cannot listen on ", WithPort(address, port),
               tls.has_value()
                   ? ", or --node-tls-cert, --node-tls-key and --node-tls-ca do not go together"
                   : ""));
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
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
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTimeout)) {
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
