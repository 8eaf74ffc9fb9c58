// Test fixtures of the sampler: its device memory, and logits of all kinds.
#ifndef MILLRACE_KERNELS_SAMPLING_SAMPLE_TEST_UTIL_H_
#define MILLRACE_KERNELS_SAMPLING_SAMPLE_TEST_UTIL_H_

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sampling/sample.h"
#include "kernels/test_util.h"

namespace millrace::kernels {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr SlotSampling kGreedy = {.temperature = 0,
                                         .top_k = 0,
                                         .top_p = 1,
                                         .min_p = 0,
                                         .seed = 1,
                                         .sample_index = 0,
                                         .top_logprobs = -1,
                                         .repetition_penalty = 1,
                                         .frequency_penalty = 0,
                                         .presence_penalty = 0,
                                         .prompt_length = 0,
                                         .num_banned = 0,
                                         .banned_before = 0,
                                         .num_biases = 0,
                                         .typical_p = 1};

struct Filters {
  float temperature = 1;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float typical_p = 1;
};

inline SlotSampling With(const Filters& filters, uint64_t seed = 1) {
  SlotSampling slot = kGreedy;
  slot.temperature = filters.temperature;
  slot.top_k = filters.top_k;
  slot.top_p = filters.top_p;
  slot.min_p = filters.min_p;
  slot.typical_p = filters.typical_p;
  slot.seed = seed;
  return slot;
}

inline int Stride(int vocab_size) { return (vocab_size + 3) / 4 * 4 + 8; }

// Consecutive rows of logits, with NaN between the end of the vocabulary and the end of the row.
inline std::vector<float> Strided(const std::vector<std::vector<float>>& rows) {
  const int stride = Stride(static_cast<int>(rows[0].size()));
  std::vector<float> all(rows.size() * stride, NAN);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(), all.begin() + i * stride);
  }
  return all;
}

// A step's outputs on the host.
struct Outputs {
  std::vector<SampleResult> results;
  std::vector<SampleTop> tops;
  std::vector<int32_t> last_tokens;
  std::vector<int32_t> history;

  const SampleTop* Top(int row) const { return &tops[row * kMaxSampledTop]; }
  // Returns all bits that belong to a row, for comparison.
  std::string Row(int row, int num_top) const {
    std::string bits(reinterpret_cast<const char*>(&results[row]), sizeof(SampleResult));
    return bits.append(reinterpret_cast<const char*>(Top(row)), num_top * sizeof(SampleTop));
  }
};

// A sampler's device memory.
class Device {
 public:
  static constexpr int kBiases = 1024;
  static constexpr int kHistory = 2048;

  Device(int vocab_size, int max_rows, int max_slots)
      : logits_(size_t{1} * max_rows * Stride(vocab_size)),
        adjusted_(logits_.size()),
        num_rows_(1),
        rows_(max_rows),
        slots_(max_slots),
        biases_(size_t{1} * max_slots * kBiases),
        history_(size_t{1} * max_slots * kHistory),
        masks_(size_t{1} * max_rows * ((vocab_size + 31) / 32)),
        workspace_(SampleWorkspaceBytes(max_rows, vocab_size)),
        last_tokens_(max_slots),
        results_(max_rows),
        tops_(size_t{1} * max_rows * kMaxSampledTop),
        args_{.logits = logits_.get(),
              .logits_stride = Stride(vocab_size),
              .vocab_size = vocab_size,
              .max_rows = max_rows,
              .num_rows = num_rows_.get(),
              .rows = rows_.get(),
              .slots = slots_.get(),
              .biases = biases_.get(),
              .biases_stride = kBiases,
              .history = history_.get(),
              .history_stride = kHistory,
              .adjusted = adjusted_.get(),
              .workspace = workspace_.get(),
              .last_tokens = last_tokens_.get(),
              .results = results_.get(),
              .tops = tops_.get(),
              .masks = masks_.get(),
              .masks_stride = (vocab_size + 31) / 32} {}

  const SampleArgs& args() const { return args_; }

  void SetLogits(const std::vector<float>& logits) { Set(logits_, logits); }
  void SetRows(const std::vector<SampleRow>& rows) {
    Set(rows_, rows);
    num_rows_.Upload({static_cast<int32_t>(rows.size())});
  }
  void SetLogitSpec(float factor, float soft_cap) {
    args_.logit_factor = factor;
    args_.logit_soft_cap = soft_cap;
  }
  std::vector<float> DownloadLogits() const {
    EXPECT_TRUE(logits_.GuardsIntact());
    return logits_.Download();
  }
  void SetSlots(const std::vector<SlotSampling>& slots) { Set(slots_, slots); }
  void SetBiases(int slot, const std::vector<TokenBias>& biases) {
    CheckCuda(cudaMemcpy(biases_.get() + slot * kBiases, biases.data(),
                         biases.size() * sizeof(TokenBias), cudaMemcpyHostToDevice),
              "biases");
  }
  // Sets the first masks, which lie one behind the other.
  void SetMasks(const std::vector<uint32_t>& masks) { Set(masks_, masks); }
  void SetHistory(int slot, const std::vector<int32_t>& tokens) {
    CheckCuda(cudaMemcpy(history_.get() + slot * kHistory, tokens.data(), tokens.size() * 4,
                         cudaMemcpyHostToDevice),
              "history");
  }
  void PoisonOutputs() {
    workspace_.Poison();
    adjusted_.Poison();
    results_.Poison();
    tops_.Poison();
    last_tokens_.Poison();
  }

