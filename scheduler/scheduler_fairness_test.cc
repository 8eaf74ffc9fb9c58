// Tenants: what the scheduler promises between them.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/scheduler_script_test_util.h"
#include "scheduler/timed_device_test_util.h"

namespace millrace {
namespace {

double Time(const StepWork& work) { return 5 + 0.1 * work.decode_rows + 0.05 * work.prompt_tokens; }

SchedulerOptions Options(int32_t slots = 8, int32_t blocks = 1000) {
  return {.limits = {.max_num_seqs = slots,
                     .max_num_batched_tokens = 128,
                     .max_model_len = 400,
                     .num_blocks = {blocks},
                     .state = StateLayout::OnePool(8),
                     .vocab_size = 1000},
          .prefix_caching = false};
}

struct Case {
  const char* name;
  int32_t blocks;
  std::vector<int32_t> weights;
};
const Case kCases[] = {
    {"Equal", 1000, {1, 1}},
    {"OneToThree", 1000, {1, 3}},
    {"Three", 1000, {2, 1, 5}},
    {"FewBlocks", 120, {1, 1}},
    {"FewBlocksOneToThree", 120, {1, 3}},
    {"MoreTenantsThanSlots", 1000, {1, 1, 2, 1, 1, 1, 1, 3, 1, 1, 1, 1}},
};

class FairnessTest : public ::testing::TestWithParam<Case> {};

// The bound: as long as all of them have sequences that wait, what two tenants were served, over
// their weights, differs by no more than what all slots can hold, over the smaller of the weights.
// (An admission is by what was served; what a sequence takes once it runs is not known before.)
TEST_P(FairnessTest, TokensServedFollowTheWeights) {
  const std::vector<int32_t>& weights = GetParam().weights;
  const SchedulerOptions options = Options(8, GetParam().blocks);
  TimedDevice device(options, Time);
  std::mt19937_64 random(11);
  std::vector<std::vector<SequenceId>> alive(weights.size());
  const double held = std::min(int64_t{options.limits.max_num_seqs} * options.limits.max_model_len,
                               int64_t{options.limits.num_blocks[0]} * options.limits.block_size() +
                                   options.limits.max_model_len);
  for (int step = 0; step < 4000; ++step) {
    for (size_t t = 0; t < weights.size(); ++t) {
      std::erase_if(alive[t], [&](SequenceId id) { return device.life(id).ended.has_value(); });
      while (alive[t].size() < 20) {
        const int prompt = 1 + static_cast<int>(random() % 250);
        alive[t].push_back(device.Add(prompt, 1 + static_cast<int>(random() % 140),
                                      {static_cast<uint32_t>(t + 1), weights[t]}));
      }
    }
    ASSERT_TRUE(device.RunStep());
    ASSERT_EQ(SchedulerAuditor::Audit(device.scheduler()), "");
    for (size_t a = 0; a < weights.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        const double difference = static_cast<double>(device.served(a + 1)) / weights[a] -
                                  static_cast<double>(device.served(b + 1)) / weights[b];
        ASSERT_LE(std::abs(difference), held / std::min(weights[a], weights[b]))
            << "tenants " << a + 1 << " and " << b + 1 << " after step " << step;
      }
    }
  }
  // The bound says something: far more was served than it.
  EXPECT_GT(static_cast<double>(device.served(1)) / weights[0], held / 2);
}

INSTANTIATE_TEST_SUITE_P(, FairnessTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// A thousand long requests of tenant 1 wait.
void Flood(TimedDevice& device) {
  for (int i = 0; i < 1000; ++i) device.Add(200, 150, {1, 1});
  for (int i = 0; i < 100; ++i) device.RunStep();
}

TEST(LightTenantTest, BeginsAtOnceBesideAFlood) {
  for (const int32_t blocks : {1000, 200}) {
    TimedDevice device(Options(8, blocks), Time);
    Flood(device);
    for (int i = 0; i < 30; ++i) {
      const SequenceId id = device.Add(100, 10, {2, 1});
      const TimedDevice::Life& life = device.life(id);
      while (!life.ended) ASSERT_TRUE(device.RunStep());
      // The next step has all of its prompt, whatever else is half computed.
      ASSERT_EQ(*life.first_step, life.steps_before) << i;
      const double took = ToSeconds(*life.first_token - life.added) * 1e3;
      const auto& steps = device.steps();
      EXPECT_NEAR(took,
                  steps[life.steps_before - 1].milliseconds + steps[life.steps_before].milliseconds,
                  1e-3)
          << i;
      for (int j = 0; j < 20; ++j) device.RunStep();
    }
  }
}

// Its short requests take more tokens than the flood's sequences, which decode.
TEST(LightTenantTest, BeginsAtOnceBesideAFloodThatDecodes) {
  TimedDevice device(Options(), Time);
  for (int i = 0; i < 100; ++i) device.Add(20, 350, {1, 1});
  for (int i = 0; i < 50; ++i) device.RunStep();
  for (int i = 0; i < 20; ++i) {
    const SequenceId id = device.Add(100, 2, {2, 1});
    while (!device.life(id).ended) ASSERT_TRUE(device.RunStep());
    EXPECT_EQ(*device.life(id).first_step, device.life(id).steps_before) << i;
  }
}

TEST(LightTenantTest, CostsTheFloodLittle) {
  TimedDevice alone(Options(), Time);
  Flood(alone);
  const SteadyTime begin_alone = alone.now();
  const int64_t before_alone = alone.served(1);
  for (int i = 0; i < 3000; ++i) alone.RunStep();
  const double rate_alone =
      static_cast<double>(alone.served(1) - before_alone) / ToSeconds(alone.now() - begin_alone);

  TimedDevice device(Options(), Time);
  Flood(device);
  const SteadyTime begin = device.now();
  const int64_t before = device.served(1);
  for (int i = 0; i < 3000; ++i) {
    if (i % 100 == 0) device.Add(100, 10, {2, 1});
    device.RunStep();
  }
  const double rate = static_cast<double>(device.served(1) + device.served(2) - before) /
                      ToSeconds(device.now() - begin);
  EXPECT_GE(rate, 0.95 * rate_alone);
}

// Each comes back with a short request as soon as its last one has ended, and there are more of
// them than slots: none may go before those that have waited since before it came.
TEST(LightTenantTest, NoneStarvesBesideOthersThatComeBack) {
  constexpr uint32_t kTenants = 12;
  TimedDevice device(Options(/*slots=*/4), Time);
  std::vector<SequenceId> last(kTenants + 1);
  for (int step = 0; step < 3000; ++step) {
    for (uint32_t tenant = 1; tenant <= kTenants; ++tenant) {
      if (step == 0 || device.life(last[tenant]).ended)
        last[tenant] = device.Add(50, 5, {tenant, 1});
    }
    ASSERT_TRUE(device.RunStep());
  }
  int64_t most = 0, least = device.served(1);
  for (uint32_t tenant = 1; tenant <= kTenants; ++tenant) {
    most = std::max(most, device.served(tenant));
    least = std::min(least, device.served(tenant));
  }
  EXPECT_GT(least, most / 2);
}

// Who was idle saved up nothing: it then gets its share, not all.
TEST(LightTenantTest, IdleTimeIsNoCredit) {
  TimedDevice device(Options(), Time);
  Flood(device);
  for (int i = 0; i < 1000; ++i) device.RunStep();
  const int64_t before = device.served(1);
  for (int i = 0; i < 200; ++i) device.Add(200, 150, {2, 1});
  for (int i = 0; i < 1000; ++i) device.RunStep();
  const double share = static_cast<double>(device.served(2)) /
                       static_cast<double>(device.served(1) - before + device.served(2));
  EXPECT_NEAR(share, 0.5, 0.1);
}

TEST(TenantPriorityTest, ABetterPriorityGoesFirstWhoeverTheTenantIs) {
  TimedDevice device(Options(), Time);
  Flood(device);
  for (int i = 0; i < 20; ++i) device.Add(200, 150, {2, 1}, /*priority=*/1);
  for (int i = 0; i < 500; ++i) device.RunStep();
  EXPECT_EQ(device.served(2), 0);
}

// Tenants that always have work want its blocks, most of all that there are, again and again.
TEST(TenantPreemptionTest, ASequenceLargerThanItsShareEnds) {
  TimedDevice device(Options(/*slots=*/8, /*blocks=*/60), Time);
  const SequenceId large = device.Add(300, 99, {1, 1});
  for (int i = 0; i < 2000; ++i) {
    device.Add(40, 20, {2, 1});
    device.Add(100, 1, {3, 1});
  }
  int steps = 0;
  while (!device.life(large).ended && steps < 2000) {
    ASSERT_TRUE(device.RunStep());
    ++steps;
  }
  EXPECT_TRUE(device.life(large).ended.has_value());
  EXPECT_LT(steps, 500);
}

// A tenant alone is never preempted for itself.
TEST(TenantPreemptionTest, OnlyBetweenTenants) {
  TimedDevice device(Options(), Time);
  Flood(device);
  EXPECT_EQ(device.scheduler().stats().preemptions, 0);
  const SequenceId id = device.Add(100, 10, {2, 1});
  while (!device.life(id).ended) ASSERT_TRUE(device.RunStep());
  EXPECT_EQ(device.scheduler().stats().preemptions, 1);
}

}  // namespace
}  // namespace millrace
