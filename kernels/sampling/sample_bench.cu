#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/sampling/sample.h"

namespace millrace::kernels {
namespace {

constexpr int kLlama3 = 128256;  // tokens of the vocabulary
constexpr int kQwen2 = 151936;
constexpr int kHistory = 2048;

enum class Kind { kPeaked, kNormal, kFlat };
constexpr const char* kKindNames[] = {"peaked", "N(0,3)", "N(0,0.1)"};

__device__ uint32_t Hash(uint32_t bits) {
  bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
  bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
  return bits ^ (bits >> 16);
}

// Peaked logits: N(0, 2), with 64 tokens per row that lie 6 to 18 higher.
__global__ void FillLogitsKernel(float* logits, size_t size, Kind kind) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    const float u = (Hash(2 * i) >> 8) * 0x1p-24f + 0x1p-25f;
    const float v = (Hash(2 * i + 1) >> 8) * 0x1p-24f;
    const float normal = sqrtf(-2 * logf(u)) * cospif(2 * v);
    float x = normal * (kind == Kind::kPeaked ? 2.0f : kind == Kind::kNormal ? 3.0f : 0.1f);
    if (kind == Kind::kPeaked && Hash(3 * i) % 2004 == 0) x += 6 + 12 * v;
    logits[i] = x;
  }
}

struct Case {
  const char* name;
  SlotSampling slot;
};

SlotSampling Slot(float temperature, int top_k, float top_p, float min_p, int top_logprobs) {
  return {.temperature = temperature,
          .top_k = top_k,
          .top_p = top_p,
          .min_p = min_p,
          .seed = 1,
          .sample_index = 0,
          .top_logprobs = top_logprobs,
          .repetition_penalty = 1,
          .frequency_penalty = 0,
          .presence_penalty = 0,
          .prompt_length = kHistory / 2,
          .num_banned = 0,
          .banned_before = 0,
          .num_biases = 0,
          .typical_p = 1};
}

SlotSampling Typical(SlotSampling slot) {
  slot.typical_p = 0.9f;
  return slot;
}

SlotSampling Penalized(SlotSampling slot) {
  slot.repetition_penalty = 1.1f;
  slot.frequency_penalty = 0.1f;
  return slot;
}

class SampleBench {
 public:
  // The first `masked` rows have masks that allow every other token or so.
  SampleBench(Bench& bench, int rows, Kind kind, int vocab_size = kLlama3, int masked = 0)
      : bench_(bench),
        rows_(rows),
        kind_(kind),
        vocab_size_(vocab_size),
        masked_(masked),
        bytes_(4.0 * rows * vocab_size),
        inputs_(RotatedInputs(bytes_)),
        logits_(size_t{1} * inputs_ * rows * vocab_size),
        adjusted_(size_t{1} * rows * vocab_size),
        masks_(size_t{1} * rows * mask_words()),
        workspace_(SampleWorkspaceBytes(rows, vocab_size)),
        row_array_(rows),
        slots_(rows),
        history_(size_t{1} * rows * kHistory),
        last_tokens_(rows),
        num_rows_(std::vector<int32_t>{rows}),
        results_(rows),
        tops_(size_t{1} * rows * kMaxSampledTop) {
    FillLogitsKernel<<<1024, 256>>>(logits_.get(), logits_.size(), kind);
    std::vector<SampleRow> wanted;
    for (int i = 0; i < rows; ++i) wanted.push_back({i, kHistory - 1, -1, i < masked ? i : -1});
    row_array_.Upload(wanted);
    std::mt19937 random(1);
    std::vector<uint32_t> masks(masks_.size());
    for (uint32_t& word : masks) word = random();
    masks_.Upload(masks);
    std::vector<int32_t> history(history_.size());
    for (size_t i = 0; i < history.size(); ++i) history[i] = i * 7919 % vocab_size;
    history_.Upload(history);
  }

