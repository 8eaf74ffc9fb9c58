#include "executors/draft_mailbox.h"

#include <future>
#include <thread>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// A row that waits for a draft of three tokens, and one without, whose token is known.
StepPlan Plan(StepId id) {
  StepPlan plan;
  plan.id = id;
  plan.tokens = {9};
  plan.logits = {{.offset = 0}, {.offset = 1}, {.offset = 2}, {.offset = 3}, {.offset = 0}};
  plan.rows = {
      {.slot = 0, .start = 5, .num_tokens = 4, .sampled_by = 1, .num_draft = 3, .logits = {0, 4}},
      {.slot = 1, .start = 2, .num_tokens = 1, .tokens = {0, 1}, .logits = {4, 5}}};
  return plan;
}

TEST(DraftMailboxTest, PutsDraftsIntoTheirRows) {
  DraftMailbox mailbox;
  mailbox.Put({{.step = 8, .row = 0, .tokens = {4}}, {.step = 7, .row = 0, .tokens = {2, 3}}});
  StepPlan plan = Plan(7);
  mailbox.FillAll(plan);
  const StepRow& row = plan.rows[0];
  EXPECT_EQ(plan.tokens, (std::vector<Token>{9, 2, 3}));
  EXPECT_EQ(row.tokens, (Range{1, 3}));
  EXPECT_EQ(row.num_draft, 2);
  EXPECT_EQ(row.num_tokens, 3);
  EXPECT_EQ(row.logits, (Range{0, 3}));
  EXPECT_EQ(plan.rows[1].tokens, (Range{0, 1}));
  StepPlan next = Plan(8);
  mailbox.FillAll(next);
  EXPECT_EQ(next.rows[0].num_draft, 1);
}

// A step that failed has ended without its draft.
TEST(DraftMailboxTest, TakesNoDraftOfAnotherStep) {
  DraftMailbox mailbox;
  mailbox.Put({{.step = 6, .row = 0, .tokens = {4}}, {.step = 7, .row = 0, .tokens = {}}});
  StepPlan plan = Plan(7);
  mailbox.FillAll(plan);
  EXPECT_EQ(plan.rows[0].num_draft, 0);
  EXPECT_EQ(plan.rows[0].num_tokens, 1);
}

TEST(DraftMailboxTest, WaitsForTheDraft) {
  DraftMailbox mailbox;
  StepPlan plan = Plan(7);
  std::promise<void> begins;
  std::thread waits([&] {
    begins.set_value();
    mailbox.FillAll(plan);
  });
  begins.get_future().wait();
  mailbox.Put({{.step = 7, .row = 0, .tokens = {1, 2}}});
  waits.join();
  EXPECT_EQ(plan.rows[0].num_draft, 2);
  EXPECT_EQ(plan.tokens, (std::vector<Token>{9, 1, 2}));
}

}  // namespace
}  // namespace millrace
