#include "kernels/moe/assign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/gemm/grouped_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

// Compares an assignment with its definition, and expects poison behind what there is.
void ExpectAssigned(const std::vector<int32_t>& ids, int first, int groups, int tile_rows) {
  SCOPED_TRACE(testing::Message() << ids.size() << " pairs, " << groups << " groups from " << first
                                  << ", tiles of " << tile_rows);
  const DeviceBuffer<int32_t> device_ids(ids.empty() ? std::vector<int32_t>(1) : ids);
  const DeviceRows rows(static_cast<int>(ids.size()), groups, tile_rows);
  const DeviceBuffer<unsigned long long> touched(std::vector<unsigned long long>{1000});
  const AssignArgs args = {
      .ids = device_ids.get(), .first_expert = first, .rows = rows.view, .touched = touched.get()};
  ASSERT_EQ(LaunchAssign(args, nullptr), cudaSuccess);
  const HostRows expected(ids, first, groups, tile_rows);
  ASSERT_EQ(touched.Download()[0], 1000u + expected.Touched());
  ASSERT_TRUE(touched.GuardsIntact());
  const std::vector<int32_t> order = rows.order.Download();
  ASSERT_TRUE(std::equal(expected.order.begin(), expected.order.end(), order.begin()));
  for (size_t i = expected.order.size(); i < order.size(); ++i) ASSERT_EQ(order[i], -1);
  ASSERT_EQ(rows.offsets.Download(), expected.offsets);
  ASSERT_EQ(rows.tile_count.Download()[0], static_cast<int32_t>(expected.tiles.size()));
  ASSERT_LE(static_cast<int>(expected.tiles.size()),
            MaxGroupTiles(static_cast<int>(ids.size()), groups, tile_rows));
  const std::vector<GroupTile> tiles = rows.tiles.Download();
  for (size_t i = 0; i < tiles.size(); ++i) {
    const GroupTile none = {-1, -1, -1, -1};
    const GroupTile& tile = i < expected.tiles.size() ? expected.tiles[i] : none;
    ASSERT_EQ(std::memcmp(&tiles[i], &tile, sizeof(tile)), 0) << "tile " << i;
  }
  EXPECT_TRUE(rows.order.GuardsIntact() && rows.offsets.GuardsIntact() &&
              rows.tiles.GuardsIntact() && rows.tile_count.GuardsIntact());
}

TEST(AssignTest, MatchesItsDefinition) {
  for (const int groups : {1, 8, 60, 128, 512}) {
    for (const int slots : {1, 2, 8, 16}) {
      for (const int tokens : {1, 2, 5, 64, 333, 4096, 8192}) {
        const std::vector<int32_t> ids = RandomIds(tokens, slots, groups, tokens + slots);
        for (const int tile_rows : {8, 192}) {
          ExpectAssigned(ids, 0, groups, tile_rows);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(AssignTest, LeavesOutTheExpertsOfOthers) {
  const std::vector<int32_t> ids = RandomIds(777, 4, 128, 1);
  ExpectAssigned(ids, 0, 32, 16);
  ExpectAssigned(ids, 32, 64, 16);
  ExpectAssigned(ids, 96, 32, 16);
  ExpectAssigned(ids, 128, 32, 16);  // none is left
  ExpectAssigned({}, 0, 8, 8);
}

TEST(AssignTest, TakesOneGroupsPairs) {
  ExpectAssigned(std::vector<int32_t>(kMaxPairs, 5), 0, 8, 128);
  ExpectAssigned(std::vector<int32_t>(4097, 0), 0, 1, 64);
  ExpectAssigned(std::vector<int32_t>(8, 7), 0, 8, 8);
}

TEST(AssignTest, RefusesWhatItCannotDo) {
  const DeviceBuffer<int32_t> ids(std::vector<int32_t>(16, 0));
  const DeviceRows rows(16, 4, 8);
  const auto refused = [&](auto change) {
    AssignArgs args = {.ids = ids.get(), .first_expert = 0, .rows = rows.view};
    change(args);
    return LaunchAssign(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](AssignArgs&) {}));
  EXPECT_TRUE(refused([](AssignArgs& a) { a.ids = nullptr; }));
  EXPECT_TRUE(refused([](AssignArgs& a) { a.rows.pairs = kMaxPairs + 1; }));
  EXPECT_TRUE(refused([](AssignArgs& a) { a.rows.groups = kMaxAssignedGroups + 1; }));
  EXPECT_TRUE(refused([](AssignArgs& a) { a.rows.tile_rows = 0; }));
  EXPECT_TRUE(refused([](AssignArgs& a) { a.rows.tile_count = nullptr; }));
  CheckCuda(cudaDeviceSynchronize(), "assign");
}

}  // namespace
}  // namespace millrace::kernels
