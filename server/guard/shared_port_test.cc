// The shared port with real sockets: this test is both the clients and the endpoints.
#include "server/guard/shared_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/tls/certificates_test_util.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() { Close(); }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Send(std::string_view bytes) const {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void End() const { shutdown(fd_, SHUT_WR); }
  // Waits for something to read, 20 s at most, and reads what there is: "" at the end.
  std::string Read() const {
    pollfd one{.fd = fd_, .events = POLLIN};
    if (poll(&one, 1, 20'000) != 1) return "(nothing)";
    std::string out(65536, '\0');
    const ssize_t some = recv(fd_, out.data(), out.size(), MSG_DONTWAIT);
    out.resize(some > 0 ? static_cast<size_t>(some) : 0);
    return out;
  }

 private:
  int fd_;
};

// The connections that an endpoint got.
class Endpoint {
 public:
  void Take(int fd) {
    const std::lock_guard lock(mutex_);
    taken_.emplace_back(fd);
    changed_.notify_all();
  }
  Socket Next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 20s, [this] { return !taken_.empty(); })) return Socket(-1);
    Socket first = std::move(taken_.front());
    taken_.pop_front();
    return first;
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return taken_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Socket> taken_;
};

class SharedPortTest : public testing::Test {
 protected:
  void Open(SharedPortOptions options = {}) {
    shared_ = std::make_unique<SharedPort>(
        std::move(options), registry_,
        SharedPort::Endpoints{.http1 = [this](int fd) { http1_.Take(fd); },
                              .http2 = [this](int fd) { http2_.Take(fd); }});
    const auto port = shared_->Start();
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *port;
  }

  Socket Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port_)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return Socket(fd);
  }

  // Waits until the port has looked at all bytes that were sent before: its one thread takes
  // connections and bytes in the order in which they came.
  void WaitUntilLooked() {
    const Socket marker = Connect();
    marker.Send("GET");
    EXPECT_EQ(http1_.Next().Read(), "GET");
  }

  double Metric(const std::string& name, const std::string& reason = "") const {
    for (const auto& family : registry_.Collect()) {
      if (family.name != name) continue;
      for (const auto& metric : family.metric) {
        if (reason.empty()) return metric.gauge.value;
        if (metric.label.front().value == reason) return metric.counter.value;
      }
    }
    return -1;
  }

  prometheus::Registry registry_;
  Endpoint http1_;
  Endpoint http2_;
  std::unique_ptr<SharedPort> shared_;
  uint16_t port_ = 0;
};

TEST_F(SharedPortTest, HandsOnAConnectionWithAllItsBytes) {
  Open();
  const Socket one = Connect();
  const Socket two = Connect();
  two.Send(kPreface);
  one.Send("GET / HTTP/1.1\r\n");
  const Socket http1 = http1_.Next();
  const Socket http2 = http2_.Next();
  EXPECT_EQ(http1.Read(), "GET / HTTP/1.1\r\n");
  EXPECT_EQ(http2.Read(), kPreface);
  http1.Send("an answer");
  EXPECT_EQ(one.Read(), "an answer");
  two.Send("m");  // more than one byte is no longer waited for
  EXPECT_EQ(http2.Read(), "m");
}

TEST_F(SharedPortTest, WaitsForTheByteThatTells) {
  Open();
  const Socket one = Connect();
  const Socket two = Connect();
  for (const char c : kPreface.substr(0, 15)) {
    one.Send(std::string(1, c));
    WaitUntilLooked();
  }
  two.Send("P");
  WaitUntilLooked();
  EXPECT_EQ(http1_.count() + http2_.count(), 0u);
  EXPECT_EQ(Metric("millrace_shared_port_connections"), 2);
  one.Send("\n");
  two.Send("OST");
  EXPECT_EQ(http2_.Next().Read(), kPreface.substr(0, 16));
  EXPECT_EQ(http1_.Next().Read(), "POST");
  EXPECT_EQ(Metric("millrace_shared_port_connections"), 0);
}

