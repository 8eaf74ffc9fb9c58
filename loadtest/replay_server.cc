// loadtest_replay: answers every request with a canned stream, to find out how much the load
// generator itself can take. It reads of a request only max_tokens.
//
//   loadtest_replay [--port N] [--threads N] [--gap-ms N]
//
// It prints the port that it listens on. With --gap-ms each stream gets an event every N ms in a
// write of its own, as from a server whose steps take N ms; without it events come as fast as the
// client takes them.
#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/strings.h"

namespace millrace {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using Error = boost::system::error_code;

constexpr int64_t kEventsPerWrite = 64;  // at full speed
constexpr auto kTick = std::chrono::milliseconds(1);
constexpr int kBacklog = 8192;

std::string AsChunk(std::string_view data) {
  return absl::StrFormat("%x\r\ndata: %s\n\n\r\n", data.size() + 8, AbslView(data));
}

const std::string& TokenEvent() {
  static const auto* const kEvent = new std::string(AsChunk(
      R"({"id":"cmpl-0123456789abcdef0123","object":"text_completion","created":1764000000,)"
      R"("model":"replay","choices":[{"index":0,"text":" token","logprobs":null,)"
      R"("finish_reason":null}]})"));
  return *kEvent;
}

const std::string& ManyTokenEvents() {
  static const auto* const kEvents = [] {
    auto* events = new std::string;
    for (int64_t i = 0; i < kEventsPerWrite; ++i) *events += TokenEvent();
    return events;
  }();
  return *kEvents;
}

std::string EndOfStream(int64_t prompt, int64_t tokens) {
  return AsChunk(StrCat(R"({"id":"cmpl-0123456789abcdef0123","object":"text_completion",)"
                        R"("created":1764000000,"model":"replay","choices":[],"usage":)",
                        R"({"prompt_tokens":)", prompt, R"(,"completion_tokens":)", tokens,
                        R"(,"total_tokens":)", prompt + tokens, "}}")) +
         AsChunk("[DONE]") + "0\r\n\r\n";
}

struct ReplayThread;

// A connection, and the stream on it.
class Replay : public std::enable_shared_from_this<Replay> {
 public:
  Replay(tcp::socket socket, ReplayThread& thread) : socket_(std::move(socket)), thread_(thread) {}

  void ReadRequest() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](Error error, size_t n) {
                              if (error) return;
                              self->request_.append(self->buffer_, n);
                              if (!self->TakeRequest()) self->ReadRequest();
                            });
  }

  // Sends one event, unless the socket is full. Returns whether the stream goes on.
  bool SendOne();

 private:
  bool TakeRequest();
  void Stream();
  void WriteMany();
  void End();

  tcp::socket socket_;
  ReplayThread& thread_;
  char buffer_[4096];
  std::string request_;
  std::string out_;
  int64_t left_ = 0;
  int64_t tokens_ = 0;
  int64_t prompt_ = 0;
};

struct ReplayThread {
  explicit ReplayThread(int64_t gap_ms)
      : gap_ms(gap_ms), wheel(static_cast<size_t>(std::max<int64_t>(1, gap_ms))), timer(io) {}

  void Tick() {
    timer.expires_at(timer.expiry() + kTick);
    timer.async_wait([this](Error error) {
      if (error) return;
      at = (at + 1) % wheel.size();
      std::erase_if(wheel[at],
                    [](const std::shared_ptr<Replay>& stream) { return !stream->SendOne(); });
      Tick();
    });
  }

  int64_t gap_ms;
  asio::io_context io{1};
  std::vector<std::vector<std::shared_ptr<Replay>>> wheel;  // streams by when they are due
  size_t at = 0;
  asio::steady_timer timer;
};

int64_t NumberAfter(std::string_view text, std::string_view key, int64_t otherwise) {
  size_t at = text.find(key);
  if (at == text.npos) return otherwise;
  at = text.find_first_of("0123456789", at + key.size());
  if (at == text.npos) return otherwise;
  return ParseNumber<int64_t>(text.substr(at, text.find_first_not_of("0123456789", at) - at))
      .value_or(otherwise);
}

