#include "kernels/collective/share_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/collective/collective_test_util.h"
#include "kernels/collective/deal_rows.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kHistory = 50;
constexpr int kUnknown = -7;

// The row that a sampler is given. Every third row scores a target, and some rows lie behind the
// history's end.
SampleRow RowOf(int row) {
  return {.slot = row, .position = row % 2 == 0 ? row % kHistory : kHistory, .target = row % 3 - 1};
}
SampleResult ResultOf(int row) {
  return {.token = 1000 + row, .ok = 1, .logprob = -row / 2.0f, .rank = row + 1};
}
SampleTop TopOf(int row, int i) { return {.token = 100 * row + i, .logprob = -i / 4.0f}; }

// Memory of a rank on the host.
struct HostData {
  explicit HostData(int rows)
      : results(rows, SampleResult{kUnknown, 0, 0, 0}),
        tops(rows * kMaxSampledTop, SampleTop{kUnknown, 0}),
        last_tokens(rows, kUnknown),
        history(rows * kHistory, kUnknown) {
    for (int row = 0; row < rows; ++row) samples.push_back(RowOf(row));
  }

  // Leaves what sampling rows [first, first + count) leaves.
  void Sample(int first, int count) {
    for (int row = first; row < first + count; ++row) {
      results[row] = ResultOf(row);
      for (int i = 0; i < kMaxSampledTop; ++i) tops[row * kMaxSampledTop + i] = TopOf(row, i);
      const SampleRow& wanted = samples[row];
      if (wanted.target >= 0) continue;
      last_tokens[wanted.slot] = ResultOf(row).token;
      if (wanted.position >= kHistory) continue;
      history[wanted.slot * kHistory + wanted.position] = ResultOf(row).token;
    }
  }

  std::vector<SampleRow> samples;
  std::vector<SampleResult> results;
  std::vector<SampleTop> tops;
  std::vector<int32_t> last_tokens, history;
};

struct RankData {
  explicit RankData(const HostData& host)
      : samples(host.samples),
        results(host.results),
        tops(host.tops),
        last_tokens(host.last_tokens),
        history(host.history) {}

  ShareSamplesArgs Args(const Communicator& c, int rows, int share) const {
    return {.communicator = c,
            .rows = samples.get(),
            .results = results.get(),
            .tops = tops.get(),
            .num_rows = rows,
            .share = share,
            .last_tokens = last_tokens.get(),
            .history = history.get(),
            .history_stride = kHistory};
  }

  DeviceBuffer<SampleRow> samples;
  DeviceBuffer<SampleResult> results;
  DeviceBuffer<SampleTop> tops;
  DeviceBuffer<int32_t> last_tokens, history;
};

void ExpectAllRows(const RankData& data, int rows) {
  HostData expected(rows);
  expected.Sample(0, rows);
  const std::vector<SampleResult> results = data.results.Download();
  const std::vector<SampleTop> tops = data.tops.Download();
  for (int row = 0; row < rows; ++row) {
    ASSERT_EQ(results[row].token, ResultOf(row).token) << row;
    ASSERT_EQ(results[row].ok, 1) << row;
    ASSERT_EQ(results[row].logprob, ResultOf(row).logprob) << row;
    ASSERT_EQ(results[row].rank, ResultOf(row).rank) << row;
    for (int i = 0; i < kMaxSampledTop; ++i) {
      ASSERT_EQ(tops[row * kMaxSampledTop + i].token, TopOf(row, i).token) << row;
      ASSERT_EQ(tops[row * kMaxSampledTop + i].logprob, TopOf(row, i).logprob) << row;
    }
  }
  EXPECT_EQ(data.last_tokens.Download(), expected.last_tokens);
  EXPECT_EQ(data.history.Download(), expected.history);
  EXPECT_TRUE(data.results.GuardsIntact() && data.tops.GuardsIntact());
  EXPECT_TRUE(data.last_tokens.GuardsIntact() && data.history.GuardsIntact());
}

TEST(ShareSamples, LeavesAllRowsWithEveryRank) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    VirtualRanks group(ranks, 300 * kSharedSampleBytes);
    for (const int rows : {1, 9, 64, 300}) {
      SCOPED_TRACE(std::to_string(rows) + " rows on " + std::to_string(ranks));
      const int share = (rows - 1) / ranks + 1;
      std::vector<RankData> data;
      for (int rank = 0; rank < ranks; ++rank) {
        HostData host(rows);
        host.Sample(FirstDealtRow(rows, share, rank), share);
        data.emplace_back(host);
      }
      group.Run([&](int rank, cudaStream_t stream) {
        return LaunchShareSamples(data[rank].Args(group[rank], rows, share), stream);
      });
      for (const RankData& of_rank : data) ExpectAllRows(of_rank, rows);
      ASSERT_TRUE(group.IsQuiet());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ShareSamples, RefusesWhatItCannotDo) {
  VirtualRanks group(2, 1024);
  const RankData data(HostData(8));
  const auto refused = [&](auto change) {
    ShareSamplesArgs args = data.Args(group[0], 8, 4);
    change(args);
    return LaunchShareSamples(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](ShareSamplesArgs& a) { a.share = 6; }));  // exceeds the slot
  EXPECT_TRUE(refused([](ShareSamplesArgs& a) { a.share = 3; }));  // leaves rows out
  EXPECT_TRUE(refused([](ShareSamplesArgs& a) { a.share = 0; }));
  EXPECT_TRUE(refused([](ShareSamplesArgs& a) { a.rows = nullptr; }));
  EXPECT_TRUE(refused([](ShareSamplesArgs& a) { ++a.tops; }));
  EXPECT_TRUE(refused([](ShareSamplesArgs& a) { a.last_tokens = nullptr; }));
}

}  // namespace
}  // namespace millrace::kernels
