// The entrance with real sockets: this test is both the clients and the server behind it.
#include "server/guard/entrance.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "server/guard/frame_test_util.h"
#include "server/guard/http2.h"
#include "server/tls/unread_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kHello = std::string(http2::kPreface) + MakeFrame(http2::kSettings, 0, 0);
const std::string kCall = MakeFrame(http2::kHeaders, http2::kEndHeaders, 1, "\x83\x86\x84");

// A blocking descriptor.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}
  Peer(Peer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Peer() { Close(); }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      Wait(POLLOUT);
      const ssize_t some = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (some > 0) bytes.remove_prefix(static_cast<size_t>(some));
      if (some < 0 && errno != EAGAIN) return;
    }
  }
  // Returns how much was taken until nothing was for half a second.
  size_t SendUntilFull(std::string_view bytes) const {
    size_t sent = 0;
    pollfd one{.fd = fd_, .events = POLLOUT};
    while (sent < bytes.size() && poll(&one, 1, 500) == 1) {
      const ssize_t some =
          send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (some > 0) sent += static_cast<size_t>(some);
    }
    return sent;
  }
  // Waits until the entrance has read all that was sent.
  void WaitUntilPeerRead() const { EXPECT_TRUE(WaitUntilRead(fd_)); }
  // Up to `bytes`, fewer at the end or after 20 s.
  std::string Read(size_t bytes) {
    std::string out;
    while (out.size() < bytes) {
      Wait(POLLIN);
      std::vector<char> buffer(std::min<size_t>(bytes - out.size(), 65536));
      const ssize_t some = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (some <= 0) break;
      out.append(buffer.data(), static_cast<size_t>(some));
    }
    return out;
  }
  std::string ReadToEnd() { return Read(1 << 30); }

 private:
  void Wait(int16_t what) const {
    pollfd one{.fd = fd_, .events = what};
    poll(&one, 1, 20'000);
  }
  int fd_;
};

class EntranceTest : public testing::Test {
 protected:
  void Start(const GuardLimits& limits = {}) {
    entrance_ = std::make_unique<Entrance>(EntranceOptions{.threads = 2, .limits = limits},
                                           metrics_, [this](int fd) {
                                             const std::lock_guard lock(mutex_);
                                             attached_.push_back(fd);
                                             changed_.notify_all();
                                           });
    const absl::StatusOr<int> port = entrance_->Start();
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *port;
  }

  Peer Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port_))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return Peer(fd);
  }

  // The server's end of the n-th connection that has greeted.
  int Attached(size_t n = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return attached_.size() > n; });
    return attached_.at(n);
  }

  prometheus::Registry registry_;
  GuardMetrics metrics_{registry_};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> attached_;  // guarded by mutex_
  std::unique_ptr<Entrance> entrance_;
  int port_ = 0;
};

TEST_F(EntranceTest, MovesBytesBothWaysUnchanged) {
  Start();
  Peer client = Connect();
  client.Send(kHello);
  const int fd = Attached();
  EXPECT_THAT(entrance_->PeerOf(fd), StartsWith("ipv4:127.0.0.1:"));
  EXPECT_EQ(entrance_->PeerOf(fd + 1000), "");
  Peer server(fd);
  EXPECT_EQ(server.Read(kHello.size()), kHello);
  client.Send(kCall);
  EXPECT_EQ(server.Read(kCall.size()), kCall);
  // More than all buffers on the way hold, in both directions at once, read slowly.
  std::string up;
  std::string down;
  for (int i = 0; i < 500; ++i) {
    up += MakeFrame(http2::kData, 0, 1, std::string(16384, static_cast<char>('a' + i % 26)));
    down += MakeFrame(http2::kData, 0, 1, std::string(1 + i * 20, static_cast<char>('A' + i % 26)));
  }
  std::thread sending([&] { client.Send(up); });
  std::thread answering([&] { server.Send(down); });
  std::string got;
  std::thread reading([&] { got = client.Read(down.size()); });
  EXPECT_TRUE(server.Read(up.size()) == up);
  for (std::thread* thread : {&sending, &answering, &reading}) thread->join();
  EXPECT_TRUE(got == down);
}

