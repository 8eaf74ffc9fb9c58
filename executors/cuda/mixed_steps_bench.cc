// Benchmark of steps that compute a part of a prompt beside sequences that decode, with and without
// graphs. Where launching takes longer than the kernels, it is the time of launching.
//
//   executors_cuda_steps_bench [FILE.gguf|FOLDER]
//
// Prints milliseconds a step, the median of five runs of 40 steps with two in flight, by the tokens
// of a step, 16 rows of which decode. Weights are drawn. Without a model: 32 narrow layers, whose
// kernels take next to no time. To see what a slow host costs, pin the program to one core beside a
// process that keeps it busy: taskset -c 0.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor_driver_test_util.h"
#include "executors/factory.h"
#include "executors/tiny_model_test_util.h"

namespace millrace::cuda {
namespace {

constexpr int kDecoding = 16;
constexpr int kBlock = 64;
constexpr int kSteps = 40;
constexpr int kRuns = 5;
constexpr std::array kTokens = {24, 64, 128, 250, 256, 512, 768, 1000, 1024};

std::string NarrowModel() {
  TinyLlama model;
  model.layers = 32;
  model.hidden = 256;
  model.heads = 4;
  model.kv_heads = 2;
  model.ffn = 512;
  model.context = 2048;
  model.linear_type = TensorType::kBf16;
  model.embedding_type = TensorType::kBf16;
  std::string path = "/tmp/mixed_steps_bench_" + std::to_string(getpid()) + ".gguf";
  TinyLlamaWriter(model).Write(path);
  return path;
}

// A step of sequences that all begin: slot 0 computes the first tokens of a prompt, the others
// decode one token each.
StepPlan Plan(StepId id, int tokens) {
  static const auto sampling =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0});
  StepPlan plan;
  plan.id = id;
  BlockId next_block = 0;
  for (SlotId slot = 0; slot <= kDecoding; ++slot) {
    const int count = slot == 0 ? tokens - kDecoding : 1;
    const auto first_token = static_cast<int32_t>(plan.tokens.size());
    const auto first_block = static_cast<int32_t>(plan.blocks.size());
    for (int i = 0; i < count; ++i) plan.tokens.push_back(10 + (slot + i) % 200);
    for (int at = 0; at < count; at += kBlock) plan.blocks.push_back(next_block++);
    plan.starts.push_back({slot, sampling});
    plan.rows.push_back({.slot = slot,
                         .start = 0,
                         .num_tokens = count,
                         .tokens = {first_token, static_cast<int32_t>(plan.tokens.size())},
                         .blocks = {first_block, static_cast<int32_t>(plan.blocks.size())},
                         .logits = {slot, slot + 1}});
    plan.logits.push_back({.offset = count - 1});
  }
  return plan;
}

// Returns milliseconds a step.
double Time(Executor& executor, int tokens, StepId& id) {
  std::vector<double> runs;
  for (int run = -1; run < kRuns; ++run) {  // the first one warms up
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < kSteps; ++step) {
      CheckOk(executor.Submit(Plan(++id, tokens)));
      if (step > 0) CheckOk(executor.Wait()->status);
    }
    CheckOk(executor.Wait()->status);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (run >= 0) runs.push_back(took.count() / kSteps);
  }
  std::sort(runs.begin(), runs.end());
  return runs[kRuns / 2];
}

std::vector<double> Times(const std::string& path, bool as_graphs) {
  CudaSpec device{{.kv_cache_memory = int64_t{1} << 30,
                   .block_size = kBlock,
                   .max_num_seqs = 64,
                   .max_num_batched_tokens = 2048,
                   .max_model_len = 2048}};
  device.dummy_weights = true;
  if (!as_graphs) device.graph_tokens = 0;
  auto executor = LoadExecutor({path}, device);
  CheckOk(executor.status());
  std::vector<double> times;
  StepId id = 0;
  for (const int tokens : kTokens) times.push_back(Time(**executor, tokens, id));
  return times;
}

void Print(const std::string& path) {
  const std::vector<double> launched = Times(path, false);
  const std::vector<double> graphs = Times(path, true);
  std::printf("%8s %18s %10s\n", "tokens", "launched one by one", "as graphs");
  for (size_t i = 0; i < kTokens.size(); ++i) {
    std::printf("%8d %18.3f %10.3f\n", kTokens[i], launched[i], graphs[i]);
  }
}

}  // namespace
}  // namespace millrace::cuda

int main(int argc, char** argv) {
  if (argc > 1) {
    millrace::cuda::Print(argv[1]);
    return 0;
  }
  const std::string path = millrace::cuda::NarrowModel();
  millrace::cuda::Print(path);
  unlink(path.c_str());
}
