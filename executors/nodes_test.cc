// Tests what nodes agree on, without connections.
#include "executors/nodes.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "executors/byte_stream.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// A node whose peer always sends the same.
class OnePeer : public Nodes {
 public:
  explicit OnePeer(std::vector<char> sends) : sends_(std::move(sends)) {}

  int size() const override { return 2; }
  int node() const override { return 0; }
  absl::Status AllGather(absl::Span<const char> mine,
                         std::vector<std::vector<char>>* all) override {
    *all = {{mine.begin(), mine.end()}, sends_};
    return absl::OkStatus();
  }
  absl::Status SendPlan(const StepPlan&) override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<StepPlan>> NextPlan() override { return std::nullopt; }
  void Fail(const absl::Status&) override {}
  void OnFailure(std::function<void(const absl::Status&)>) override {}

 private:
  const std::vector<char> sends_;
};

std::vector<int32_t> LeastWith(const std::vector<int32_t>& of_peer) {
  std::vector<char> bytes;
  for (const int32_t number : of_peer) AppendValue(number, bytes);
  OnePeer nodes(bytes);
  const auto least = LeastOfNodes(nodes, {10, 4, 7});
  EXPECT_TRUE(least.ok()) << least.status();
  return *least;
}

TEST(LeastOfNodesTest, IsTakenOneByOne) {
  EXPECT_EQ(LeastWith({9, 5, 7}), (std::vector<int32_t>{9, 4, 7}));
}

// A node with other groups of layers is refused by what it says of them, later.
TEST(LeastOfNodesTest, NodesMayHaveMoreOrFewer) {
  EXPECT_EQ(LeastWith({9}), (std::vector<int32_t>{9, 4, 7}));
  EXPECT_EQ(LeastWith({12, 3, 8, 1}), (std::vector<int32_t>{10, 3, 7}));
}

}  // namespace
}  // namespace millrace