bool Replay::TakeRequest() {
  const size_t head = request_.find("\r\n\r\n");
  if (head == request_.npos) return false;
  const std::string_view header = std::string_view(request_).substr(0, head);
  const auto length = static_cast<size_t>(NumberAfter(header, "Content-Length:", 0));
  if (request_.size() < head + 4 + length) return false;
  const std::string_view body = std::string_view(request_).substr(head + 4, length);
  if (header.starts_with("GET")) {
    const std::string models = R"({"object":"list","data":[{"id":"replay","object":"model"}]})";
    out_ = StrCat("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ",
                  models.size(), "\r\n\r\n", models);
    left_ = 0;
  } else {
    tokens_ = left_ = NumberAfter(body, "\"max_tokens\"", 16);
    prompt_ = static_cast<int64_t>(std::count(body.begin(), body.end(), ' ')) + 1;
    out_ =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  }
  request_.erase(0, head + 4 + length);
  asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this()](Error error, size_t) {
    if (!error) self->Stream();
  });
  return true;
}

void Replay::Stream() {
  if (left_ == 0) return ReadRequest();
  if (thread_.gap_ms == 0) return WriteMany();
  thread_.wheel[thread_.at].push_back(shared_from_this());
}

void Replay::WriteMany() {
  if (left_ == 0) return End();
  const int64_t count = std::min(left_, kEventsPerWrite);
  left_ -= count;
  asio::async_write(
      socket_,
      asio::buffer(ManyTokenEvents().data(), static_cast<size_t>(count) * TokenEvent().size()),
      [self = shared_from_this()](Error error, size_t) {
        if (!error) self->WriteMany();
      });
}

bool Replay::SendOne() {
  const std::string& event = TokenEvent();
  const ssize_t sent =
      send(socket_.native_handle(), event.data(), event.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN;
  if (sent < static_cast<ssize_t>(event.size())) return false;  // a reader this slow is cut off
  if (--left_ > 0) return true;
  End();
  return false;
}

void Replay::End() {
  out_ = EndOfStream(prompt_, tokens_);
  asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this()](Error error, size_t) {
    if (!error) self->ReadRequest();
  });
}

void Accept(tcp::acceptor& acceptor, std::vector<std::unique_ptr<ReplayThread>>& threads,
            size_t next) {
  ReplayThread& thread = *threads[next];
  acceptor.async_accept(thread.io, [&, next](Error error, tcp::socket socket) {
    if (!error) {
      Error ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      asio::post(thread.io, [replay = std::make_shared<Replay>(std::move(socket), thread)] {
        replay->ReadRequest();
      });
    }
    Accept(acceptor, threads, (next + 1) % threads.size());
  });
}

int Serve(uint16_t port, int64_t threads, int64_t gap_ms) {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<std::unique_ptr<ReplayThread>> loops;
  for (int64_t i = 0; i < threads; ++i) loops.push_back(std::make_unique<ReplayThread>(gap_ms));
  tcp::acceptor acceptor(loops[0]->io);
  acceptor.open(tcp::v4());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  acceptor.bind({asio::ip::address_v4::loopback(), port});
  acceptor.listen(kBacklog);
  std::printf("%d\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
  Accept(acceptor, loops, 0);
  std::vector<std::jthread> running;
  for (const auto& loop : loops) {
    running.emplace_back([&loop = *loop] {
      const auto work = asio::make_work_guard(loop.io);
      loop.timer.expires_after(kTick);
      if (loop.gap_ms > 0) loop.Tick();
      loop.io.run();
    });
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  int64_t port = 0;
  int64_t threads = 1;
  int64_t gap_ms = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const int64_t value = millrace::ParseNumber<int64_t>(argv[i + 1]).value_or(-1);
    int64_t* const to = name == "--port"      ? &port
                        : name == "--threads" ? &threads
                        : name == "--gap-ms"  ? &gap_ms
                                              : nullptr;
    if (to == nullptr || value < 0 || value > 65'535) {
      std::fputs("usage: loadtest_replay [--port N] [--threads N] [--gap-ms N]\n", stderr);
      return EXIT_FAILURE;
    }
    *to = value;
  }
  return millrace::Serve(static_cast<uint16_t>(port), std::max<int64_t>(1, threads), gap_ms);
}
