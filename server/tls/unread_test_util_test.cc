#include "server/tls/unread_test_util.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace millrace {
namespace {

class UnreadByPeerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    client_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    ASSERT_EQ(bind(listener_, any, size), 0);
    ASSERT_EQ(listen(listener_, 1), 0);
    ASSERT_EQ(getsockname(listener_, any, &size), 0);
    ASSERT_EQ(connect(client_, any, size), 0);
  }
  void TearDown() override {
    close(client_);
    close(listener_);
  }

  void Send(size_t bytes) const {
    const std::string text(bytes, 'x');
    ASSERT_EQ(send(client_, text.data(), text.size(), 0), static_cast<ssize_t>(bytes));
  }
  int Accept() const { return accept(listener_, nullptr, nullptr); }

  int listener_ = -1;
  int client_ = -1;
};

TEST_F(UnreadByPeerTest, CountsWhatWaitsForARead) {
  const int server = Accept();
  EXPECT_EQ(UnreadByPeer(client_), 0U);
  Send(100);
  EXPECT_TRUE(WaitUntilRead(client_, 100));  // what is not acknowledged yet counts twice
  EXPECT_EQ(UnreadByPeer(client_), 100U);
  char buffer[100];
  ASSERT_EQ(recv(server, buffer, 60, MSG_WAITALL), 60);
  EXPECT_TRUE(WaitUntilRead(client_, 40));
  EXPECT_EQ(UnreadByPeer(client_), 40U);
  ASSERT_EQ(recv(server, buffer, 40, MSG_WAITALL), 40);
  EXPECT_TRUE(WaitUntilRead(client_));
  close(server);
}

TEST_F(UnreadByPeerTest, CountsWhatAConnectionHoldsThatWaitsToBeAccepted) {
  Send(100);
  EXPECT_TRUE(WaitUntilRead(client_, 100));
  EXPECT_EQ(UnreadByPeer(client_), 100U);
  close(Accept());
}

// The other end can read no more of it.
TEST_F(UnreadByPeerTest, ClosedConnectionsHoldNothing) {
  const int server = Accept();
  Send(100);
  close(server);
  EXPECT_TRUE(WaitUntilRead(client_));
}

}  // namespace
}  // namespace millrace
