#include "server/bench/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace millrace {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Field;

// `steps` steps of 100 us each, from `begin_ns` on: two layers of a 30 us gemm and a 10 us norm,
// 2 us of nothing, a 10 us sample; 8 us of nothing up to the next.
void AddSteps(int steps, int64_t& begin_ns, std::vector<DeviceOperation>& operations) {
  for (int i = 0; i < steps; ++i) {
    int64_t at = begin_ns;
    const auto add = [&](const char* name, int64_t ns) {
      operations.push_back({name, at, at + ns});
      at += ns;
    };
    for (int layer = 0; layer < 2; ++layer) {
      add("gemm", 30'000);
      add("norm", 10'000);
    }
    at += 2'000;
    add("sample", 10'000);
    begin_ns += 100'000;
  }
}

TEST(StepTraceTest, AStepOfTheWholeBatch) {
  std::vector<DeviceOperation> operations = {{"gemm", 0, 500'000}, {"sample", 500'000, 510'000}};
  int64_t at = 520'000;
  AddSteps(9, at, operations);
  const auto trace =
      SummarizeTrace(operations, {.steps = 10, .whole_steps = 9, .first_whole_step = 1});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_TRUE(trace->only_whole_steps);
  EXPECT_EQ(trace->steps, 8);
  EXPECT_DOUBLE_EQ(trace->launches, 5);
  EXPECT_DOUBLE_EQ(trace->span_us, 100);
  EXPECT_DOUBLE_EQ(trace->busy_us, 90);
  EXPECT_DOUBLE_EQ(trace->largest_gap_us, 8);
  EXPECT_EQ(trace->after_gap, "gemm");
  using Row = StepTrace::Row;
  EXPECT_THAT(
      trace->rows,
      ElementsAre(AllOf(Field(&Row::name, "gemm"), Field(&Row::us, DoubleNear(60, 1e-9)),
                        Field(&Row::launches, 2), Field(&Row::share, DoubleNear(60 / 90.0, 1e-9)),
                        Field(&Row::idle_us, DoubleNear(8, 1e-9))),
                  AllOf(Field(&Row::name, "norm"), Field(&Row::us, DoubleNear(20, 1e-9))),
                  AllOf(Field(&Row::name, "sample"), Field(&Row::launches, 1),
                        Field(&Row::idle_us, DoubleNear(2, 1e-9)))));
}

// From the operation on that tells the steps apart.
TEST(StepTraceTest, TheBytesOfKernelsInTheirOrder) {
  std::vector<DeviceOperation> operations;
  int64_t at = 0;
  AddSteps(4, at, operations);
  for (size_t i = 0; i < operations.size(); i += 6) {  // a copy is no kernel
    operations.insert(operations.begin() + i,
                      {"memcpy", operations[i].begin_ns, operations[i].begin_ns});
  }
  const OfflineRun run = {.steps = 4, .whole_steps = 4};
  const auto bytes_of = [&](const std::vector<int64_t>& kernel_bytes) {
    const auto trace = SummarizeTrace(operations, run, kernel_bytes);
    std::map<std::string, double> bytes;
    for (const StepTrace::Row& row : trace->rows) bytes[row.name] = row.bytes;
    return bytes;
  };
  using Bytes = std::map<std::string, double>;
  EXPECT_EQ(bytes_of({7, 100, 10, 200, 20}),
            (Bytes{{"gemm", 300}, {"norm", 30}, {"sample", 7}, {"memcpy", 0}}));
  EXPECT_EQ(bytes_of({7, 100, 10, 200}),
            (Bytes{{"gemm", 0}, {"norm", 0}, {"sample", 0}, {"memcpy", 0}}));
}

// Sequences that end one after the other leave steps behind the whole ones.
TEST(StepTraceTest, WholeStepsInTheMiddle) {
  std::vector<DeviceOperation> operations;
  int64_t at = 0;
  AddSteps(10, at, operations);
  const auto trace =
      SummarizeTrace(operations, {.steps = 10, .whole_steps = 4, .first_whole_step = 3});
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->steps, 3);
  EXPECT_DOUBLE_EQ(trace->span_us, 100);
}

TEST(StepTraceTest, AKernelOfThePromptsAsOftenAsThereAreSteps) {
  std::vector<DeviceOperation> operations;
  for (int64_t layer = 0; layer < 10; ++layer) {
    operations.push_back({"prefill", 1000 * layer, 1000 * (layer + 1)});
  }
  int64_t at = 10'000;
  AddSteps(9, at, operations);
  const auto trace =
      SummarizeTrace(operations, {.steps = 10, .whole_steps = 9, .first_whole_step = 1});
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->steps, 8);
  EXPECT_DOUBLE_EQ(trace->span_us, 100);
}

TEST(StepTraceTest, AMarkThatOnlyWholeStepsHave) {
  std::vector<DeviceOperation> operations = {{"prefill", 0, 1000}, {"prefill", 1000, 2000}};
  int64_t at = 2000;
  AddSteps(5, at, operations);
  const auto trace =
      SummarizeTrace(operations, {.steps = 7, .whole_steps = 5, .first_whole_step = 2});
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->steps, 4);
  EXPECT_DOUBLE_EQ(trace->span_us, 100);
}

TEST(StepTraceTest, APrefillIsTakenAsAWhole) {
  const auto trace =
      SummarizeTrace({{"gemm", 1000, 4000}, {"norm", 3000, 5000}, {"gemm", 9000, 11000}},
                     {.steps = 2, .whole_steps = 0});
  ASSERT_TRUE(trace.ok());
  EXPECT_FALSE(trace->only_whole_steps);
  EXPECT_EQ(trace->steps, 2);
  EXPECT_DOUBLE_EQ(trace->span_us, 5);
  EXPECT_DOUBLE_EQ(trace->busy_us, 3);  // what overlaps counts once
  EXPECT_DOUBLE_EQ(trace->largest_gap_us, 4);
  EXPECT_EQ(trace->after_gap, "gemm");
  EXPECT_DOUBLE_EQ(trace->rows[0].us, 2.5);
  EXPECT_DOUBLE_EQ(trace->rows[1].us, 0.5);  // after the first gemm's end
}

TEST(StepTraceTest, NothingOnTheDevice) { EXPECT_FALSE(SummarizeTrace({}, {.steps = 3}).ok()); }

TEST(StepTraceTest, ShortNames) {
  EXPECT_EQ(ShortKernelName("void millrace::kernels::(anonymous namespace)::RmsNorm<4, (Type)1>("
                            "millrace::kernels::NormArgs)"),
            "RmsNorm<4, (Type)1>");
  EXPECT_EQ(ShortKernelName("nvjet_tst_64x8"), "nvjet_tst_64x8");
  EXPECT_EQ(ShortKernelName("memcpy host to device"), "memcpy host to device");
  EXPECT_EQ(ShortKernelName(std::string(500, 'x')).size(), 72u);
}

TEST(StepTraceTest, EachRankHasItsOwn) {
  std::vector<DeviceOperation> operations;
  int64_t at = 0;
  AddSteps(3, at, operations);
  at = 500;  // a little later
  std::vector<DeviceOperation> second;
  AddSteps(3, at, second);
  for (DeviceOperation& operation : second) {
    operation.rank = 1;
    if (operation.name == "sample") operation.end_ns -= 5'000;
    operations.push_back(operation);
  }
  const auto traces = SummarizeRanks(operations, {.steps = 3, .whole_steps = 3});
  ASSERT_TRUE(traces.ok()) << traces.status();
  EXPECT_THAT(*traces, ElementsAre(Field(&StepTrace::busy_us, DoubleNear(90, 1e-9)),
                                   Field(&StepTrace::busy_us, DoubleNear(85, 1e-9))));
  EXPECT_FALSE(SummarizeRanks({}, {.steps = 3, .whole_steps = 3}).ok());
}

}  // namespace
}  // namespace millrace
