// Measures what the guard costs: its checks alone, a call's and a token's way through a relay
// beside the same bytes over a socket without one and beside the least relay there can be, and a
// plain Transport beside the socket that it is.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <poll.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <string>
#include <thread>

#include "server/guard/entrance.h"
#include "server/guard/frame_guard.h"
#include "server/guard/frame_test_util.h"
#include "server/tls/transport.h"

namespace millrace {
namespace {

http2::Bytes View(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

const std::string kGreeting = std::string(http2::kPreface) + MakeFrame(http2::kSettings, 0, 0, "");

// A header block as grpcio sends it once its fields are in the table, and some that never are.
const std::string kBlock = std::string("\x83\x86\x44\x1f/millrace.v1.Inference/Generate", 35) +
                           std::string("\x0f\x10\x10", 3) + "application/grpc" +
                           std::string("\x00\x0cgrpc-timeout\x04", 15) + "100S";
const std::string kMessage = std::string("\0\0\0\0\x64", 5) + std::string(100, 'm');
const std::string kToken = MakeFrame(http2::kData, 0, 1, std::string(40, 't'));

// A call with a message of 100 bytes, its checks alone.
void BM_CheckCall(benchmark::State& state) {
  GuardShared shared({});
  FrameGuard guard(shared);
  const SteadyTime now = Clock::Real().Now();
  guard.FromClient(View(kGreeting), now);
  uint32_t stream = 1;
  for (auto _ : state) {
    const std::string call = MakeFrame(http2::kHeaders, http2::kEndHeaders, stream, kBlock) +
                             MakeFrame(http2::kData, http2::kEndStream, stream, kMessage);
    if (guard.FromClient(View(call), now) != call.size()) state.SkipWithError("refused");
    const std::string end =
        MakeFrame(http2::kHeaders, http2::kEndHeaders | http2::kEndStream, stream, "\x88");
    benchmark::DoNotOptimize(guard.FromServer(View(end), now));
    stream += 2;
  }
}
BENCHMARK(BM_CheckCall);

// A token's frame on its way to the client, its checks alone.
void BM_CheckToken(benchmark::State& state) {
  GuardShared shared({});
  FrameGuard guard(shared);
  const SteadyTime now = Clock::Real().Now();
  guard.FromClient(View(kGreeting + MakeFrame(http2::kHeaders, http2::kEndHeaders, 1, kBlock)),
                   now);
  for (auto _ : state) benchmark::DoNotOptimize(guard.FromServer(View(kToken), now));
}
BENCHMARK(BM_CheckToken);

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return connected == 0 ? fd : -1;
}

void ReadAll(int fd, size_t bytes) {
  char buffer[65536];
  while (bytes > 0) {
    const ssize_t some = read(fd, buffer, std::min(bytes, sizeof(buffer)));
    if (some < 0 && errno == EAGAIN) {
      pollfd one{.fd = fd, .events = POLLIN};
      poll(&one, 1, -1);
      continue;
    }
    if (some <= 0) std::abort();
    bytes -= static_cast<size_t>(some);
  }
}

// Writes the tokens of a step, one of each of the streams of a connection, and waits until the
// client has them.
void Tokens(benchmark::State& state, int from, int to) {
  std::string step;
  for (int64_t i = 0; i < state.range(0); ++i) step += kToken;
  for (auto _ : state) {
    if (write(from, step.data(), step.size()) < 0) std::abort();
    ReadAll(to, step.size());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// Two ends of a TCP connection over the loopback.
struct TcpPair {
  TcpPair() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&address), size) != 0) std::abort();
    listen(listener, 1);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    client = Connect(ntohs(address.sin_port));
    server = accept(listener, nullptr, nullptr);
    close(listener);
  }

  int client = -1;
  int server = -1;
};

// A connection through a guard that has taken the client's greeting.
class GuardedPair {
 public:
  GuardedPair() {
    client = Connect(*entrance_.Start());
    if (write(client, kGreeting.data(), kGreeting.size()) < 0) std::abort();
    while (server_ < 0) std::this_thread::yield();
    server = server_;
    ReadAll(server, kGreeting.size());
  }
  ~GuardedPair() {
    close(server);
    close(client);
  }

  int client = -1;
  int server = -1;

 private:
  prometheus::Registry registry_;
  GuardMetrics metrics_{registry_};
  std::atomic<int> server_ = -1;
  Entrance entrance_{{}, metrics_, [this](int fd) { server_ = fd; }};
};

