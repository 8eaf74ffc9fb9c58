// Tests, without a GPU, that ops refuse what their kernels lack by the name of the field.
#include <set>
#include <string>

#include "base/strings.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/op_shapes_test_util.h"
#include "executors/models/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/moe/assign.h"
#include "kernels/moe/route.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

// Every feature that the GPU lacks is refused by name.
TEST(CudaOpsTest, RefusesWhatItLacks) {
  const std::set<std::string> has = {"embedding factor is 2",
                                     "norm before a block is absent",
                                     "norm of what a block adds is an RMS norm",
                                     "residual factor is 0.5",
                                     "norm of q and k is across heads",
                                     "attention's output gate is present",
                                     "logit factor is 0.25",
                                     "logit soft cap is 20"};
  EXPECT_TRUE(Layer(kernels::Type::kBf16).Run().ok());
  for (const LayerFeature& feature : LayerFeatures(Layer(kernels::Type::kBf16).weights.norm)) {
    Layer layer(kernels::Type::kBf16);
    feature.ask(layer.request);
    const absl::Status status = layer.Run();
    if (has.contains(feature.refusal)) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << feature.refusal;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(StrCat("the model's ", feature.refusal, "; allowed on the GPU: ")));
  }
  // Two that it has, but not together.
  Layer gated(kernels::Type::kBf16);
  gated.request.head_norms = {
      .q = gated.weights.norm, .k = gated.weights.norm, .across_heads = true};
  gated.request.attention.output_gate = true;
  EXPECT_THAT(std::string(gated.Run().message()),
              HasSubstr("norm of q and k is across heads that have output gates"));
  // The first refusal counts.
  Layer layer(kernels::Type::kBf16);
  layer.request.gate = GateFunction::kGeluTanh;
  layer.request.attention.soft_cap = 3;
  EXPECT_THAT(std::string(layer.Run().message()), HasSubstr("attention soft cap is 3"));
}

TEST(CudaOpsTest, RefusesMixturesThatItsKernelsDoNotTake) {
  const auto message = [](const RouterConfig& router, int tokens = 3, int hidden = 256) {
    ModelConfig shape = Shape(hidden, 512, 4, 2, 64, 1000);
    for (LayerConfig& layer : shape.layers) {
      layer.feed_forward = ExpertsFeedForward{.size = 512, .router = router};
    }
    ShapesPlacer placer(shape, kernels::Type::kBf16);
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    CudaStepInput step;
    step.rows = 1;
    step.tokens = step.max_row_tokens = step.wanted = tokens;
    const StepBuffers buffers{.max_logit_rows = 256};
    return std::string(ActivationBytes(**model, ContextOf(placer.weights, buffers, shape), step)
                           .status()
                           .message());
  };
  EXPECT_EQ(message({.experts = 8, .chosen = 2}), "");
  EXPECT_THAT(message({.experts = kernels::kMaxExperts + 1, .chosen = 2}),
              HasSubstr(StrCat("number of experts is ", kernels::kMaxExperts + 1,
                               "; allowed on the GPU: up to ", kernels::kMaxExperts)));
  EXPECT_THAT(message({.experts = 256, .chosen = kernels::kMaxChosen + 1}),
              HasSubstr(StrCat("number of experts of a token is ", kernels::kMaxChosen + 1)));
  EXPECT_THAT(message({.experts = 256, .chosen = 2, .groups = kernels::kMaxExpertGroups + 1}),
              HasSubstr(StrCat("number of groups of experts is ", kernels::kMaxExpertGroups + 1)));
  EXPECT_THAT(message({.experts = 8, .chosen = 8}, kernels::kMaxPairs / 8 + 1),
              HasSubstr("number of experts of a step's tokens is"));
}

TEST(CudaOpsTest, RefusesWidthsThatItsKernelsDoNotTake) {
  const auto message = [](const ModelConfig& config) {
    return std::string(Layer(kernels::Type::kBf16, config).Run().message());
  };
  EXPECT_EQ(message(Shape(256, 512, 4, 2, 64, 1000)), "");
  EXPECT_THAT(message(Shape(252, 512, 4, 2, 64, 1000)),
              HasSubstr("hidden size is 252; allowed on the GPU: multiples of 8 up to 16384"));
  EXPECT_THAT(message(Shape(16392, 512, 4, 2, 64, 1000)), HasSubstr("hidden size is 16392"));
  EXPECT_THAT(
      message(Shape(256, 500, 4, 2, 64, 1000)),
      HasSubstr("feed-forward size is 500; allowed on the GPU: multiples of 8 up to 32768"));
  EXPECT_THAT(message(Shape(256, 32776, 4, 2, 64, 1000)), HasSubstr("size is 32776"));
  EXPECT_THAT(message(Shape(256, 512, 4, 2, 64, 300000)),
              HasSubstr("vocabulary size is 300000; allowed on the GPU: up to 262144"));
}

