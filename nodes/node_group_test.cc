#include "nodes/node_group.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/log.h"
#include "executors/nodes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nodes/sockets.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

using GroupOr = absl::StatusOr<std::unique_ptr<NodeGroup>>;

// A port that is free, and so is the one behind it.
int FreePort() {
  static int next = 23000 + static_cast<int>(getpid() % 97) * 60;
  for (; next < 32000; next += 2) {
    if (nodes::Listen("127.0.0.1", next).ok() && nodes::Listen("127.0.0.1", next + 1).ok()) {
      const int port = next;
      next += 2;
      return port;
    }
  }
  ADD_FAILURE() << "no free port";
  return 0;
}

bool Never() { return false; }

// The reason of a failure, for which a thread can wait.
class Failure {
 public:
  std::function<void(const absl::Status&)> callback() {
    return [this](const absl::Status& why) {
      const std::lock_guard lock(mutex_);
      ++count_;
      why_ = why;
      changed_.notify_all();
    };
  }
  std::string Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return count_ > 0; });
    return std::string(why_.message());
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
  absl::Status why_;
};

NodeOptions Options(int port, int node, int nnodes = 2) {
  NodeOptions options;
  options.nnodes = nnodes;
  options.node_rank = node;
  options.master_addr = "127.0.0.1";
  options.master_port = port;
  options.key = "between us";
  options.timeout = 60s;
  options.version = "1.2.3";
  options.silence = 60s;
  return options;
}

// All nodes, in this process.
std::vector<GroupOr> JoinAll(const std::vector<NodeOptions>& options) {
  std::vector<std::future<GroupOr>> joining;
  for (const NodeOptions& of_node : options) {
    joining.push_back(
        std::async(std::launch::async, [&of_node] { return NodeGroup::Join(of_node, Never); }));
  }
  std::vector<GroupOr> groups;
  for (auto& group : joining) groups.push_back(group.get());
  return groups;
}

std::string MessageOf(const GroupOr& group) { return std::string(group.status().message()); }

StepPlan Plan(StepId id) {
  StepPlan plan;
  plan.id = id;
  plan.tokens = {static_cast<Token>(id)};
  return plan;
}

TEST(NodeGroupTest, PlansComeInOrderAndNode0EndsAll) {
  const int port = FreePort();
  auto groups = JoinAll({Options(port, 0, 3), Options(port, 1, 3), Options(port, 2, 3)});
  for (const GroupOr& group : groups) ASSERT_TRUE(group.ok()) << group.status();
  for (StepId id = 1; id <= 100; ++id) EXPECT_TRUE((*groups[0])->SendPlan(Plan(id)).ok());
  for (int node : {1, 2}) {
    for (StepId id = 1; id <= 100; ++id) {
      const auto plan = (*groups[node])->NextPlan();
      ASSERT_TRUE(plan.ok() && plan->has_value());
      EXPECT_EQ((*plan)->id, id);
      EXPECT_EQ((*plan)->tokens[0], static_cast<Token>(id));
    }
  }
  groups[0]->reset();
  for (int node : {1, 2}) {
    const auto plan = (*groups[node])->NextPlan();
    EXPECT_TRUE(plan.ok() && !plan->has_value()) << plan.status();
  }
}

TEST(NodeGroupTest, FactsAreComparedOnAllNodesAlike) {
  const int port = FreePort();
  auto groups = JoinAll({Options(port, 0), Options(port, 1)});
  for (const GroupOr& group : groups) ASSERT_TRUE(group.ok()) << group.status();
  const auto agree = [&](const std::string& of_0, const std::string& of_1) {
    auto other = std::async(std::launch::async, [&] {
      return Agree(**groups[1], {{"device", "cpu"}, {"colour", of_1}});
    });
    absl::Status first = Agree(**groups[0], {{"device", "cpu"}, {"colour", of_0}});
    EXPECT_EQ(first, other.get());
    return first;
  };
  EXPECT_TRUE(agree("red", "red").ok());
  const absl::Status differ = agree("red", "blue\n");
  EXPECT_EQ(differ.message(),
            "node 1: colour is \"blue\\n\", and that of node 0 is \"red\"; "
            "allowed: the same on all nodes");
  EXPECT_TRUE(IsDisagreement(differ));
  EXPECT_FALSE(IsDisagreement(absl::FailedPreconditionError(differ.message())));
}

