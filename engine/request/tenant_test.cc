#include "engine/request/tenant.h"

#include <chrono>
#include <string>

#include "engine/request/request.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr SteadyTime kBegin = SteadyTime(std::chrono::hours(1));

Tenant Make(TenantLimits limits) {
  return Tenant(1, std::move(limits), std::make_shared<TenantUsage>());
}

TEST(TenantTest, WithoutLimitsAllMayEnter) {
  const Tenant tenant = Make({});
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(tenant.Enter(10, kBegin).ok());
  EXPECT_EQ(tenant.usage()->counts().streams, 10'000);
}

TEST(TenantTest, StreamsAtOnceAreBounded) {
  const Tenant tenant = Make({.max_streams = 3});
  EXPECT_TRUE(tenant.Enter(2, kBegin).ok());
  const absl::Status refused = tenant.Enter(2, kBegin);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("allowed: 3"));
  EXPECT_TRUE(tenant.Enter(1, kBegin).ok());
  tenant.Leave(0, 0, kBegin);
  EXPECT_TRUE(tenant.Enter(1, kBegin).ok());
  EXPECT_EQ(tenant.usage()->counts().refused, 1);
}

TEST(TenantTest, RequestsRefillEvenly) {
  const Tenant tenant = Make({.requests_per_minute = 60});
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(tenant.Enter(1, kBegin).ok());
  const absl::Status refused = tenant.Enter(1, kBegin);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*RetryAfter(refused), absl::Seconds(1));
  EXPECT_FALSE(tenant.Enter(1, kBegin + milliseconds(900)).ok());
  EXPECT_TRUE(tenant.Enter(1, kBegin + seconds(1)).ok());
  EXPECT_FALSE(tenant.Enter(1, kBegin + seconds(1)).ok());
  // No more is saved up than a minute's.
  int passed = 0;
  while (tenant.Enter(1, kBegin + seconds(3600)).ok()) ++passed;
  EXPECT_EQ(passed, 60);
}

TEST(TenantTest, TokensCountAsRequestsEnd) {
  const Tenant tenant = Make({.tokens_per_minute = 600});
  EXPECT_TRUE(tenant.Enter(1, kBegin).ok());
  tenant.Leave(500, 200, kBegin);
  const absl::Status refused = tenant.Enter(1, kBegin);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*RetryAfter(refused), absl::Seconds(10));  // 100 tokens too many, ten a second
  EXPECT_TRUE(tenant.Enter(1, kBegin + seconds(11)).ok());
  const TenantUsage::Counts counts = tenant.usage()->counts();
  EXPECT_EQ(counts.prompt_tokens, 500);
  EXPECT_EQ(counts.generation_tokens, 200);
}

TEST(TenantTest, ChangedLimitsKeepTheUsage) {
  const Tenant before = Make({.max_streams = 1});
  EXPECT_TRUE(before.Enter(1, kBegin).ok());
  const Tenant after(1, {.max_streams = 2}, before.usage());
  EXPECT_TRUE(after.Enter(1, kBegin).ok());
  EXPECT_FALSE(after.Enter(1, kBegin).ok());
  before.Leave(0, 0, kBegin);
  EXPECT_TRUE(after.Enter(1, kBegin).ok());
}

TEST(TenantTest, PrioritiesHaveARange) {
  const Tenant tenant = Make({.least_priority = 2, .most_priority = 5});
  int32_t priority = 0;
  EXPECT_TRUE(tenant.CheckPriority(&priority).ok());
  EXPECT_EQ(priority, 2);
  for (int32_t outside : {-1, 1, 6}) {
    const absl::Status status = tenant.CheckPriority(&outside);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed with this key: 2 to 5"));
  }
  int32_t ahead = -1;  // not by default
  EXPECT_FALSE(Make({}).CheckPriority(&ahead).ok());
}

}  // namespace
}  // namespace millrace