TEST(CudaOpsTest, RefusesRecurrentLayersThatItsKernelsDoNotTake) {
  const auto message = [](const ModelConfig& shape, int width = 4) {
    ShapesPlacer placer(shape, kernels::Type::kBf16);
    placer.convolution_width = width;
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    CudaStepInput step;
    step.rows = 1;
    step.tokens = step.max_row_tokens = step.wanted = 3;
    const StepBuffers buffers{.max_logit_rows = 256};
    return std::string(ActivationBytes(**model, ContextOf(placer.weights, buffers, shape), step)
                           .status()
                           .message());
  };
  const GatedDelta runs{.key_heads = 16, .value_heads = 64, .key_size = 128, .value_size = 128};
  const auto of_delta = [&](auto change) {
    GatedDelta delta = runs;
    change(delta);
    return message(ShapeWithStates(1024, 512, delta));
  };
  EXPECT_EQ(of_delta([](GatedDelta&) {}), "");
  EXPECT_THAT(of_delta([](GatedDelta& delta) { delta.key_size = 64; }),
              HasSubstr("linear_key_head_dim is 64; allowed on the GPU: 128"));
  EXPECT_THAT(of_delta([](GatedDelta& delta) { delta.value_size = 256; }),
              HasSubstr("linear_value_head_dim is 256; allowed on the GPU: 128"));
  EXPECT_THAT(of_delta([](GatedDelta& delta) { delta.key_heads = 8; }),
              HasSubstr("linear_num_value_heads of a key head is 8; allowed on the GPU: up to 4"));
  EXPECT_THAT(of_delta([](GatedDelta& delta) { delta.value_heads = delta.key_heads = 80; }),
              HasSubstr("linear_num_value_heads of a rank is 80; allowed on the GPU: up to 64"));
  EXPECT_THAT(message(ShapeWithStates(1024, 512, runs), 3),
              HasSubstr("linear_conv_kernel_dim is 3; allowed on the GPU: 4"));
  ModelConfig convolves = ShapeWithStates(1024, 512, runs);
  const auto of_convolution = [&](int channels, int width) {
    convolves.layers[1].attention = ShortConvolution{.channels = channels, .width = width};
    convolves.layers[2].attention = convolves.layers[1].attention;
    return message(convolves, width);
  };
  EXPECT_EQ(of_convolution(1024, 3), "");
  EXPECT_EQ(of_convolution(4096, 8), "");
  EXPECT_THAT(of_convolution(4112, 3),
              HasSubstr("number of a short convolution's channels is 4112; "
                        "allowed on the GPU: multiples of 8 up to 4096"));
  EXPECT_THAT(of_convolution(1024, 9), HasSubstr("conv_L_cache is 9; allowed on the GPU: up to 8"));
  const auto of_mamba2 = [&](auto change, int width = 4) {
    Mamba2 mixer{.heads = 16, .head_size = 64, .groups = 2, .state_size = 128, .width = 4};
    change(mixer);
    convolves.layers[1].attention = convolves.layers[2].attention = mixer;
    return message(convolves, width);
  };
  EXPECT_EQ(of_mamba2([](Mamba2&) {}), "");
  EXPECT_THAT(of_mamba2([](Mamba2& mixer) { mixer.state_size = 64; }),
              HasSubstr("mamba_d_state is 64; allowed on the GPU: 128 and 256"));
  EXPECT_THAT(of_mamba2([](Mamba2& mixer) { mixer.head_size = 48; }),
              HasSubstr("mamba_d_head is 48; allowed on the GPU: multiples of 32"));
  EXPECT_THAT(of_mamba2([](Mamba2&) {}, 3), HasSubstr("mamba_d_conv is 3; allowed on the GPU: 4"));
  EXPECT_THAT(
      of_mamba2([](Mamba2& mixer) { mixer.heads = 256; }),
      HasSubstr("mamba_n_heads * mamba_d_head of a rank is 16384; allowed on the GPU: up to 8192"));
}

TEST(CudaOpsTest, RefusesEncoders) {
  ModelConfig config = Shape(256, 512, 4, 4, 64, 1000);
  config.architecture = "bert";
  config.encoder.emplace();
  ShapesPlacer placer(config, kernels::Type::kBf16);
  const absl::Status status = LoadModel(config, config.context_length, placer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bert, is an encoder; allowed"));
}

}  // namespace
}  // namespace millrace::cuda