TEST(NodeGroupTest, AFailureEndsAllNodesWithItsReason) {
  const int port = FreePort();
  std::vector<NodeOptions> options = {Options(port, 0, 3), Options(port, 1, 3),
                                      Options(port, 2, 3)};
  std::vector<Failure> failures(3);
  for (int node = 0; node < 3; ++node) options[node].on_failure = failures[node].callback();
  auto groups = JoinAll(options);
  for (const GroupOr& group : groups) ASSERT_TRUE(group.ok()) << group.status();
  Failure of_executor;
  (*groups[0])->OnFailure(of_executor.callback());
  auto waiting = std::async(std::launch::async, [&] {
    std::vector<std::vector<char>> all;
    return (*groups[2])->AllGather({}, &all);
  });
  (*groups[1])->Fail(absl::InternalError("the device is on fire"));
  constexpr char kWhy[] = "node 1 of 3 failed: the device is on fire";
  for (const int node : {0, 2}) EXPECT_EQ(failures[node].Wait(), kWhy);
  EXPECT_EQ(of_executor.Wait(), kWhy);
  EXPECT_EQ(waiting.get(), absl::UnavailableError(kWhy));
  EXPECT_EQ((*groups[2])->NextPlan().status(), absl::UnavailableError(kWhy));
  EXPECT_EQ((*groups[0])->SendPlan(Plan(1)), absl::UnavailableError(kWhy));
  Failure late;
  (*groups[0])->OnFailure(late.callback());
  EXPECT_EQ(late.Wait(), kWhy);
  groups.clear();
  for (const int node : {0, 1, 2}) EXPECT_EQ(failures[node].count(), node == 1 ? 0 : 1);
}

// A process that is told to end: what main.cc makes of the callbacks.
struct Stoppable {
  explicit Stoppable(NodeOptions of_node) : options(std::move(of_node)) {
    options.on_failure = failure.callback();
    options.on_leave = [this] { stop = true; };
    options.on_end = [this] { stop = true; };
  }
  GroupOr Join() {
    return NodeGroup::Join(options, [this] { return stop.load(); });
  }
  std::future<GroupOr> JoinBeside() {
    return std::async(std::launch::async, [this] { return Join(); });
  }

  NodeOptions options;
  Failure failure;
  std::atomic<bool> stop{false};
};

absl::Status Gather(GroupOr& group) {
  std::vector<std::vector<char>> all;
  return (*group)->AllGather({}, &all);
}

TEST(NodeGroupTest, ANodeThatIsToldToEndWhileOthersLoadEndsAllInOrder) {
  for (const int told : {0, 1, 2}) {
    const int port = FreePort();
    std::deque<Stoppable> nodes;
    std::vector<std::future<GroupOr>> joining;
    std::vector<GroupOr> groups;
    for (const int node : {0, 1, 2}) nodes.emplace_back(Options(port, node, 3));
    for (Stoppable& node : nodes) joining.push_back(node.JoinBeside());
    for (auto& group : joining) groups.push_back(group.get());
    for (const GroupOr& group : groups) ASSERT_TRUE(group.ok()) << group.status();
    // Node 2 loads, and the others wait for it.
    std::vector<std::future<absl::Status>> waiting;
    for (const int node : {0, 1}) {
      waiting.push_back(std::async(std::launch::async, [&, node] { return Gather(groups[node]); }));
    }
    nodes[told].stop = true;
    for (auto& gathered : waiting) {
      const absl::Status status = gathered.get();
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
    }
    EXPECT_TRUE(absl::IsCancelled((*groups[0])->BeginServing()));
    groups.clear();
    for (Stoppable& node : nodes) {
      EXPECT_TRUE(node.stop);
      EXPECT_EQ(node.failure.count(), 0);
    }
  }
}

