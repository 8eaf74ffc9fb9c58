#include "kernels/gemm/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/gemm/linear_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

using ::testing::HasSubstr;

// One token's row, summed in float64 from what the device sees.
std::vector<double> Reference(const Problem& problem, const std::vector<float>& weight,
                              const std::vector<float>& input, int64_t token, int64_t rows,
                              int64_t stride) {
  std::vector<double> sums(rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t group = 0; group < stride; group += 128) {
      double sum = 0;
      for (int64_t column = group; column < group + 128; ++column) {
        sum += double{weight[row * stride + column]} * input[token * stride + column];
      }
      sums[row] += sum * problem.WeightScale(row, group) * problem.InputScale(token, group);
    }
  }
  return sums;
}

void ExpectRight(const Form& form, int64_t rows, int64_t stride, int64_t tokens) {
  SCOPED_TRACE(testing::Message() << form.name << ", " << rows << " x " << stride << ", " << tokens
                                  << " tokens");
  const int64_t output_stride = rows + 8;
  LinearPlanner planner(Library(), {});
  Problem problem(form, rows, stride, tokens, output_stride);
  const LinearPlan* const plan = Plan(&planner, form.Desc(rows, stride));
  ASSERT_NE(plan, nullptr);
  std::vector<uint8_t> bytes;
  ASSERT_EQ(problem.Run(plan, tokens, &bytes), cudaSuccess);
  EXPECT_TRUE(problem.GuardsIntact());
  const std::vector<float> weight = problem.Weight(), input = problem.Input();
  double largest = 0;
  const int64_t step = std::max<int64_t>(1, tokens / 12);  // a sample
  for (int64_t token = 0; token < tokens; token += step) {
    std::vector<double> expected = Reference(problem, weight, input, token, rows, stride);
    const uint8_t* const row = &bytes[token * output_stride * form.OutputBytes()];
    double error;
    if (form.output == Type::kF32) {
      error = RowError(reinterpret_cast<const float*>(row), expected.data(), rows);
    } else {
      for (double& value : expected) {
        value = static_cast<float>(__float2bfloat16(static_cast<float>(value)));
      }
      error = RowError(reinterpret_cast<const Bf16*>(row), expected.data(), rows);
    }
    ASSERT_LE(error, form.type == Type::kFp8 ? kFp8RowError : kBf16RowError) << "token " << token;
    largest = std::max(largest, error);
    // The bytes between the rows are not touched.
    for (size_t i = rows * form.OutputBytes(); i < output_stride * form.OutputBytes(); ++i) {
      ASSERT_EQ(row[i], 0xff) << "token " << token;
    }
  }
  testing::Test::RecordProperty("largest_row_error", std::to_string(largest));
}

TEST(LinearTest, MatchesFloat64) {
  for (const Form& form : kForms) {
    for (const int64_t tokens : {1, 3, 17, 48, 63, 65, 255, 2000}) {
      ExpectRight(form, 576, 1536, tokens);
    }
    ExpectRight(form, 960, 640, 17);
    ExpectRight(form, 3072, 640, 64);
    ExpectRight(form, 16, 128, 5);
    ExpectRight(form, 512, 14336, 16);
  }
}

// The rows of y are the same bits at every number of tokens, and wherever among them a row lies.
void ExpectExact(const Form& form, int64_t rows, int64_t stride, int64_t most) {
  SCOPED_TRACE(testing::Message() << form.name << ", " << rows << " x " << stride);
  LinearPlanner planner(Library(), {});
  Problem problem(form, rows, stride, most, rows);
  const LinearPlan* const plan = Plan(&planner, form.Desc(rows, stride));
  ASSERT_NE(plan, nullptr);
  std::vector<uint8_t> all, some;
  ASSERT_EQ(problem.Run(plan, most, &all), cudaSuccess);
  ASSERT_EQ(problem.Run(plan, most, &some), cudaSuccess);
  EXPECT_EQ(some, all);
  for (const int64_t tokens : {1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 100, 250, 256, 400, 1000, 2048}) {
    if (tokens >= most) break;
    ASSERT_EQ(problem.Run(plan, tokens, &some), cudaSuccess) << tokens << " tokens";
    EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size()), 0) << tokens << " tokens";
    if (LinearCapacity(tokens) > most) continue;
    ASSERT_EQ(problem.Run(plan, tokens, &some, LinearCapacity(tokens)), cudaSuccess) << tokens;
    EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size()), 0)
        << tokens << " tokens, with capacity for more";
  }
  EXPECT_TRUE(problem.GuardsIntact());
  if (form.input == Scaling::kTokenGroup) return;  // its scales would have to move as well
  // The last rows alone.
  const size_t row_bytes = stride * form.ElementBytes();
  for (const int64_t tokens : {1, 7, 40}) {
    LinearArgs args = problem.Args(plan, tokens);
    args.input.data = problem.input().get() + (most - tokens) * row_bytes;
    problem.output().Poison();
    ASSERT_EQ(LaunchLinear(args, nullptr), cudaSuccess);
    const std::vector<uint8_t> last = problem.output().Download();
    const size_t bytes = tokens * rows * form.OutputBytes();
    EXPECT_EQ(std::memcmp(last.data(), &all[all.size() - bytes], bytes), 0)
        << "the last " << tokens << " tokens";
  }
}