// A connection through the least that a relay can be: a thread for each direction that blocks in
// read, writes what came, and checks nothing. The system's calls and switches of threads are all
// that this costs.
class BarePair {
 public:
  BarePair() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) std::abort();
    client = tcp_.client;
    server = ends[0];
    inner_ = ends[1];
    to_client_ = std::thread(Move, inner_, tcp_.server);
    to_server_ = std::thread(Move, tcp_.server, inner_);
  }
  ~BarePair() {
    for (const int fd : {server, client}) shutdown(fd, SHUT_RDWR);
    to_client_.join();
    to_server_.join();
    for (const int fd : {client, server, inner_, tcp_.server}) close(fd);
  }

  int client = -1;
  int server = -1;

 private:
  static void Move(int from, int to) {
    std::array<char, 65536> buffer;
    for (ssize_t some; (some = read(from, buffer.data(), buffer.size())) > 0;) {
      if (write(to, buffer.data(), static_cast<size_t>(some)) != some) return;
    }
  }

  TcpPair tcp_;
  int inner_ = -1;
  std::thread to_client_, to_server_;
};

// Blocks, though the socket does not.
void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t some = write(fd, bytes.data(), bytes.size());
    if (some < 0 && errno != EAGAIN) std::abort();
    if (some > 0) bytes.remove_prefix(static_cast<size_t>(some));
  }
}

void BM_TokensOverASocket(benchmark::State& state) {
  const TcpPair pair;
  Tokens(state, pair.server, pair.client);
  close(pair.client);
  close(pair.server);
}
BENCHMARK(BM_TokensOverASocket)->Arg(1)->Arg(64)->MeasureProcessCPUTime()->UseRealTime();

void BM_TokensThroughABareRelay(benchmark::State& state) {
  const BarePair pair;
  Tokens(state, pair.server, pair.client);
}
BENCHMARK(BM_TokensThroughABareRelay)->Arg(1)->Arg(64)->MeasureProcessCPUTime()->UseRealTime();

void BM_TokensThroughTheGuard(benchmark::State& state) {
  const GuardedPair pair;
  WriteAll(pair.client, MakeFrame(http2::kHeaders, http2::kEndHeaders, 1, kBlock));
  Tokens(state, pair.server, pair.client);
}
BENCHMARK(BM_TokensThroughTheGuard)->Arg(1)->Arg(64)->MeasureProcessCPUTime()->UseRealTime();

// Calls with messages of 100 bytes, so many at once, of a client that waits for their ends.
void Calls(benchmark::State& state, int client, int server) {
  uint32_t stream = 1;
  for (auto _ : state) {
    std::string calls;
    std::string ends;
    for (int64_t i = 0; i < state.range(0); ++i) {
      calls += MakeFrame(http2::kHeaders, http2::kEndHeaders, stream, kBlock) +
               MakeFrame(http2::kData, http2::kEndStream, stream, kMessage);
      ends += MakeFrame(http2::kHeaders, http2::kEndHeaders | http2::kEndStream, stream, "\x88");
      stream += 2;
    }
    WriteAll(client, calls);
    ReadAll(server, calls.size());
    WriteAll(server, ends);
    ReadAll(client, ends.size());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void BM_CallsOverASocket(benchmark::State& state) {
  const TcpPair pair;
  Calls(state, pair.client, pair.server);
  close(pair.client);
  close(pair.server);
}
BENCHMARK(BM_CallsOverASocket)->Arg(1)->Arg(64)->MeasureProcessCPUTime()->UseRealTime();

void BM_CallsThroughABareRelay(benchmark::State& state) {
  const BarePair pair;
  Calls(state, pair.client, pair.server);
}
BENCHMARK(BM_CallsThroughABareRelay)->Arg(1)->Arg(64)->MeasureProcessCPUTime()->UseRealTime();

void BM_CallsThroughTheGuard(benchmark::State& state) {
  const GuardedPair pair;
  Calls(state, pair.client, pair.server);
}
BENCHMARK(BM_CallsThroughTheGuard)->Arg(1)->Arg(64)->MeasureProcessCPUTime()->UseRealTime();

// Does what the owner of a socket does with a token: a write, and a read that finds nothing.
template <typename Socket>
void Moves(benchmark::State& state, Socket& socket, int client) {
  std::array<char, 4096> buffer;
  boost::system::error_code error;
  for (auto _ : state) {
    benchmark::DoNotOptimize(socket.write_some(boost::asio::buffer(kToken), error));
    benchmark::DoNotOptimize(socket.read_some(boost::asio::buffer(buffer), error));
    ReadAll(client, kToken.size());
  }
}

using Tcp = boost::asio::ip::tcp;

void BM_TokenOverAsiosSocket(benchmark::State& state) {
  const TcpPair pair;
  boost::asio::io_context context;
  Tcp::socket socket(context, Tcp::v4(), pair.server);
  socket.non_blocking(true);
  Moves(state, socket, pair.client);
  close(pair.client);
}
BENCHMARK(BM_TokenOverAsiosSocket);

void BM_TokenOverAPlainTransport(benchmark::State& state) {
  const TcpPair pair;
  boost::asio::io_context context;
  const TransportRules rules;
  Transport transport(Tcp::socket(context, Tcp::v4(), pair.server), rules, TlsProtocol::kHttp2);
  transport.Start();
  Moves(state, transport, pair.client);
  close(pair.client);
}
BENCHMARK(BM_TokenOverAPlainTransport);

}  // namespace
}  // namespace millrace
