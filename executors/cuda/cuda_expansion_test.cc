// Tests that models with four-bit weights compute long prompts, whose weights are expanded, as they
// compute short pieces of them: with the same bits.
#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/weights/expansion.h"
#include "executors/executor_driver_test_util.h"
#include "executors/models/family_reference.h"
#include "gtest/gtest.h"
#include "kernels/gemm/grouped_linear.h"

namespace millrace::cuda {
namespace {

// Gate and up are expanded from 257 tokens on, and of two ranks' halves from 513 on.
TinyLlama WideLlama(TinyLlama model) {
  model.hidden = 512;
  model.heads = 8;
  model.kv_heads = 2;
  model.ffn = 4096;
  model.context = 1024;
  return model;
}

class CudaExpansionTest : public TinyModelTest {
 protected:
  static std::string WidePath() {
    return ModelPath(WideLlama(SmallModel(TensorType::kBf16, TensorType::kBf16)));
  }
  static std::vector<float> Logprobs(const std::string& path, const CudaSpec& device, int chunk) {
    return PromptLogprobs(*Load(path, device), Prompt(700, 3), chunk);
  }
  static void ExpectTheSameInPieces(const std::string& path, const CudaSpec& device) {
    const std::vector<float> whole = Logprobs(path, device, 700);
    for (const int chunk : {400, 257, 192, 129, 128, 65, 7}) {
      EXPECT_EQ(Logprobs(path, device, chunk), whole) << "pieces of " << chunk;
    }
    CudaSpec short_steps = device;  // without a workspace
    short_steps.max_num_batched_tokens = kExpandFrom - 1;
    EXPECT_EQ(Logprobs(path, short_steps, kExpandFrom - 1), whole) << "steps that never expand";
  }
};

TEST_F(CudaExpansionTest, WideModelsAreExpanded) {
  kernels::GroupedWeight gate_up{};
  gate_up.rows = 2 * 4096;
  gate_up.stride = 512;
  EXPECT_TRUE(kernels::ExpandingIsFaster(gate_up, 300));
  gate_up.rows = 4096;
  EXPECT_TRUE(kernels::ExpandingIsFaster(gate_up, 700));
}

TEST_F(CudaExpansionTest, LongPromptsAreTheSameInPieces) {
  CudaSpec int4 = Device();
  int4.quantize_int4 = true;
  ExpectTheSameInPieces(WidePath(), int4);
  int4.tensor_parallel_size = 2;
  int4.virtual_ranks = true;
  ExpectTheSameInPieces(WidePath(), int4);
}

TEST_F(CudaExpansionTest, LongPromptsOfStoredWeightsAreTheSameInPieces) {
  const TinyLlama model = WideLlama(GroupedModel());
  for (const QuantScheme& scheme : PackedSchemes()) {
    SCOPED_TRACE(StrCat(static_cast<int>(scheme.packing), " ", scheme.group.columns));
    ExpectTheSameInPieces(Folder(model, {.quantization = scheme}), Device());
  }
  for (const TensorType type : {TensorType::kQ4_0, TensorType::kQ4K}) {
    TinyLlama gguf = model;
    gguf.linear_type = type;
    ExpectTheSameInPieces(ModelPath(gguf), Device());
  }
}

// Graphs of steps that expand weights.
TEST_F(CudaExpansionTest, ASequenceIsTheSameAmongMany) {
  CudaSpec device = Device();
  device.quantize_int4 = true;
  device.max_num_seqs = 320;
  const std::string path = WidePath();
  const auto output = [&](int others) {
    const std::unique_ptr<Executor> executor = Load(path, device);
    ExecutorDriver driver(*executor);
    std::vector<SlotId> slots = {driver.Add(Prompt(40, 0), kSampling)};
    for (int i = 1; i <= others; ++i) {
      SamplingParams sampling = kSampling;
      sampling.seed = i;
      slots.push_back(driver.Add(Prompt(5 + i % 7, i), sampling));
    }
    driver.Generate(slots, 8, 64);
    return driver.output(slots[0]);
  };
  EXPECT_EQ(output(299), output(0));
}

}  // namespace
}  // namespace millrace::cuda