TEST(LinearTest, GivesARowTheSameBitsInAnyBatch) {
  for (const Form& form : kForms) {
    ExpectExact(form, 4096, 4096, 4096);
    ExpectExact(form, 1024, 14336, 1024);
    ExpectExact(form, 4096, 14336, 2048);
    ExpectExact(form, 576, 1536, 4096);
    ExpectExact(form, 960, 640, 4096);
  }
}

TEST(LinearTest, GivesARowOfLogitsTheSameBitsInAnyBatch) {
  ExpectExact(kForms[1], 49152, 640, 512);
  ExpectExact(kForms[1], 128256, 4096, 256);
}

TEST(LinearTest, ReplaysInAGraphOnChangedInputs) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    LinearPlanner planner(Library(), {});
    Problem problem(form, 1024, 2048, 24, 1024);
    const LinearPlan* const plan = Plan(&planner, form.Desc(1024, 2048));
    ASSERT_NE(plan, nullptr);
    const LinearArgs args = problem.Args(plan, 24);
    cudaStream_t stream;
    CheckCuda(cudaStreamCreate(&stream), "stream");
    CheckCuda(LaunchLinear(args, stream), "warm-up");
    CheckCuda(cudaStreamSynchronize(stream), "warm-up");
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    EXPECT_EQ(LaunchLinear(args, stream), cudaSuccess);
    CheckCuda(cudaStreamEndCapture(stream, &graph), "capture");
    CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    size_t free_before, free_after, total;
    CheckCuda(cudaMemGetInfo(&free_before, &total), "memory");
    for (uint64_t seed = 10; seed < 20; ++seed) {
      problem.Fill(problem.input().get(), 24, seed);
      std::vector<uint8_t> expected;
      ASSERT_EQ(problem.Run(plan, 24, &expected), cudaSuccess);
      problem.output().Poison();
      CheckCuda(cudaDeviceSynchronize(), "poison");
      CheckCuda(cudaGraphLaunch(executable, stream), "replay");
      CheckCuda(cudaStreamSynchronize(stream), "replay");
      std::vector<uint8_t> got = problem.output().Download();
      got.resize(expected.size());
      EXPECT_EQ(got, expected) << "seed " << seed;
    }
    CheckCuda(cudaMemGetInfo(&free_after, &total), "memory");
    EXPECT_EQ(free_after, free_before);
    CheckCuda(cudaGraphExecDestroy(executable), "graph");
    CheckCuda(cudaGraphDestroy(graph), "graph");
    CheckCuda(cudaStreamDestroy(stream), "stream");
  }
}

// Without exactness, too, and with the tensor cores' own sums: right, if not the same bits.
TEST(LinearTest, IsRightWithoutExactness) {
  for (const bool fast : {false, true}) {
    LinearPlanner planner(Library(), {.exact = false, .fast_accumulation = fast});
    for (const Form& form : kForms) {
      SCOPED_TRACE(testing::Message() << form.name << ", fast " << fast);
      Problem problem(form, 512, 4096, 17, 512);
      const LinearPlan* const plan = Plan(&planner, form.Desc(512, 4096));
      ASSERT_NE(plan, nullptr);
      std::vector<uint8_t> bytes;
      ASSERT_EQ(problem.Run(plan, 17, &bytes), cudaSuccess);
      const std::vector<float> weight = problem.Weight(), input = problem.Input();
      for (const int64_t token : {0, 16}) {
        const auto expected = Reference(problem, weight, input, token, 512, 4096);
        const uint8_t* const row = &bytes[token * 512 * form.OutputBytes()];
        const double error =
            form.output == Type::kF32
                ? RowError(reinterpret_cast<const float*>(row), expected.data(), 512)
                : RowError(reinterpret_cast<const Bf16*>(row), expected.data(), 512);
        EXPECT_LE(error, kFp8RowError);
      }
    }
  }
}

