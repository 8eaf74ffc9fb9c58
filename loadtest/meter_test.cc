#include "loadtest/meter.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(StreamMeterTest, CountsAnEventATokenUnlessTheServerSaysMore) {
  StreamMeter meter;
  for (const double now : {1.0, 1.1, 1.2, 1.3}) meter.Arrive(now, 1);
  RequestRecord record{.intended = 0.5};
  Measurements measured;
  meter.Finish(0, true, record, measured);
  EXPECT_EQ(record.output_tokens, 4);
  EXPECT_DOUBLE_EQ(record.ttft(), 0.5);
  EXPECT_NEAR(record.tpot(), 0.1, 1e-6);
  EXPECT_EQ(record.token_gaps.size(), 3U);
  EXPECT_NEAR(measured.token_gaps.weight(), 3, 1e-9);
  EXPECT_NEAR(measured.token_gaps.Mean(), 0.1, 1e-6);
}

TEST(StreamMeterTest, TokensOfOneArrivalShareItsGap) {
  StreamMeter meter;
  meter.Arrive(1, 1);
  meter.Arrive(1.3, 3);
  RequestRecord record;
  Measurements measured;
  meter.Finish(4, true, record, measured);
  EXPECT_NEAR(measured.token_gaps.weight(), 3, 1e-9);
  EXPECT_NEAR(measured.token_gaps.Mean(), 0.1, 1e-6);
  EXPECT_NEAR(measured.token_gaps.Quantile(1), 0.1, 1e-6);
  // A reader waited 300 ms all the same.
  EXPECT_NEAR(measured.pauses.Quantile(1), 0.3, 1e-6);
}

TEST(StreamMeterTest, TheServersCountWins) {
  StreamMeter meter;  // ten tokens in five events, as of a server that merges tokens
  for (int i = 0; i < 5; ++i) meter.Arrive(i * 0.2, 1);
  RequestRecord record;
  Measurements measured;
  meter.Finish(10, true, record, measured);
  EXPECT_EQ(record.output_tokens, 10);
  EXPECT_NEAR(record.tpot(), 0.8 / 9, 1e-6);
  EXPECT_NEAR(measured.token_gaps.weight(), 8, 1e-9);
  EXPECT_NEAR(measured.token_gaps.Mean(), 0.1, 1e-6);
  EXPECT_EQ(record.token_gaps.size(), 8U);
  EXPECT_NEAR(measured.seconds[0].tokens, 10, 1e-9);
}

TEST(StreamMeterTest, TokensStandInTheSecondInWhichTheyCame) {
  StreamMeter meter;
  for (const double now : {0.5, 1.5, 1.6, 3.5}) meter.Arrive(now, 1);
  RequestRecord record;
  Measurements measured;
  meter.Finish(4, false, record, measured);
  ASSERT_EQ(measured.seconds.size(), 4U);
  EXPECT_EQ(measured.seconds[0].tokens, 1);
  EXPECT_EQ(measured.seconds[1].tokens, 2);
  EXPECT_EQ(measured.seconds[2].tokens, 0);
  EXPECT_EQ(measured.seconds[3].tokens, 1);
  EXPECT_TRUE(record.token_gaps.empty());
}

TEST(StreamMeterTest, ASlowReadersGapsDoNotCount) {
  StreamMeter meter;
  meter.Arrive(1, 1);
  meter.Arrive(9, 1);
  RequestRecord record{.slow = true};
  Measurements measured;
  meter.Finish(2, false, record, measured);
  EXPECT_EQ(measured.token_gaps.weight(), 0);
  EXPECT_EQ(record.output_tokens, 2);
}

TEST(StreamMeterTest, NoTokensAreNoTimes) {
  StreamMeter meter;
  meter.Arrive(1, 0);
  RequestRecord record;
  Measurements measured;
  meter.Finish(0, true, record, measured);
  EXPECT_EQ(record.first, 0);
  EXPECT_EQ(record.output_tokens, 0);
}

TEST(MeasurementsTest, MergingAddsSecondsAndRecords) {
  Measurements a, b;
  a.Second(0.5).tokens = 1;
  b.Second(2.5).tokens = 2;
  b.Second(0.1).completed = 3;
  b.records.resize(2);
  a.Merge(std::move(b));
  ASSERT_EQ(a.seconds.size(), 3U);
  EXPECT_EQ(a.seconds[0].tokens, 1);
  EXPECT_EQ(a.seconds[0].completed, 3);
  EXPECT_EQ(a.seconds[2].tokens, 2);
  EXPECT_EQ(a.records.size(), 2U);
}

}  // namespace
}  // namespace millrace
