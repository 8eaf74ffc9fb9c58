// Every op of the CPU executor against LibTorch's, with the same inputs and weights, in the steps
// of small models: prompts in chunks and beside each other, decoding, prompts that are scored.
#include <algorithm>
#include <string>
#include <vector>

#include "executors/executor_driver.h"
#include "executors/tiny_model_test_util.h"
#include "executors/torch/op_by_op.h"
#include "formats/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::aten {
namespace {

OpErrors RunBoth(const std::string& path) {
  OpErrors errors;
  const std::unique_ptr<Executor> executor = LoadOpByOp(
      path,
      {.threads = 1, .kv_cache_memory = 4 << 20, .max_num_seqs = 4, .max_num_batched_tokens = 128},
      &errors);
  ExecutorDriver driver(*executor);
  const SamplingParams greedy{.temperature = 0, .top_logprobs = 0};
  const int vocab = executor->info().limits.vocab_size;
  const SlotId a = driver.Add(Prompt(50, 1, vocab), greedy);
  const SlotId b = driver.Add(Prompt(21, 2, vocab), greedy);
  const SlotId c = driver.Add(Prompt(1, 3, vocab), greedy);
  driver.Step({{a, 33}}, 1);
  driver.Step({{b, 21}, {a, 17}, {c, 1}});
  driver.Decode({a, b, c}, 3);
  return errors;
}

// What an op may differ by, of its largest value. Sums are in another order, and what the CPU
// rounds shows: its keys and values to float16, what a linear reads to the linear's form.
double Allowed(const std::string& op) {
  if (op.ends_with(" q8")) return 0.5 / 127 + 1e-3;  // half a step, of a block's largest value
  if (op.ends_with(" bf16")) return 1.0 / 256 + 1e-3;
  if (op == "Attention") return 3e-3;  // Scores spread over tens, and so do logits.
  if (op == "Sample") return 1e-3;
  return 1e-5;
}

void ExpectAlike(const OpErrors& errors) {
  EXPECT_GE(errors.size(), 9);
  for (const auto& [op, error] : errors) EXPECT_LT(error, Allowed(op)) << op;
}

class TorchOpsTest : public TinyModelTest {};

TEST_F(TorchOpsTest, EveryTypeOfWeights) {
  using enum TensorType;
  for (const TensorType type : {kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ2K, kQ3K,
                                kQ4K, kQ5K, kQ6K, kIq4Nl, kMxfp4}) {
    SCOPED_TRACE(Traits(type).name);
    const TinyLlama model{.architecture = type == kF16 ? "qwen3" : "llama",
                          .hidden = 256,
                          .ffn = 256,
                          .rope_factors = type == kF32,
                          .linear_type = type,
                          .embedding_type = type == kBf16 ? kF32 : kQ8_0};
    ExpectAlike(RunBoth(Gguf(model)));
  }
}

TEST_F(TorchOpsTest, EveryFamily) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    WriteTwinFolder(twin, Path("folder"));
    ExpectAlike(RunBoth(Path("folder")));
  }
}

}  // namespace
}  // namespace millrace::aten