  Outputs Run() {
    PoisonOutputs();
    CheckCuda(LaunchSample(args_, nullptr), "launch");
    return Read();
  }
  Outputs Read() const {
    Outputs out = {results_.Download(), tops_.Download(), last_tokens_.Download(),
                   history_.Download()};
    EXPECT_TRUE(adjusted_.GuardsIntact() && workspace_.GuardsIntact() && results_.GuardsIntact() &&
                tops_.GuardsIntact() && last_tokens_.GuardsIntact() && history_.GuardsIntact());
    return out;
  }

 private:
  template <typename T>
  static void Set(DeviceBuffer<T>& buffer, const std::vector<T>& values) {
    ASSERT_LE(values.size(), buffer.size());
    CheckCuda(
        cudaMemcpy(buffer.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        "upload");
  }

  DeviceBuffer<float> logits_, adjusted_;
  DeviceBuffer<int32_t> num_rows_;
  DeviceBuffer<SampleRow> rows_;
  DeviceBuffer<SlotSampling> slots_;
  DeviceBuffer<TokenBias> biases_;
  DeviceBuffer<int32_t> history_;
  DeviceBuffer<uint32_t> masks_;
  DeviceBuffer<uint8_t> workspace_;
  DeviceBuffer<int32_t> last_tokens_;
  DeviceBuffer<SampleResult> results_;
  DeviceBuffer<SampleTop> tops_;
  SampleArgs args_;
};

// ---- Kinds of logits ----

enum Kind {
  kPeaked,
  kNormal,
  kFlat,
  kEqual,
  kQuantized,
  kTwoLevels,
  kHuge,
  kFalling,
  kRectified,
  kNumKinds
};
inline constexpr const char* kKindNames[] = {
    "peaked", "normal", "flat", "equal", "quantized", "two levels", "huge", "falling", "rectified"};

inline std::vector<float> Logits(Kind kind, int size, uint32_t seed) {
  std::vector<float> x = RandomNormal(size, seed, kind == kFlat ? 0.1f : 3.0f);
  std::mt19937 random(seed);
  for (int i = 0; i < size; ++i) {
    switch (kind) {
      case kPeaked:  // 40 tokens stand out
        x[i] *= 0.7f;
        if (i < 40) x[random() % size] += 10 + 0.2f * static_cast<float>(i);
        break;
      case kEqual:
        x[i] = -1.25f;
        break;
      case kQuantized:  // thousands of ties
        x[i] = std::round(x[i]);
        break;
      case kTwoLevels:
        x[i] = random() % 3 == 0 ? 2.0f : 1.0f;
        break;
      case kHuge:
        x[i] = i % 1000 == 7 ? 1e37f * x[i] : x[i] * 1e30f;
        break;
      case kFalling:  // each tile holds the next one's largest, so that no tile stands out
        x[i] = -0.001f * static_cast<float>(i);
        break;
      case kRectified:  // half of them zero, of both signs
        if (x[i] < 0) x[i] = i % 3 == 0 ? -0.0f : 0.0f;
        break;
      default:
        break;
    }
  }
  return x;
}

inline constexpr Filters kFilters[] = {
    {.temperature = 0},
    {.temperature = 1},
    {.temperature = 0.3f},
    {.temperature = 2},
    {.temperature = 1e-20f},
    {.temperature = 1, .top_k = 1},
    {.temperature = 1, .top_k = 2},
    {.temperature = 1, .top_k = 50},
    {.temperature = 2, .top_k = 300},
    {.temperature = 1, .top_k = 3000},
    {.temperature = 1, .top_k = 1 << 30},
    {.temperature = 1, .top_p = 0.5f},
    {.temperature = 1, .top_p = 0.9f},
    {.temperature = 2, .top_p = 0.999f},
    {.temperature = 1, .top_p = 1e-6f},
    {.temperature = 1, .min_p = 0.05f},
    {.temperature = 1, .min_p = 1},
    {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f},
    {.temperature = 1.5f, .top_k = 5000, .top_p = 0.3f},
    {.temperature = 1.5f, .top_k = 5000, .top_p = 0.999f},
    {.temperature = 1, .top_k = 40, .top_p = 0.95f, .min_p = 0.02f},
    {.temperature = 1, .top_p = 0.95f, .min_p = 1e-4f},
    {.temperature = 1, .typical_p = 0.9f},
    {.temperature = 1.5f, .typical_p = 0.2f},
    {.temperature = 0.7f, .typical_p = 1e-6f},
    {.temperature = 1, .typical_p = 0.99999f},
    {.temperature = 1, .top_k = 50, .typical_p = 0.5f},
    {.temperature = 1.3f, .top_k = 4000, .top_p = 0.95f, .min_p = 1e-5f, .typical_p = 0.7f},
    {.temperature = 1, .top_p = 0.9f, .typical_p = 0.6f},
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_SAMPLING_SAMPLE_TEST_UTIL_H_
