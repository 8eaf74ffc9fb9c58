#include "kernels/gemm/sm90/stream_linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/linear_test_util.h"
#include "kernels/gemm/sm90/stream_launch.cuh"
#include "kernels/launch.cuh"
#include "kernels/norm/rms_norm.h"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {
namespace {

// Up to some thousand cycles, otherwise each time; the clock tells the times and SMs apart.
struct RandomDelay {
  __device__ static void Wait() {
    uint32_t bits = static_cast<uint32_t>(clock64()) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu +
                    threadIdx.x / kWarpSize * 0xc2b2ae35u;
    bits ^= bits >> 15;
    if (bits % 4 == 0) __nanosleep(bits / 4 % 4096);
  }
};

constexpr StreamChoice kChoices[] = {
    {.rows = 32, .stages = 2, .ctas = 1000},
    {.rows = 32, .stages = 8, .ctas = 7},
    {.rows = 64, .stages = 2, .ctas = 7},
    {.rows = 64, .stages = 16, .ctas = 1000},
};

StreamLinearArgs ArgsOf(Problem& problem, const Form& form, int64_t tokens,
                        const StreamChoice& choice) {
  const LinearArgs args = problem.Args(nullptr, tokens);
  return {.choice = choice,
          .weight = args.weight,
          .input = args.input,
          .tokens = tokens,
          .output = args.output,
          .output_type = form.output,
          .output_stride = args.output_stride,
          .ticket = args.ticket};
}

std::string Describe(const Form& form, int64_t tokens, const StreamChoice& choice) {
  return std::string(form.name) + ", " + std::to_string(tokens) + " tokens, " +
         std::to_string(choice.rows) + " rows, " + std::to_string(choice.stages) + " stages";
}

bool Streams(const Form& form) { return form.weight != WeightScaling::kBlock; }

// The whole output, poisoned before, of a launch.
template <typename Delay>
std::vector<uint8_t> Launched(Problem& problem, const StreamLinearArgs& args) {
  problem.output().Poison();
  CheckCuda(cudaDeviceSynchronize(), "poison");
  EXPECT_EQ(LaunchStream<Delay>(args, nullptr), cudaSuccess);
  return problem.output().Download();
}

// Outputs that cuBLASLt wrote for `tokens` tokens, and poison everywhere else.
std::vector<uint8_t> Expected(Problem& problem, const LinearPlan* plan, int64_t tokens) {
  std::vector<uint8_t> bytes;
  EXPECT_EQ(problem.Run(plan, tokens, &bytes), cudaSuccess);
  bytes.resize(problem.output().size(), 0xff);
  return bytes;
}

void ExpectBitsOfCublasLt(const Form& form, int64_t rows, int64_t stride,
                          const std::vector<int64_t>& counts) {
  SCOPED_TRACE(testing::Message() << rows << " x " << stride);
  LinearPlanner planner(Library(), {.gemm = Gemm::kCublasLt});
  const LinearPlan* const plan = Plan(&planner, form.Shape(rows, stride));
  ASSERT_NE(plan, nullptr);
  Problem problem(form, rows, stride, kMostStreamTokens, rows + 8);
  for (const int64_t tokens : counts) {
    const std::vector<uint8_t> expected = Expected(problem, plan, tokens);
    for (const StreamChoice& choice : kChoices) {
      const StreamLinearArgs args = ArgsOf(problem, form, tokens, choice);
      EXPECT_TRUE(Launched<NoDelay>(problem, args) == expected) << Describe(form, tokens, choice);
    }
  }
  EXPECT_TRUE(problem.GuardsIntact());
}

// What is compared is the whole output: poison behind the rows and behind the tokens, too.
TEST(StreamLinearTest, GivesTheBitsOfCublasLt) {
  for (const Form& form : kForms) {
    if (!Streams(form)) continue;
    ExpectBitsOfCublasLt(form, 576, 640, {1, 3, 7, 8, 9, 13, 16});
    ExpectBitsOfCublasLt(form, 16, 128, {1, 5, 16});
    ExpectBitsOfCublasLt(form, 1072, 1536, {2, 12});
    ExpectBitsOfCublasLt(form, 4096, 4096, {1, 16});
    ExpectBitsOfCublasLt(form, 1024, 14336, {7, 15});
  }
}

TEST(StreamLinearTest, WaitsForWhatItNeeds) {
  for (const Form& form : {kForms[0], kForms[3]}) {
    LinearPlanner planner(Library(), {.gemm = Gemm::kCublasLt});
    const LinearPlan* const plan = Plan(&planner, form.Shape(1072, 4096));
    ASSERT_NE(plan, nullptr);
    Problem problem(form, 1072, 4096, kMostStreamTokens, 1072);
    for (const int64_t tokens : {1, 6, 12}) {
      const std::vector<uint8_t> expected = Expected(problem, plan, tokens);
      for (const StreamChoice& choice : kChoices) {
        const StreamLinearArgs args = ArgsOf(problem, form, tokens, choice);
        for (int repeat = 0; repeat < 3; ++repeat) {
          ASSERT_TRUE(Launched<RandomDelay>(problem, args) == expected)
              << Describe(form, tokens, choice);
        }
      }
    }
  }
}

// Kernels that are set up while the one before them runs: each reads what that one wrote, into what
// the one before that read.
TEST(StreamLinearTest, KeepsTheOrderOfAChain) {
  constexpr int64_t kSize = 2048, kTokens = 12;
  constexpr int kLaunches = 20;  // values grow by 26 each time
  const Form& form = kForms[0];
  Problem problem(form, kSize, kSize, kTokens, kSize);
  DeviceBuffer<uint8_t> other(problem.input().size());
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  const std::vector<uint8_t> input = problem.input().Download();
  const auto chain = [&](bool apart, auto delay) {
    problem.input().Upload(input);
    CheckCuda(cudaDeviceSynchronize(), "upload");
    for (int i = 0; i < kLaunches; ++i) {
      StreamLinearArgs args = ArgsOf(problem, form, kTokens, kChoices[i % 4]);
      args.output = other.get();
      if (i % 2 != 0) std::swap(args.input.data, args.output);
      EXPECT_EQ(LaunchStream<decltype(delay)>(args, stream), cudaSuccess);
      if (apart) CheckCuda(cudaStreamSynchronize(stream), "apart");
    }
    CheckCuda(cudaStreamSynchronize(stream), "chain");
    return std::pair(problem.input().Download(), other.Download());
  };
  const auto expected = chain(true, NoDelay());
  for (int repeat = 0; repeat < 5; ++repeat) {
    EXPECT_TRUE(chain(false, NoDelay()) == expected);
    EXPECT_TRUE(chain(false, RandomDelay()) == expected);
  }
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

// A linear of one token whose input is made by the kernels before, or by the linear itself.
struct MadeCase {
  MadeCase(int width, const Form& form, int delta_form)
      : width(width),
        form(form),
        problem(form, 1072, Padded(width), 1, 1072),
        residual_before(RandomNormal(width, 5, 3)),
        residual(residual_before),
        new_residual(width),
        norm(RandomNormal(width, 6)),
        delta(1, width, delta_form == 2, 7),
        plain(ToBf16(RandomNormal(width, 8))),
        has_delta(delta_form > 0) {}

  // What a launch leaves: the output, the input's scale, and the new residual.
  struct Left {
    std::vector<uint8_t> output;
    std::vector<float> scales, residual;
    friend bool operator==(const Left&, const Left&) = default;
  };

  Left Stored(bool normed) {
    residual.Upload(residual_before);
    const LinearArgs args = problem.Args(nullptr, 1);
    if (normed) {
      CheckCuda(LaunchRmsNorm({.residual = residual.get(),
                               .delta = has_delta ? delta.view : Product{},
                               .weight = norm.get(),
                               .epsilon = 1e-5f,
                               .tokens = 1,
                               .width = width,
                               .out = args.input},
                              nullptr),
                "norm");
    } else {
      CheckCuda(LaunchQuantize({.in = plain.get(),
                                .in_stride = width,
                                .tokens = 1,
                                .width = width,
                                .out = args.input},
                               nullptr),
                "quantize");
    }
    Left left = {.output = Launched<NoDelay>(problem, ArgsOf(problem, form, 1, kChoices[0])),
                 .scales = problem.input_scales().Download(),
                 .residual = residual.Download()};
    if (form.input == Scaling::kToken) problem.input_scales().Poison();
    return left;
  }

  template <typename Delay>
  Left Made(bool normed, const StreamChoice& choice) {
    residual.Upload(residual_before);
    new_residual.Upload(residual_before);
    const InputRow row = {.plain = normed ? nullptr : plain.get(),
                          .norm = normed ? norm.get() : nullptr,
                          .epsilon = 1e-5f,
                          .residual = residual.get(),
                          .delta = has_delta ? delta.view : Product{},
                          .new_residual = new_residual.get(),
                          .width = width};
    StreamLinearArgs args = ArgsOf(problem, form, 1, choice);
    args.input_row = &row;
    Left left = {.output = Launched<Delay>(problem, args),
                 .scales = problem.input_scales().Download(),
                 .residual = new_residual.Download()};
    EXPECT_EQ(residual.Download(), residual_before);
    EXPECT_TRUE(new_residual.GuardsIntact() && problem.GuardsIntact());
    return left;
  }

  int width;
  Form form;
  Problem problem;
  std::vector<float> residual_before;
  DeviceBuffer<float> residual, new_residual, norm;
  TestProduct delta;
  DeviceBuffer<Bf16> plain;
  bool has_delta;
};

TEST(StreamLinearTest, MakesTheInputThatOtherKernelsStore) {
  for (const Form& form : {kForms[0], kForms[3], kForms[4], kForms[5]}) {
    for (const int width : {8, 576, 1032, 2048, 4096}) {
      for (const int delta_form : {0, 1, 2}) {  // none, plain, with scales
        MadeCase test(width, form, delta_form);
        for (const bool normed : {true, false}) {
          if (!normed && form.type == Type::kBf16) continue;
          SCOPED_TRACE(testing::Message() << form.name << ", width " << width << ", delta "
                                          << delta_form << (normed ? ", norm" : ""));
          const MadeCase::Left expected = test.Stored(normed);
          for (const StreamChoice& choice : kChoices) {
            EXPECT_TRUE(test.Made<NoDelay>(normed, choice) == expected);
          }
          EXPECT_TRUE(test.Made<RandomDelay>(normed, kChoices[1]) == expected);
        }
      }
    }
  }
}

TEST(StreamLinearTest, RefusesInputsThatItCannotMake) {
  MadeCase test(576, kForms[3], 2);
  const auto refused = [&](auto change) {
    InputRow row = {.norm = test.norm.get(),
                    .residual = test.residual.get(),
                    .delta = test.delta.view,
                    .new_residual = test.new_residual.get(),
                    .width = 576};
    StreamLinearArgs args = ArgsOf(test.problem, test.form, 1, kChoices[0]);
    args.input_row = &row;
    change(args, row);
    return LaunchStreamLinear(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](StreamLinearArgs&, InputRow&) {}));
  EXPECT_TRUE(refused([](StreamLinearArgs& args, InputRow&) { args.tokens = 2; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args, InputRow&) { args.output_type = Type::kF32; }));
  EXPECT_TRUE(refused([](StreamLinearArgs&, InputRow& row) { row.width = 1024; }));
  EXPECT_TRUE(refused([](StreamLinearArgs&, InputRow& row) { row.width = 4; }));
  EXPECT_TRUE(refused([](StreamLinearArgs&, InputRow& row) { row.norm = nullptr; }));
  EXPECT_TRUE(refused([](StreamLinearArgs&, InputRow& row) { row.residual = nullptr; }));
  EXPECT_TRUE(
      refused([&](StreamLinearArgs&, InputRow& row) { row.new_residual = test.residual.get(); }));
}

TEST(StreamLinearTest, RefusesWhatItCannotRun) {
  const Form& form = kForms[3];
  Problem problem(form, 576, 640, 16, 576);
  const auto refused = [&](auto change) {
    StreamLinearArgs args = ArgsOf(problem, form, 16, kChoices[0]);
    change(args);
    return LaunchStreamLinear(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](StreamLinearArgs&) {}));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.choice.rows = 128; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.choice.rows = 16; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.choice.stages = 1; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.ticket = nullptr; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.choice.ctas = 0; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.tokens = 0; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.tokens = 17; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.weight.rows = 568; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.weight.type = Type::kBf16; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.weight.scales = nullptr; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.weight.scaling = WeightScaling::kBlock; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.input.scaling = Scaling::kTokenGroup; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.input.stride = 768; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.output_stride = 568; }));
  EXPECT_TRUE(refused([](StreamLinearArgs& args) { args.output_type = Type::kFp8; }));
  EXPECT_TRUE(refused(
      [](StreamLinearArgs& args) { args.output = static_cast<uint8_t*>(args.output) + 8; }));
}

}  // namespace
}  // namespace millrace::kernels::sm90