  void Run(const Case& one) {
    slots_.Upload(std::vector<SlotSampling>(rows_, one.slot));
    const double us = bench_.Microseconds(inputs_, [&](int input, cudaStream_t stream) {
      return LaunchSample({.logits = logits_.get() + size_t{1} * input * rows_ * vocab_size_,
                           .logits_stride = vocab_size_,
                           .vocab_size = vocab_size_,
                           .max_rows = rows_,
                           .num_rows = num_rows_.get(),
                           .rows = row_array_.get(),
                           .slots = slots_.get(),
                           .biases = nullptr,
                           .biases_stride = 0,
                           .history = history_.get(),
                           .history_stride = kHistory,
                           .adjusted = adjusted_.get(),
                           .workspace = workspace_.get(),
                           .last_tokens = last_tokens_.get(),
                           .results = results_.get(),
                           .tops = tops_.get(),
                           .masks = masks_.get(),
                           .masks_stride = mask_words()},
                          stream);
    });
    for (const SampleResult& result : results_.Download()) {
      if (result.ok != 1) std::printf("a row failed\n");
    }
    const std::string masked = masked_ > 0 ? ", " + std::to_string(masked_) + " masked" : "";
    bench_.Row(one.name,
               std::to_string(rows_) + " x " + std::to_string(vocab_size_) + " " +
                   kKindNames[static_cast<int>(kind_)] + masked,
               us, bytes_);
  }

 private:
  int mask_words() const { return (vocab_size_ + 31) / 32; }

  Bench& bench_;
  int rows_;
  Kind kind_;
  int vocab_size_;
  int masked_;
  double bytes_;
  int inputs_;
  DeviceBuffer<float> logits_, adjusted_;
  DeviceBuffer<uint32_t> masks_;
  DeviceBuffer<uint8_t> workspace_;
  DeviceBuffer<SampleRow> row_array_;
  DeviceBuffer<SlotSampling> slots_;
  DeviceBuffer<int32_t> history_, last_tokens_, num_rows_;
  DeviceBuffer<SampleResult> results_;
  DeviceBuffer<SampleTop> tops_;
};

// The cost of masks, beside the same rows without.
void RunMasked(Bench& bench) {
  const Case kCases[] = {{"greedy", Slot(0, 0, 1, 0, -1)},
                         {"temperature", Slot(0.8f, 0, 1, 0, -1)},
                         {"top_k 50 + top_p 0.9", Slot(0.8f, 50, 0.9f, 0, -1)},
                         {"top_p 0.9", Slot(0.8f, 0, 0.9f, 0, -1)}};
  for (const int vocab_size : {kLlama3, kQwen2}) {
    for (const int masked : {0, 32, 64}) {
      SampleBench sample(bench, 64, Kind::kPeaked, vocab_size, masked);
      for (const Case& one : kCases) sample.Run(one);
    }
  }
}

void RunAll(bool only_masks) {
  const Case kCases[] = {
      {"greedy", Slot(0, 0, 1, 0, -1)},
      {"greedy + 20 logprobs", Slot(0, 0, 1, 0, 20)},
      {"temperature", Slot(0.8f, 0, 1, 0, -1)},
      {"top_k 50", Slot(0.8f, 50, 1, 0, -1)},
      {"top_k 50 + top_p 0.9", Slot(0.8f, 50, 0.9f, 0, -1)},
      {"top_p 0.9", Slot(0.8f, 0, 0.9f, 0, -1)},
      {"min_p 0.05", Slot(0.8f, 0, 1, 0.05f, -1)},
      {"top_k 5000 + top_p 0.9", Slot(0.8f, 5000, 0.9f, 0, -1)},
      {"typical_p 0.9", Typical(Slot(0.8f, 0, 1, 0, -1))},
      {"top_k 50 + typical_p 0.9", Typical(Slot(0.8f, 50, 1, 0, -1))},
      {"penalties, 2047 tokens", Penalized(Slot(0.8f, 50, 0.9f, 0, -1))},
  };
  Bench bench("sampling (bytes: the logits once)");
  RunMasked(bench);
  if (only_masks) return;
  for (const int rows : {1, 8, 64, 256}) {
    for (const Kind kind : {Kind::kPeaked, Kind::kNormal, Kind::kFlat}) {
      SampleBench sample(bench, rows, kind);
      for (const Case& one : kCases) sample.Run(one);
    }
  }
}

}  // namespace
}  // namespace millrace::kernels

// --masks: only the cost of masks.
int main(int argc, char** argv) {
  millrace::kernels::RunAll(argc > 1 && std::string(argv[1]) == "--masks");
}
