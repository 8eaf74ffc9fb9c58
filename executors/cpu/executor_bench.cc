// Benchmark of the CPU executor: decode at several batch sizes, prefill, and each op's share of the
// time beside the machine's peak rates, measured in the same run.
//
//   executor_bench --model FILE.gguf|FOLDER [--threads N] [--repeat N] [--batches N,...]
//                  [--weight-bits 8|4] [--json]
//
// Medians of `repeat` runs. Decode: after a prompt of 128 tokens, 128 steps, two in flight, greedy.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/control_group.h"
#include "base/status.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/cpu/cpu_model.h"
#include "executors/cpu/machine_rates.h"
#include "executors/cpu/timed_ops.h"
#include "executors/executor_driver_test_util.h"

namespace millrace::cpu {
namespace {

constexpr int kPrompt = 128;
constexpr int kDecodeSteps = 128;
constexpr int kPrefill = 512;
constexpr int kMaxBatch = 64;
constexpr int kTimedBatch = 16;  // sequences of the largest decoding step whose ops are timed

struct Options {
  std::string model;
  int threads = 0;
  int repeat = 5;
  std::vector<int> batches = {1, 4, 8, 16, 32};
  int weight_bits = 0;
  bool json = false;
};

bool ParseBatches(const std::string& text, std::vector<int>* batches) {
  batches->clear();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(part, &batches->emplace_back())) return false;
    if (batches->back() < 1 || batches->back() > kMaxBatch) return false;
  }
  return true;
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns prompts that differ from the first token on.
std::vector<Token> RandomTokens(std::mt19937& random, int count, int vocab_size) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random() % vocab_size);
  return tokens;
}

double DecodeRate(ExecutorDriver& driver, int batch, int vocab_size, std::mt19937& random) {
  std::vector<SlotId> slots;
  for (int i = 0; i < batch; ++i) {
    slots.push_back(driver.Add(RandomTokens(random, kPrompt, vocab_size), {.temperature = 0}));
  }
  driver.Generate(slots, 1, kPrompt);
  const double seconds = Seconds([&] { driver.Decode(slots, kDecodeSteps); });
  for (const SlotId slot : slots) driver.Remove(slot);
  return batch * kDecodeSteps / seconds;
}

double PrefillRate(ExecutorDriver& driver, int vocab_size, std::mt19937& random) {
  const SlotId slot = driver.Add(RandomTokens(random, kPrefill, vocab_size), {.temperature = 0});
  const double seconds = Seconds([&] { driver.Step({{slot, kPrefill}}); });
  driver.Remove(slot);
  return kPrefill / seconds;
}

void Run(const Options& options) {
  std::vector<std::string> json;
  const auto report = [&](const std::string& key, double value, std::string_view unit) {
    if (!options.json)
      std::cout << absl::StrFormat("%-28s %10.1f %s\n", key, value, std::string(unit));
    json.push_back(absl::StrFormat("\"%s\": %.3f", key, value));
  };
  std::mt19937 random(1);

  CpuSpec device;
  device.threads = options.threads;
  device.weight_bits = options.weight_bits;
  device.max_num_seqs =
      std::max(kTimedBatch, *std::max_element(options.batches.begin(), options.batches.end()));
  std::unique_ptr<Executor> executor;
  const double load = Seconds([&] {
    auto loaded = LoadCpuExecutor({options.model}, device);
    CheckOk(loaded.status());
    executor = *std::move(loaded);
  });
  report("load_ms", load * 1e3, "ms");
  const int vocab_size = executor->info().limits.vocab_size;
  ExecutorDriver driver(*executor);
  const auto median = [&](const std::function<double()>& measure) {
    std::vector<double> values;
    for (int i = 0; i < options.repeat; ++i) values.push_back(measure());
    return Median(values);
  };
  for (const int batch : options.batches) {
    report(absl::StrCat("decode_tok_s_batch_", batch),
           median([&] { return DecodeRate(driver, batch, vocab_size, random); }), "tok/s");
  }
  report("prefill_512_tok_s", median([&] { return PrefillRate(driver, vocab_size, random); }),
         "tok/s");
  executor.reset();

  const int threads = options.threads > 0 ? options.threads : UsableCores();
  ThreadPool pool(threads);
  const MachineRates rates = MeasureMachine(pool);
  report("read_gb_s", rates.read_gb_s, "GB/s from memory");
  report("int8_gops", rates.int8_gops, "GOPS, dot products of int8");
  for (const int tokens : {1, kTimedBatch, kPrefill}) {
    auto times = TimeOps(options.model, device, tokens, tokens == kPrefill ? 1 : tokens);
    CheckOk(times.status());
    for (const OpTime& op : *times) {
      const std::string key = absl::StrCat(op.name, "_", tokens);
      report(key + "_us", op.seconds * 1e6, "us a step");
      if (op.weight_bytes == 0) continue;
      report(key + "_read_share", op.weight_bytes / op.seconds / (rates.read_gb_s * 1e9) * 100,
             "% of the read rate");
      report(key + "_int8_share", op.operations / op.seconds / (rates.int8_gops * 1e9) * 100,
             "% of the int8 peak");
    }
  }
  if (options.json) std::cout << "{" << absl::StrJoin(json, ", ") << "}\n";
}

}  // namespace
}  // namespace millrace::cpu

int main(int argc, char** argv) {
  using millrace::cpu::kMaxBatch;
  using millrace::cpu::ParseBatches;
  millrace::cpu::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (flag == "--model") {
      options.model = value();
    } else if (flag == "--threads") {
      options.threads = std::atoi(value().c_str());
    } else if (flag == "--repeat") {
      options.repeat = std::max(1, std::atoi(value().c_str()));
    } else if (flag == "--weight-bits") {
      options.weight_bits = std::atoi(value().c_str());
    } else if (flag == "--batches") {
      const std::string text = value();
      if (!ParseBatches(text, &options.batches)) {
        std::cerr << "--batches is " << text << "; allowed: numbers from 1 to " << kMaxBatch
                  << ", comma-separated\n";
        return 2;
      }
    } else if (flag == "--json") {
      options.json = true;
    } else {
      std::cerr << "unknown flag " << flag
                << "; allowed: --model --threads --repeat --batches --weight-bits --json\n";
      return 2;
    }
  }
  if (options.weight_bits != 0 && options.weight_bits != 4 && options.weight_bits != 8) {
    std::cerr << "--weight-bits is " << options.weight_bits << "; allowed: 4, 8\n";
    return 2;
  }
  if (options.model.empty()) {
    std::cerr << "--model is missing: a GGUF file or a Hugging Face folder\n";
    return 2;
  }
  millrace::cpu::Run(options);
}