TEST(NodeGroupTest, ANodeThatIsToldToEndWhileAnotherHasNotComeEndsAllInOrder) {
  for (const int told : {0, 1}) {
    const int port = FreePort();
    Stoppable first(Options(port, 0, 3));
    Stoppable second(Options(port, 1, 3));
    auto leading = first.JoinBeside();
    GroupOr group = second.Join();
    ASSERT_TRUE(group.ok()) << group.status();
    (told == 0 ? first : second).stop = true;
    EXPECT_TRUE(absl::IsCancelled(Gather(group)));
    EXPECT_TRUE(absl::IsCancelled(leading.get().status()));
    group->reset();
    EXPECT_EQ(first.failure.count() + second.failure.count(), 0);
  }
}

TEST(NodeGroupTest, OnceItServesNode0EndsWhenItWants) {
  const int port = FreePort();
  Stoppable first(Options(port, 0));
  Stoppable second(Options(port, 1));
  auto leading = first.JoinBeside();
  GroupOr follower = second.Join();
  GroupOr leader = leading.get();
  ASSERT_TRUE(leader.ok() && follower.ok());
  EXPECT_TRUE((*leader)->BeginServing().ok());
  second.stop = true;
  while (!first.stop) std::this_thread::yield();  // it was asked to
  auto gathered = std::async(std::launch::async, [&] { return Gather(follower); });
  EXPECT_TRUE(Gather(leader).ok());
  EXPECT_TRUE(gathered.get().ok());
  EXPECT_TRUE((*leader)->SendPlan(Plan(1)).ok());
  const auto plan = (*follower)->NextPlan();
  EXPECT_TRUE(plan.ok() && plan->has_value());
  leader->reset();
  EXPECT_EQ((*follower)->NextPlan()->has_value(), false);
  follower->reset();
  EXPECT_EQ(first.failure.count() + second.failure.count(), 0);
}

// Speaks HTTP/2, and never answers a call.
class MuteServer {
 public:
  explicit MuteServer(int port)
      : listener_(*nodes::Listen("127.0.0.1", port)), thread_([this] {
          std::vector<nodes::Accepted> held;
          while (!done_) {
            auto accepted = nodes::Accept(listener_, 50ms);
            if (!accepted.has_value()) continue;
            constexpr std::array<char, 9> kSettings = {0, 0, 0, 4};
            (void)nodes::SendAll(accepted->socket, kSettings);
            held.push_back(*std::move(accepted));
          }
        }) {}
  ~MuteServer() {
    done_ = true;
    thread_.join();
  }