TEST(LinearTest, LeavesVectorScalesToTheReader) {
  const float weight_scales[1] = {2}, input_scales[1] = {3};
  LinearArgs args = {};
  args.output_stride = 64;
  args.weight = {.data = nullptr,
                 .type = Type::kFp8,
                 .scaling = WeightScaling::kChannel,
                 .rows = 64,
                 .stride = 128,
                 .scales = weight_scales};
  args.input = {.data = nullptr,
                .type = Type::kFp8,
                .scaling = Scaling::kToken,
                .stride = 128,
                .scales = const_cast<float*>(input_scales)};
  EXPECT_EQ(LinearProduct(args).channel_scales, weight_scales);
  EXPECT_EQ(LinearProduct(args).token_scales, input_scales);
  EXPECT_EQ(LinearProduct(args).stride, 64);
  args.weight.scaling = WeightScaling::kTensor;
  args.input.scaling = Scaling::kTensor;
  EXPECT_EQ(LinearProduct(args).channel_scales, nullptr);
  EXPECT_EQ(LinearProduct(args).token_scales, nullptr);
}

TEST(LinearTest, PlansAShapeOnce) {
  LinearPlanner planner(Library(), {});
  const GemmDesc desc = kForms[0].Desc(576, 640);
  const LinearPlan* const plan = Plan(&planner, desc);
  EXPECT_EQ(Plan(&planner, desc), plan);
  EXPECT_NE(Plan(&planner, kForms[0].Desc(592, 640)), plan);
}

TEST(LinearTest, NamesWhatAShapeMayBe) {
  LinearPlanner planner(Library(), {});
  const auto error_of = [&](auto change) {
    GemmDesc desc = kForms[0].Desc(576, 640);
    change(desc);
    std::string error;
    EXPECT_EQ(planner.Plan(desc, &error), nullptr);
    return error;
  };
  EXPECT_THAT(error_of([](GemmDesc& desc) { desc.rows = 100; }),
              HasSubstr("100 outputs; allowed: a multiple of 16"));
  EXPECT_THAT(error_of([](GemmDesc& desc) { desc.stride = 576; }),
              HasSubstr("576 padded inputs; allowed: a multiple of 128"));
  EXPECT_THAT(error_of([](GemmDesc& desc) { desc.weight_scaling = WeightScaling::kBlock; }),
              HasSubstr("not FP8"));
  EXPECT_THAT(error_of([](GemmDesc& desc) { desc.weight = desc.input = Type::kF32; }),
              HasSubstr("F32"));
  EXPECT_THAT(error_of([](GemmDesc& desc) { desc.output = Type::kFp8; }), HasSubstr("FP8"));
}

TEST(LinearTest, RefusesWhatDoesNotFitThePlan) {
  const Form& form = kForms[3];
  LinearPlanner planner(Library(), {.max_tokens = 100});
  Problem problem(form, 576, 640, 100, 576);
  const LinearPlan* const plan = Plan(&planner, form.Desc(576, 640));
  ASSERT_NE(plan, nullptr);
  const auto refused = [&](auto change) {
    LinearArgs args = problem.Args(plan, 100);
    change(args);
    return LaunchLinear(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](LinearArgs&) {}));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.plan = nullptr; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.tokens = 0; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.tokens = 101; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.weight.rows = 592; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.weight.type = Type::kBf16; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.weight.scaling = WeightScaling::kBlock; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.weight.scales = nullptr; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.input.stride = 768; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.input.scaling = Scaling::kTokenGroup; }));
  EXPECT_TRUE(refused(
      [](LinearArgs& args) { args.input.data = static_cast<uint8_t*>(args.input.data) + 8; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.output_stride = 568; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.output = nullptr; }));
  EXPECT_TRUE(refused([](LinearArgs& args) { args.workspace = nullptr; }));
}

}  // namespace
}  // namespace millrace::kernels