// A server that ends closes its end when it has written its last frame. What the client sends then,
// acknowledgements as a rule, must not cost it the frames that it has not read.
TEST_F(EntranceTest, TheServersLastFramesArriveAtAClientThatStillSends) {
  Start();
  Peer client = Connect();
  client.Send(kHello + kCall);
  Peer server(Attached());
  EXPECT_EQ(server.Read(kHello.size() + kCall.size()), kHello + kCall);
  std::string down;
  for (int i = 0; i < 2000; ++i) {
    down += MakeFrame(http2::kData, 0, 1, std::string(16384, static_cast<char>('a' + i % 26)));
  }
  // Nobody reads, so that all buffers on the way are full.
  down.resize(server.SendUntilFull(down));
  server.Close();
  client.Send(MakeFrame(http2::kPing, 0, 0, std::string(8, 'p')));
  client.WaitUntilPeerRead();
  const std::string got = client.ReadToEnd();
  EXPECT_EQ(got.size(), down.size());
  EXPECT_TRUE(got == down);
}

TEST_F(EntranceTest, GoAwayComesBetweenFrames) {
  Start();
  Peer client = Connect();
  client.Send(kHello + kCall);
  Peer server(Attached());
  EXPECT_EQ(server.Read(kHello.size() + kCall.size()), kHello + kCall);
  const std::string data = MakeFrame(http2::kData, 0, 1, std::string(1000, 'd'));
  server.Send(data.substr(0, 500));
  EXPECT_EQ(client.Read(500), data.substr(0, 500));
  client.Send(MakeFrame(http2::kWindowUpdate, 0, 0, std::string(4, '\0')));
  server.Send(data.substr(500) + data);
  std::string all = data.substr(0, 500) + client.ReadToEnd();
  ASSERT_THAT(all, StartsWith(data));
  while (all.starts_with(data)) all.erase(0, data.size());
  const http2::FrameHeader last =
      http2::ReadFrameHeader(reinterpret_cast<const uint8_t*>(all.data()));
  EXPECT_EQ(last.type, http2::kGoAway);
  EXPECT_EQ(all.size(), http2::kFrameHeaderBytes + last.length);
  EXPECT_THAT(all, HasSubstr("WINDOW_UPDATE of 0 bytes"));
}

TEST_F(EntranceTest, AResetStreamIsResetOnBothSides) {
  Start({.all_message_bytes = 1000});
  Peer client = Connect();
  client.Send(kHello + kCall);
  Peer server(Attached());
  server.Read(kHello.size() + kCall.size());
  const std::string prefix("\0\0\0\xff\xff", 5);
  const std::string data = MakeFrame(http2::kData, 0, 1, prefix + std::string(2000, 'x'));
  client.Send(data);
  const std::string to_server =
      MakeFrame(http2::kRstStream, 0, 1, std::string_view("\0\0\0\x08", 4));
  const std::string to_client =
      MakeFrame(http2::kRstStream, 0, 1, std::string_view("\0\0\0\x0b", 4));
  EXPECT_EQ(server.Read(data.size() + to_server.size()), data + to_server);
  EXPECT_EQ(client.Read(to_client.size()), to_client);
}

TEST_F(EntranceTest, EitherSideEndsTheOther) {
  Start();
  Peer first = Connect();
  first.Send(kHello);
  Peer server(Attached(0));
  first.Close();
  EXPECT_EQ(server.ReadToEnd(), kHello);
  Peer second = Connect();
  second.Send(kHello);
  Peer other(Attached(1));
  other.Read(kHello.size());
  const std::string last = MakeFrame(http2::kGoAway, 0, 0, std::string(8, '\0'));
  other.Send(last);
  other.Close();
  EXPECT_EQ(second.ReadToEnd(), last);
}

TEST_F(EntranceTest, ConnectionsBeyondTheLimitReplaceIdleOnes) {
  Start({.connections = 2});
  std::vector<Peer> clients;
  std::vector<Peer> servers;
  for (size_t i = 0; i < 5; ++i) {
    clients.push_back(Connect());
    clients.back().Send(kHello);
    servers.emplace_back(Attached(i));
    EXPECT_EQ(servers.back().Read(kHello.size()), kHello);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(clients[i].ReadToEnd(), HasSubstr("too many connections"));
  }
}

TEST_F(EntranceTest, ManyConnectionsComeAndGoWhileItCloses) {
  Start();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < 50; ++round) {
        Peer client = Connect();
        client.Send(round % 3 == 0 ? kHello : round % 3 == 1 ? "nonsense" : "");
        if (round % 2 == 0 && round % 3 != 2) client.Read(1);
      }
    });
  }
  // The owner closes the connections that were attached.
  std::thread owner([this] {
    for (size_t n = 0; n < 4 * 17; ++n) Peer(Attached(n)).Close();
  });
  for (std::thread& thread : threads) thread.join();
  owner.join();
  Peer silent = Connect();
  entrance_->StopAccepting();
  entrance_->Close(absl::Seconds(5));
  EXPECT_EQ(silent.ReadToEnd(), "");
}

}  // namespace
}  // namespace millrace
