#include "executors/mask_mailbox.h"

#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

namespace millrace {
namespace {

std::shared_ptr<const SampleMask> AnyMask() { return std::make_shared<const SampleMask>(1, 1); }

TEST(MaskMailboxTest, FillsEachPlanWithItsOwnMasks) {
  const auto known = AnyMask(), first = AnyMask(), second = AnyMask(), other = AnyMask();
  StepPlan plan{.id = 7,
                .logits = {{.offset = 0, .late_mask = true},
                           {.offset = 0, .mask = known},
                           {.offset = 0},
                           {.offset = 0, .late_mask = true}}};
  StepPlan next{.id = 8, .logits = {{.offset = 0, .late_mask = true}}};
  MaskMailbox mailbox;
  EXPECT_FALSE(mailbox.Fill(plan));
  mailbox.Put({{.step = 8, .logits = 0, .mask = other}, {.step = 7, .logits = 3, .mask = second}});
  EXPECT_FALSE(mailbox.Fill(plan));
  mailbox.Put({{.step = 7, .logits = 0, .mask = first}});
  EXPECT_TRUE(mailbox.Fill(plan));
  EXPECT_EQ(plan.logits[0].mask, first);
  EXPECT_EQ(plan.logits[1].mask, known);
  EXPECT_EQ(plan.logits[2].mask, nullptr);
  EXPECT_EQ(plan.logits[3].mask, second);
  EXPECT_TRUE(mailbox.Fill(next));
  EXPECT_EQ(next.logits[0].mask, other);
}

// A step that failed has ended without its masks.
TEST(MaskMailboxTest, DropsMasksThatComeAfterTheirStep) {
  auto late = AnyMask();
  const std::weak_ptr<const SampleMask> kept = late;
  StepPlan next{.id = 8, .logits = {{.offset = 0, .late_mask = true}}};
  MaskMailbox mailbox;
  mailbox.Put({{.step = 7, .logits = 3, .mask = std::move(late)}});
  EXPECT_FALSE(mailbox.Fill(next));
  EXPECT_TRUE(kept.expired());
}

TEST(MaskMailboxTest, WaitsForTheLastMask) {
  StepPlan plan{.id = 7,
                .logits = {{.offset = 0, .late_mask = true}, {.offset = 0, .late_mask = true}}};
  MaskMailbox mailbox;
  std::promise<void> begins;
  std::thread waits([&] {
    begins.set_value();
    mailbox.FillAll(plan);
  });
  begins.get_future().wait();
  for (const int32_t logits : {1, 0}) {
    mailbox.Put({{.step = 7, .logits = logits, .mask = AnyMask()}});
  }
  waits.join();
  for (const WantedLogits& wanted : plan.logits) EXPECT_NE(wanted.mask, nullptr);
}

}  // namespace
}  // namespace millrace