TEST_F(SharedPortTest, AConnectionThatDoesNotTellIsClosedInTime) {
  Open({.timeout = 300ms});
  const Socket silent = Connect();
  const Socket half = Connect();
  half.Send("PRI * HT");
  EXPECT_EQ(silent.Read(), "");
  EXPECT_EQ(half.Read(), "");
  EXPECT_EQ(Metric("millrace_shared_port_closed_total", "handshake_timeout"), 2);
  EXPECT_EQ(Metric("millrace_shared_port_connections"), 0);
}

TEST_F(SharedPortTest, TheOldestGivesWay) {
  Open({.connections = 8});
  std::vector<Socket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect());
  const Socket one = Connect();
  one.Send("GET");
  EXPECT_EQ(http1_.Next().Read(), "GET");
  for (int i = 0; i < 12; ++i) EXPECT_EQ(silent[static_cast<size_t>(i)].Read(), "") << i;
  silent.back().Send(kPreface);
  EXPECT_EQ(http2_.Next().Read(), kPreface);
  EXPECT_EQ(Metric("millrace_shared_port_closed_total", "connections"), 13);
}

TEST_F(SharedPortTest, PartsOfHellosGiveWayToThoseOfOthers) {
  const TestCertificate certificate = MakeTestCertificate({.name = "server"});
  const std::string path = testing::TempDir() + "shared_port.pem";
  WriteTestFile(path, certificate.certificate_pem() + certificate.key_pem());
  const auto tls = TlsServer::Open({.certificate = path}, 1, registry_);
  ASSERT_TRUE(tls.ok()) << tls.status();
  HelloBudget& hellos = (*tls)->hellos();
  Open({.transport = {.tls = tls->get()}});
  const Socket part = Connect();
  part.Send(std::string_view("\x16\x03\x01\x20\x00", 5));  // a record of 8 KiB
  for (int i = 0; i < 1000 && hellos.used() < 8192; ++i) std::this_thread::sleep_for(20ms);
  EXPECT_EQ(hellos.used(), 8197u);
  {
    std::vector<std::unique_ptr<HelloBudget::Hello>> others;
    for (int i = 0; i < 2000; ++i) {
      EXPECT_TRUE(others.emplace_back(std::make_unique<HelloBudget::Hello>(hellos))->Charge(16384));
    }
    EXPECT_EQ(part.Read(), "");
    // A later part is judged when the rest comes.
    const Socket later = Connect();
    later.Send("\x16\x03\x01");
    WaitUntilLooked();
    later.Send(std::string_view("\x00\x04none", 6));  // which is no hello: HTTP refuses it
    EXPECT_EQ(http1_.Next().Read().size(), 9u);
  }
  EXPECT_EQ(hellos.used(), 0u);
  EXPECT_EQ(Metric("millrace_shared_port_closed_total", "connections"), 1);
  shared_.reset();
}

TEST_F(SharedPortTest, AClientThatLeavesHalfwayIsForgotten) {
  Open();
  Connect();
  const Socket half = Connect();
  half.Send("PRI");
  half.End();
  // HTTP judges what it sent.
  const Socket judged = http1_.Next();
  EXPECT_EQ(judged.Read(), "PRI");
  EXPECT_EQ(judged.Read(), "");
  for (int i = 0; i < 200 && Metric("millrace_shared_port_connections") != 0; ++i) {
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(Metric("millrace_shared_port_connections"), 0);
}

TEST_F(SharedPortTest, WhoIsThereWhenThePortClosesMayStillTell) {
  Open();
  const Socket early = Connect();
  for (int i = 0; i < 200 && Metric("millrace_shared_port_connections") != 1; ++i) {
    std::this_thread::sleep_for(20ms);
  }
  shared_->DropHandshakes();
  shared_->StopListening();
  early.Send("GET");
  EXPECT_EQ(http1_.Next().Read(), "GET");
  shared_->Close();
  shared_->Close();
}

TEST_F(SharedPortTest, ClosingItClosesThoseThatWait) {
  Open();
  const Socket early = Connect();
  early.Send("P");
  shared_.reset();
  EXPECT_EQ(early.Read(), "");
}

}  // namespace
}  // namespace millrace
