#include "kernels/gemm/sm90/dense/skinny_linear.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/linear_test_util.h"
#include "kernels/gemm/sm90/dense/skinny_launch.cuh"
#include "kernels/gemm/sm90/own_linear_test_util.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {
namespace {

struct SkinnyLinear {
  using Args = SkinnyLinearArgs;
  using Config = SkinnyConfig;
  static constexpr int64_t kMostTokens = kMaxSkinnyTokens;

  static std::vector<SkinnyConfig> Configs(int64_t /*tokens*/) {
    return {
        {.stages = 2, .ctas = 1000},
        {.stages = 3, .ctas = 7},
        {.stages = 8, .ctas = 5},
        {.stages = 16, .ctas = 1000},
    };
  }
  static std::string Describe(const SkinnyConfig& config) {
    return std::to_string(config.stages) + " stages, " + std::to_string(config.ctas) + " CTAs";
  }
  template <typename Delay>
  static cudaError_t Launch(const SkinnyLinearArgs& args, cudaStream_t stream) {
    return LaunchSkinny<Delay>(args, stream);
  }
};

// Compares the whole output: poison behind the rows and behind the tokens, too.
TEST(SkinnyLinearTest, GivesTheBitsOfCublasLt) {
  const auto expect = [](const Form& form, int64_t rows, int64_t stride,
                         const std::vector<int64_t>& counts) {
    ExpectBitsOfCublasLt<SkinnyLinear, NoDelay>(form, rows, stride, rows + 8, counts);
  };
  for (const Form& form : kForms) {
    expect(form, 576, 640, {1, 3, 7, 8, 9, 13, 16});
    expect(form, 16, 128, {1, 5, 16});
    expect(form, 1072, 1536, {2, 12});
    expect(form, 4096, 4096, {1, 16});
    expect(form, 1024, 14336, {7, 15});
  }
}

TEST(SkinnyLinearTest, WaitsForWhatItNeeds) {
  for (const Form& form : {kForms[0], kForms[3], BlockForms()[0]}) {
    ExpectBitsOfCublasLt<SkinnyLinear, RandomDelay>(form, 1072, 4096, 1072, {1, 6, 12}, 3);
  }
}

TEST(SkinnyLinearTest, KeepsTheOrderOfAChain) { ExpectOrderOfAChain<SkinnyLinear>(12); }

// A linear of one token whose input is computed by the kernels before it, or by its fused prologue.
struct PrologueCase {
  PrologueCase(int width, const Form& form, int delta_form)
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

  static std::vector<SkinnyConfig> Configs() { return SkinnyLinear::Configs(1); }
  SkinnyLinearArgs Of(const SkinnyConfig& config) {
    return ArgsOf<SkinnyLinear>(problem, form, 1, config);
  }

  // The results of a launch: the output, the input's scale, and the new residual.
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
    Left left = {.output = Launched<SkinnyLinear, NoDelay>(problem, Of(Configs()[0])),
                 .scales = problem.input_scales().Download(),
                 .residual = residual.Download()};
    if (form.input == Scaling::kToken) problem.input_scales().Poison();
    return left;
  }

  template <typename Delay>
  Left Fused(bool normed, const SkinnyConfig& config) {
    residual.Upload(residual_before);
    new_residual.Upload(residual_before);
    const InputRow row = {.plain = normed ? nullptr : plain.get(),
                          .norm = normed ? norm.get() : nullptr,
                          .epsilon = 1e-5f,
                          .residual = residual.get(),
                          .delta = has_delta ? delta.view : Product{},
                          .new_residual = new_residual.get(),
                          .width = width};
    SkinnyLinearArgs args = Of(config);
    args.input_row = &row;
    Left left = {.output = Launched<SkinnyLinear, Delay>(problem, args),
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

TEST(SkinnyLinearTest, FusesThePrologueOfOtherKernels) {
  for (const Form& form : {kForms[0], kForms[3], kForms[4], kForms[5]}) {
    for (const int width : {8, 576, 1032, 2048, 4096}) {
      for (const int delta_form : {0, 1, 2}) {  // none, plain, with scales
        PrologueCase test(width, form, delta_form);
        for (const bool normed : {true, false}) {
          if (!normed && form.type == Type::kBf16) continue;
          SCOPED_TRACE(testing::Message() << form.name << ", width " << width << ", delta "
                                          << delta_form << (normed ? ", norm" : ""));
          const PrologueCase::Left expected = test.Stored(normed);
          for (const SkinnyConfig& config : PrologueCase::Configs()) {
            EXPECT_TRUE(test.Fused<NoDelay>(normed, config) == expected);
          }
          EXPECT_TRUE(test.Fused<RandomDelay>(normed, PrologueCase::Configs()[1]) == expected);
        }
      }
    }
  }
}

TEST(SkinnyLinearTest, GatesAsTheKernelForItDoes) {
  for (const Form& form : GatedForms()) {
    ExpectGate<SkinnyLinear, NoDelay>(form, 384, 640, {1, 3, 8, 9, 16});
    ExpectGate<SkinnyLinear, RandomDelay>(form, 1664, 4096, {7, 13});
  }
}

TEST(SkinnyLinearTest, RefusesProloguesThatItCannotFuse) {
  PrologueCase test(576, kForms[3], 2);
  const auto refused = [&](auto change) {
    InputRow row = {.norm = test.norm.get(),
                    .residual = test.residual.get(),
                    .delta = test.delta.view,
                    .new_residual = test.new_residual.get(),
                    .width = 576};
    SkinnyLinearArgs args = test.Of(PrologueCase::Configs()[0]);
    args.input_row = &row;
    change(args, row);
    return LaunchSkinnyLinear(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](SkinnyLinearArgs&, InputRow&) {}));
  EXPECT_TRUE(refused([](SkinnyLinearArgs& args, InputRow&) { args.tokens = 2; }));
  EXPECT_TRUE(refused([](SkinnyLinearArgs& args, InputRow&) { args.output_type = Type::kF32; }));
  EXPECT_TRUE(refused([](SkinnyLinearArgs&, InputRow& row) { row.width = 1024; }));
  EXPECT_TRUE(refused([](SkinnyLinearArgs&, InputRow& row) { row.width = 4; }));
  EXPECT_TRUE(refused([](SkinnyLinearArgs&, InputRow& row) { row.norm = nullptr; }));
  EXPECT_TRUE(refused([](SkinnyLinearArgs&, InputRow& row) { row.residual = nullptr; }));
  EXPECT_TRUE(
      refused([&](SkinnyLinearArgs&, InputRow& row) { row.new_residual = test.residual.get(); }));
}

TEST(SkinnyLinearTest, RefusesWhatItCannotRun) {
  ExpectRefusals<SkinnyLinear>({
      [](SkinnyConfig& config) { config.stages = 1; },
      [](SkinnyConfig& config) { config.ctas = 0; },
  });
}

}  // namespace
}  // namespace millrace::kernels::sm90
