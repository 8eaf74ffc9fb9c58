// Shows that CI's ThreadSanitizer run would report a race in one of our gRPC handlers, although
// gRPC, on whose threads the handlers run, is not instrumented, and that it reports none when the
// handler locks a std::mutex. Handlers that run one after the other race with none: gRPC's own
// locks put them in order. So the first two wait for one another, in a way that orders nothing.
//
//   seeded_race locked|unlocked     exits 0 when all calls were answered; ThreadSanitizer ends it
//   otherwise
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "millrace/v1/inference.grpc.pb.h"
#include "server/grpc/call_service.h"
#include "server/grpc/callbacks.h"

namespace millrace {
namespace {

constexpr int kClients = 4;
constexpr int kCallsPerClient = 250;

class CountingService {
 public:
  explicit CountingService(bool locked) : locked_(locked) {}

  ServerCall* GetServerInfo(grpc::CallbackServerContext*, const v1::GetServerInfoRequest*,
                            v1::GetServerInfoResponse* response) {
    WaitForAnother();
    {
      std::optional<std::lock_guard<std::mutex>> lock;
      if (locked_) lock.emplace(mutex_);
      ++calls_;
    }
    response->set_version(std::string(100, 'v'));  // memory that one of gRPC's threads will free
    auto* const call = new UnaryCall;
    call->End(grpc::Status::OK);
    return call;
  }

 private:
  // Returns when two handlers are running, or after 20 s, so that the test fails where they never
  // are. Relaxed, so that it is no order between their accesses.
  void WaitForAnother() {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    running_.fetch_add(1, std::memory_order_relaxed);
    while (running_.load(std::memory_order_relaxed) < 2 &&
           std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const bool locked_;
  std::atomic<int> running_ = 0;
  std::mutex mutex_;
  int calls_ = 0;
};

// Returns whether every call of one client was answered.
bool Call(int port) {
  // A channel of its own, so that the server serves the clients from several threads.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::Inference::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
  for (int i = 0; i < kCallsPerClient; ++i) {
    grpc::ClientContext context;
    v1::GetServerInfoResponse response;
    if (!stub->GetServerInfo(&context, v1::GetServerInfoRequest(), &response).ok()) return false;
  }
  return true;
}

int Run(bool locked) {
  CountingService service(locked);
  TenantBudget budget("the messages", 1 << 20);
  CallService methods([](const grpc::ServerContextBase&, Scope) { return std::string(); }, budget);
  methods.AddUnary("millrace.v1.Inference", "GetServerInfo", Scope::kAny, service,
                   &CountingService::GetServerInfo);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&methods);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;

  std::vector<char> answered(kClients);
  std::vector<std::thread> clients;
  for (char& mine : answered) clients.emplace_back([&mine, port] { mine = Call(port); });
  for (std::thread& client : clients) client.join();
  server->Shutdown();
  for (const char mine : answered) {
    if (!mine) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const std::string_view mode = argc == 2 ? argv[1] : "";
  if (mode != "locked" && mode != "unlocked") {
    std::fputs("usage: seeded_race locked|unlocked\n", stderr);
    return 2;
  }
  return millrace::Run(mode == "locked");
}