 private:
  nodes::Socket listener_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

TEST(NodeGroupTest, AServerThatNeverAnswersDoesNotHoldUpANode) {
  const int port = FreePort();
  const MuteServer mute(port);
  NodeOptions options = Options(port, 1);
  options.timeout = 100ms;
  EXPECT_EQ(NodeGroup::Join(options, Never).status().code(), absl::StatusCode::kDeadlineExceeded);
  options.timeout = 600s;
  EXPECT_EQ(NodeGroup::Join(options, [] { return true; }).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(NodeGroupTest, StrangersAreRefusedWithTheReasonAndTheNodeStillComes) {
  const int port = FreePort();
  auto first =
      std::async(std::launch::async, [&] { return NodeGroup::Join(Options(port, 0), Never); });
  NodeOptions wrong_key = Options(port, 1);
  wrong_key.key = "a guess";
  NodeOptions wrong_version = Options(port, 1);
  wrong_version.version = "1.2.4";
  NodeOptions wrong_size = Options(port, 1, 3);
  EXPECT_THAT(MessageOf(NodeGroup::Join(wrong_key, Never)),
              HasSubstr("refused this node: its key is another than that of node 0 (--node-key)"));
  EXPECT_THAT(MessageOf(NodeGroup::Join(wrong_version, Never)),
              HasSubstr("it is of version 1.2.4, and node 0 of 1.2.3"));
  EXPECT_THAT(MessageOf(NodeGroup::Join(wrong_size, Never)),
              HasSubstr("its --nnodes is 3, and that of node 0 is 2"));
  auto group = NodeGroup::Join(Options(port, 1), Never);
  ASSERT_TRUE(group.ok()) << group.status();
  GroupOr leader = first.get();
  ASSERT_TRUE(leader.ok()) << leader.status();
  EXPECT_THAT(MessageOf(NodeGroup::Join(Options(port, 1), Never)),
              HasSubstr("its --node-rank is 1, and that node is here already, at ipv4:127.0.0.1"));
}

TEST(NodeGroupTest, RefusedStrangersDoNotFillTheLog) {
  testing::internal::CaptureStderr();
  const int port = FreePort();
  Stoppable first(Options(port, 0));
  auto leading = first.JoinBeside();
  NodeOptions wrong_key = Options(port, 1);
  wrong_key.key = "a guess";
  EXPECT_FALSE(NodeGroup::Join(wrong_key, Never).ok());  // waits until node 0 listens
  const SteadyTime begin = Clock::Real().Now();
  int attempts = 1;
  // The last one comes when there may be a line again.
  for (SteadyTime last; attempts < 20 || last - begin < 1100ms; ++attempts) {
    last = Clock::Real().Now();
    EXPECT_FALSE(NodeGroup::Join(wrong_key, Never).ok());
  }
  const double elapsed = ToSeconds(Clock::Real().Now() - begin);
  first.stop = true;
  EXPECT_TRUE(absl::IsCancelled(leading.get().status()));
  FlushLogs(30s);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::vector<std::string> parts = absl::StrSplit(log, "refused a node at ");
  EXPECT_GE(parts.size(), 2);
  EXPECT_LE(parts.size(), 3 + elapsed);  // the first part precedes all lines
  if (static_cast<int>(parts.size()) < attempts) {
    EXPECT_THAT(log, HasSubstr(" more since the last one)"));
  }
}

TEST(NodeGroupTest, ANodeThatNeverComesEndsTheWait) {
  NodeOptions leader = Options(FreePort(), 0, 3);
  leader.timeout = 100ms;
  EXPECT_EQ(
      NodeGroup::Join(leader, Never).status(),
      absl::DeadlineExceededError("nodes 1, 2 of 3 did not come within 0.1 s (--node-timeout)"));
  NodeOptions other = Options(FreePort(), 1);
  other.timeout = 100ms;
  const GroupOr group = NodeGroup::Join(other, Never);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(group), HasSubstr("did not answer within 0.1 s (--node-timeout)"));
}

TEST(NodeGroupTest, ASignalEndsTheWait) {
  for (const int node : {0, 1}) {
    EXPECT_EQ(NodeGroup::Join(Options(FreePort(), node), [] { return true; }).status().code(),
              absl::StatusCode::kCancelled);
  }
}

TEST(NodeGroupTest, APortOrAddressThatIsNotToBeHadIsNamed) {
  const int port = FreePort();
  const auto taken = nodes::Listen("127.0.0.1", port + 1);
  ASSERT_TRUE(taken.ok());
  EXPECT_THAT(MessageOf(NodeGroup::Join(Options(port, 0), Never)),
              HasSubstr("master-port: cannot listen on 127.0.0.1:"));
  NodeOptions elsewhere = Options(FreePort(), 0);
  elsewhere.master_addr = "192.0.2.1";  // of no host: RFC 5737
  elsewhere.timeout = 100ms;
  EXPECT_THAT(MessageOf(NodeGroup::Join(elsewhere, Never)),
              HasSubstr("master-addr: cannot listen on 192.0.2.1:"));
}

}  // namespace
}  // namespace millrace
