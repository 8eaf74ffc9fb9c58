#include "executors/cpu/kv_arena.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

// A state of several pieces, the last of which is short, and a block of less than one.
constexpr size_t kBytes[] = {3 * (size_t{256} << 10) + 4160, 640};
constexpr int kPlaces = 4;

TEST(KvArenaTest, MovesCopyWholeBlocksAndNothingElse) {
  for (const int threads : {1, 3}) {
    KvArena kv;
    std::vector<std::vector<uint8_t>> expected;
    for (const size_t bytes : kBytes) {
      auto memory = Memory::Reserve(kPlaces * bytes, "the test");
      ASSERT_TRUE(memory.ok()) << memory.status();
      std::vector<uint8_t>& values = expected.emplace_back(kPlaces * bytes);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<uint8_t>(i * 131 + i / 251);
        memory->data()[i] = values[i];
      }
      kv.groups.push_back({.memory = *std::move(memory), .block_bytes = bytes});
    }
    std::vector<StateMove> moves;
    for (int32_t group = 0; group < 2; ++group) {
      for (const auto& [from, to] : {std::pair(0, 2), {3, 1}}) {
        moves.push_back({.group = group, .from = {.block = from}, .to = {.block = to}});
        const auto begin = expected[group].begin();
        const auto bytes = static_cast<int64_t>(kBytes[group]);
        std::copy_n(begin + from * bytes, bytes, begin + to * bytes);
      }
    }
    ThreadPool pool(threads);
    kv.Move(moves, pool);
    for (size_t group = 0; group < 2; ++group) {
      const uint8_t* const data = kv.groups[group].memory.data();
      EXPECT_EQ(std::vector<uint8_t>(data, data + kPlaces * kBytes[group]), expected[group])
          << threads << " threads, group " << group;
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
