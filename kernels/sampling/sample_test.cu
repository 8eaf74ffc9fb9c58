#include "kernels/sampling/sample.h"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "kernels/sampling/sample_reference.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr SlotSampling kGreedy = {.temperature = 0,
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
                                  .num_biases = 0};

struct Filters {
  float temperature = 1;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
};

SlotSampling With(const Filters& filters, uint64_t seed = 1) {
  SlotSampling slot = kGreedy;
  slot.temperature = filters.temperature;
  slot.top_k = filters.top_k;
  slot.top_p = filters.top_p;
  slot.min_p = filters.min_p;
  slot.seed = seed;
  return slot;
}

int Stride(int vocab_size) { return (vocab_size + 3) / 4 * 4 + 8; }

// Rows of logits, one after another, with NaN between the vocabulary's end and the row's.
std::vector<float> Strided(const std::vector<std::vector<float>>& rows) {
  const int stride = Stride(static_cast<int>(rows[0].size()));
  std::vector<float> all(rows.size() * stride, NAN);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(), all.begin() + i * stride);
  }
  return all;
}

// What a step leaves, on the host.
struct Outputs {
  std::vector<SampleResult> results;
  std::vector<SampleTop> tops;
  std::vector<int32_t> last_tokens;
  std::vector<int32_t> history;

  const SampleTop* Top(int row) const { return &tops[row * kMaxSampledTop]; }
  // All bits that belong to a row, for comparison.
  std::string Row(int row, int num_top) const {
    std::string bits(reinterpret_cast<const char*>(&results[row]), sizeof(SampleResult));
    return bits.append(reinterpret_cast<const char*>(Top(row)), num_top * sizeof(SampleTop));
  }
};

// A sampler's memory on the device.
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
              .tops = tops_.get()} {}

  const SampleArgs& args() const { return args_; }

  void SetLogits(const std::vector<float>& logits) { Set(logits_, logits); }
  void SetRows(const std::vector<SampleRow>& rows) {
    Set(rows_, rows);
    num_rows_.Upload({static_cast<int32_t>(rows.size())});
  }
  void SetSlots(const std::vector<SlotSampling>& slots) { Set(slots_, slots); }
  void SetBiases(int slot, const std::vector<TokenBias>& biases) {
    CheckCuda(cudaMemcpy(biases_.get() + slot * kBiases, biases.data(),
                         biases.size() * sizeof(TokenBias), cudaMemcpyHostToDevice),
              "biases");
  }
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
  DeviceBuffer<uint8_t> workspace_;
  DeviceBuffer<int32_t> last_tokens_;
  DeviceBuffer<SampleResult> results_;
  DeviceBuffer<SampleTop> tops_;
  SampleArgs args_;
};

// ---- Kinds of logits ----

enum Kind { kPeaked, kNormal, kFlat, kEqual, kQuantized, kTwoLevels, kHuge, kFalling, kNumKinds };
constexpr const char* kKindNames[] = {"peaked",    "normal",     "flat", "equal",
                                      "quantized", "two levels", "huge", "falling"};

std::vector<float> Logits(Kind kind, int size, uint32_t seed) {
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
      case kFalling:  // a tile holds the next's largest: no tile stands out
        x[i] = -0.001f * static_cast<float>(i);
        break;
      default:
        break;
    }
  }
  return x;
}

constexpr Filters kFilters[] = {
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
};

// Every filter on every kind of logits: what is drawn is what the reference's inversion gives, and
// the best token and the list of the likeliest are exact.
void CheckAgainstReference(int vocab_size, int draws) {
  constexpr int kNumFilters = std::size(kFilters);
  Device device(vocab_size, kNumFilters * draws, kNumFilters);
  for (int kind = 0; kind < kNumKinds; ++kind) {
    SCOPED_TRACE(testing::Message() << kKindNames[kind] << ", " << vocab_size << " tokens");
    const std::vector<float> logits = Logits(static_cast<Kind>(kind), vocab_size, kind + 1);
    const SamplingReference reference(logits);
    std::vector<SlotSampling> slots;
    std::vector<SampleRow> rows;
    for (int f = 0; f < kNumFilters; ++f) {
      slots.push_back(With(kFilters[f], 1000 * f + kind));
      slots.back().top_logprobs = f % 3 == 0 ? kMaxSampledTop : f % 3 - 2;
      for (int i = 0; i < draws; ++i) rows.push_back({.slot = f, .position = i, .target = -1});
    }
    device.SetLogits(Strided(std::vector<std::vector<float>>(rows.size(), logits)));
    device.SetRows(rows);
    device.SetSlots(slots);
    const Outputs out = device.Run();
    for (size_t i = 0; i < rows.size(); ++i) {
      const SlotSampling& slot = slots[rows[i].slot];
      const SampleResult& result = out.results[i];
      SCOPED_TRACE(testing::Message()
                   << "filter " << rows[i].slot << ", draw " << rows[i].position);
      ASSERT_EQ(result.ok, 1);
      const double uniform = ReferenceUniform(slot.seed, slot.sample_index, rows[i].position);
      ASSERT_TRUE(result.token >= 0 && result.token < vocab_size) << result.token;
      ASSERT_TRUE(reference.Accepts(slot, uniform, result.token)) << result.token;
      if (slot.top_logprobs < 0) continue;
      ASSERT_EQ(result.rank, reference.Rank(result.token));
      const double slack = 2e-6 * std::abs(reference.Logprob(result.token)) + 4e-6;
      ASSERT_NEAR(result.logprob, reference.Logprob(result.token), slack);
      for (int n = 0; n < std::min(slot.top_logprobs, vocab_size); ++n) {
        ASSERT_EQ(out.Top(i)[n].token, reference.order()[n]) << n;
        const double logprob = reference.Logprob(reference.order()[n]);
        ASSERT_NEAR(out.Top(i)[n].logprob, logprob, 2e-6 * std::abs(logprob) + 4e-6) << n;
      }
    }
    for (int f = 0; f < kNumFilters; ++f) EXPECT_GE(out.last_tokens[f], 0);
  }
}

TEST(SampleTest, SmallVocabulariesMatchTheReference) {
  for (const int vocab_size : {1, 2, 3, 255, 256, 257, 1000, 4095, 4097}) {
    CheckAgainstReference(vocab_size, 8);
  }
}

TEST(SampleTest, LargeVocabulariesMatchTheReference) {
  for (const int vocab_size : {32001, 49152, 128256, 151935, 262144}) {
    CheckAgainstReference(vocab_size, 2);
  }
}

TEST(SampleTest, HundredThousandDrawsFollowTheDistribution) {
  constexpr int kVocab = 700, kRows = 4000, kRounds = 25;
  const std::vector<float> logits = RandomNormal(kVocab, 3, 1.5f);
  const std::vector<double> p = SamplingReference(logits).Distribution(0.9f);
  Device device(kVocab, kRows, 1);
  device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
  device.SetSlots({With({.temperature = 0.9f}, 77)});
  std::vector<double> drawn(kVocab);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<SampleRow> rows;
    for (int i = 0; i < kRows; ++i) rows.push_back({0, round * kRows + i, -1});
    device.SetRows(rows);
    for (const SampleResult& result : device.Run().results) ++drawn[result.token];
  }
  double chi_square = 0;
  for (int i = 0; i < kVocab; ++i) {
    const double expected = p[i] * kRows * kRounds;
    chi_square += (drawn[i] - expected) * (drawn[i] - expected) / expected;
  }
  // Mean kVocab - 1, standard deviation sqrt(2 (kVocab - 1)).
  EXPECT_NEAR(chi_square, kVocab - 1, 5 * std::sqrt(2.0 * (kVocab - 1)));
}

// Ties on the edge of a filter go to the lower ids, and all that is kept can be drawn.
TEST(SampleTest, KeptSetsAreExactWithTies) {
  constexpr int kVocab = 5000, kRows = 3000;
  Device device(kVocab, kRows, 1);
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back({0, i, -1});
  device.SetRows(rows);
  std::vector<float> logits(kVocab, 0.0f);
  for (int i = 0; i < kVocab; i += 100) logits[i] = 3;  // 50 of them
  device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
  const struct {
    Filters filters;
    int kept;  // of the likeliest
  } kCases[] = {
      {{.top_k = 20}, 20},
      {{.top_k = 60}, 60},
      {{.min_p = 0.9f}, 50},
      // 50 e^3 of 50 e^3 + 4950 is 0.1687
      {{.top_p = 0.1f}, 30},
      {{.top_k = 60, .top_p = 0.5f}, 26},
  };
  for (const auto& [filters, kept] : kCases) {
    device.SetSlots({With(filters)});
    const Outputs out = device.Run();
    const SamplingReference reference(logits);
    std::vector<int> counts(kVocab);
    for (const SampleResult& result : out.results) ++counts[result.token];
    for (int i = 0; i < kVocab; ++i) {
      const int token = reference.order()[i];
      // The unlikeliest that is kept has e^-3 of 1/50 of the mass: too rare to insist on.
      if (i < std::min(kept, 50)) {
        EXPECT_GT(counts[token], 0) << kept << ": " << token;
      } else if (i >= kept) {
        EXPECT_EQ(counts[token], 0) << kept << ": " << token;
      }
    }
  }
}

TEST(SampleTest, ScoresTargets) {
  constexpr int kVocab = 128257;
  for (const Kind kind : {kNormal, kQuantized, kFalling}) {
    const std::vector<float> logits = Logits(kind, kVocab, 8);
    const SamplingReference reference(logits);
    std::vector<SampleRow> rows;
    for (int i = 0; i < 24; ++i) {
      rows.push_back({0, i, i < 12 ? reference.order()[i * i * 800] : kVocab - 1 - i});
    }
    Device device(kVocab, 24, 2);
    device.SetLogits(Strided(std::vector<std::vector<float>>(24, logits)));
    SlotSampling slot = With({.temperature = 0.5f, .top_k = 3});  // changes nothing
    slot.top_logprobs = 5;
    slot.repetition_penalty = 2;
    device.SetSlots({slot, slot});
    device.SetRows(rows);
    const Outputs out = device.Run();
    for (int i = 0; i < 24; ++i) {
      const int target = rows[i].target;
      EXPECT_EQ(out.results[i].ok, 1);
      EXPECT_EQ(out.results[i].token, target);
      EXPECT_EQ(out.results[i].rank, reference.Rank(target));
      EXPECT_NEAR(out.results[i].logprob, reference.Logprob(target), 2e-5);
      for (int n = 0; n < 5; ++n) EXPECT_EQ(out.Top(i)[n].token, reference.order()[n]);
    }
    EXPECT_EQ(out.last_tokens[0], -1);  // the poison: a scored token is not the next input
  }
}

TEST(SampleTest, BansBiasesAndPenaltiesComeBeforeTheTemperature) {
  constexpr int kVocab = 50001, kPosition = 600, kDraws = 6;
  std::mt19937 random(4);
  std::vector<SlotSampling> slots;
  std::vector<std::vector<TokenBias>> biases;
  std::vector<std::vector<int32_t>> histories;
  const std::vector<float> logits = Logits(kPeaked, kVocab, 6);
  const SamplingReference raw(logits);
  for (int s = 0; s < 12; ++s) {
    SlotSampling slot = With({.temperature = s % 2 ? 0.9f : 0, .top_p = s % 4 == 3 ? 0.9f : 1}, s);
    slot.top_logprobs = 3;
    slot.prompt_length = 250;
    if (s % 3 == 0) slot.repetition_penalty = 1.3f;
    if (s % 3 == 1) slot.frequency_penalty = 0.7f, slot.presence_penalty = -0.4f;
    if (s == 11) slot.repetition_penalty = 0.5f, slot.frequency_penalty = 0.1f;
    slot.num_banned = s % 5;
    slot.banned_before = s % 2 ? kPosition + 3 : kPosition - 1;
    slot.num_biases = s % 4 * 100;
    slots.push_back(slot);
    std::vector<TokenBias> list;
    for (int i = 0; i < slot.num_banned; ++i) list.push_back({raw.order()[i / 2], NAN});
    for (int i = 0; i < slot.num_biases; ++i) {
      list.push_back({raw.order()[i * 3], static_cast<float>(random() % 100) / 10 - 5});
    }
    biases.push_back(list);
    std::vector<int32_t> history(kPosition + kDraws);
    for (int32_t& token : history) token = raw.order()[random() % (random() % 2 ? 20 : kVocab)];
    histories.push_back(history);
  }
  Device device(kVocab, static_cast<int>(slots.size()), static_cast<int>(slots.size()));
  device.SetLogits(Strided(std::vector<std::vector<float>>(slots.size(), logits)));
  device.SetSlots(slots);
  for (size_t s = 0; s < slots.size(); ++s) {
    if (!biases[s].empty()) device.SetBiases(s, biases[s]);
    device.SetHistory(s, histories[s]);
  }
  for (int draw = 0; draw < kDraws; ++draw) {  // each sees what the one before wrote
    std::vector<SampleRow> rows;
    for (size_t s = 0; s < slots.size(); ++s) {
      rows.push_back({static_cast<int32_t>(s), kPosition + draw, -1});
    }
    device.SetRows(rows);
    const Outputs out = device.Run();
    for (size_t s = 0; s < slots.size(); ++s) {
      const SamplingReference adjusted(
          ReferenceAdjust(logits, rows[s], slots[s], biases[s], histories[s]));
      const int token = out.results[s].token;
      ASSERT_EQ(out.results[s].ok, 1);
      EXPECT_TRUE(
          adjusted.Accepts(slots[s], ReferenceUniform(slots[s].seed, 0, kPosition + draw), token))
          << "slot " << s << ", draw " << draw << ", token " << token;
      EXPECT_EQ(out.results[s].rank, raw.Rank(token));
      EXPECT_NEAR(out.results[s].logprob, raw.Logprob(token), 2e-5);
      EXPECT_EQ(out.Top(s)[0].token, raw.order()[0]);
      EXPECT_EQ(out.last_tokens[s], token);
      EXPECT_EQ(out.history[s * Device::kHistory + kPosition + draw], token);
      histories[s][kPosition + draw] = token;
    }
  }
}

TEST(SampleTest, ARowThatIsNotFiniteFailsAlone) {
  constexpr int kVocab = 9001;
  const std::vector<float> good = Logits(kNormal, kVocab, 2);
  std::vector<std::vector<float>> rows_logits(12, good);
  int at = 0;
  for (const float bad : {NAN, kInfinity, -kInfinity}) {
    rows_logits[4 * (at % 3)][0] = bad;
    rows_logits[4 * (at % 3) + 1][kVocab - 1] = bad;
    rows_logits[4 * (at % 3) + 2][4321] = bad;
    ++at;
  }
  Device device(kVocab, 12, 13);
  device.SetLogits(Strided(rows_logits));
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> rows;
  for (int i = 0; i < 12; ++i) {
    slots.push_back(With(kFilters[i], 3));
    slots.back().top_logprobs = 2;
    rows.push_back({i, i, i % 5 == 4 ? 100 : -1});
  }
  device.SetSlots(slots);
  device.SetRows(rows);
  const Outputs mixed = device.Run();
  device.SetLogits(Strided(std::vector<std::vector<float>>(12, good)));
  const Outputs all_good = device.Run();
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(mixed.results[i].ok, i % 4 == 3) << i;
    EXPECT_EQ(all_good.results[i].ok, 1) << i;
    if (i % 4 == 3) {
      EXPECT_EQ(mixed.Row(i, 2), all_good.Row(i, 2)) << i;
    } else {
      EXPECT_EQ(mixed.results[i].token, 0) << i;
    }
  }
}

TEST(SampleTest, ARowWithAllTokensBannedFails) {
  std::vector<TokenBias> bans;
  for (int i = 0; i < 5; ++i) bans.push_back({i, 0});
  for (const float temperature : {0.0f, 1.0f}) {
    Device device(5, 2, 2);
    SlotSampling slot = With({.temperature = temperature, .top_p = 0.5f});
    slot.num_banned = 5;
    slot.banned_before = 10;
    device.SetSlots({slot, slot});
    device.SetBiases(0, bans);
    device.SetBiases(1, bans);
    device.SetRows({{0, 9, -1}, {1, 10, -1}});
    device.SetLogits(Strided({{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}));
    const Outputs out = device.Run();
    EXPECT_EQ(out.results[0].ok, 0);
    EXPECT_EQ(out.results[1].ok, 1);
  }
}

// Rows of all kinds at once: each has the same bits again, and alone.
TEST(SampleTest, ARowDependsOnItselfAlone) {
  constexpr int kVocab = 128256;
  constexpr int kRows = std::size(kFilters) * 2;
  std::vector<std::vector<float>> logits;
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) {
    logits.push_back(Logits(static_cast<Kind>(i % kNumKinds), kVocab, i));
    slots.push_back(With(kFilters[i / 2], i));
    slots.back().top_logprobs = i % 2 == 0 ? 20 : -1;
    rows.push_back({i, 3 * i, -1});
  }
  Device device(kVocab, kRows, kRows);
  device.SetSlots(slots);
  device.SetRows(rows);
  device.SetLogits(Strided(logits));
  const Outputs together = device.Run();
  const Outputs again = device.Run();
  Device one(kVocab, 1, kRows);
  one.SetSlots(slots);
  for (int i = 0; i < kRows; ++i) {
    const int num_top = i % 2 == 0 ? 20 : 0;
    EXPECT_EQ(together.Row(i, num_top), again.Row(i, num_top)) << i;
    one.SetRows({rows[i]});
    one.SetLogits(Strided({logits[i]}));
    EXPECT_EQ(together.Row(i, num_top), one.Run().Row(0, num_top)) << i;
  }
}

// One captured graph, replayed with other logits, rows, parameters and numbers of rows.
TEST(SampleTest, AGraphReplaysWithWhatTheArraysHold) {
  constexpr int kVocab = 32003, kRows = 8;
  Device device(kVocab, kRows, kRows), direct(kVocab, kRows, kRows);
  device.SetRows({{0, 0, -1}});
  device.SetSlots({kGreedy});
  device.SetLogits(Strided({Logits(kFlat, kVocab, 1)}));
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CheckCuda(LaunchSample(device.args(), stream), "launch");
  CheckCuda(cudaStreamSynchronize(stream), "warm-up");
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  CheckCuda(LaunchSample(device.args(), stream), "launch");
  CheckCuda(cudaStreamEndCapture(stream, &graph), "capture");
  CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int step = 0; step < 100; ++step) {
    std::vector<SampleRow> rows;
    std::vector<SlotSampling> slots;
    std::vector<std::vector<float>> logits;
    for (int i = 0; i < kRows; ++i) {
      slots.push_back(With(kFilters[(step + i) % std::size(kFilters)], step));
      slots.back().top_logprobs = i - 2;
      if (i <= step % kRows) rows.push_back({(i * 3 + step) % kRows, step, -1});
      logits.push_back(Logits(static_cast<Kind>((step / 4 + i) % kNumKinds), kVocab, i));
    }
    Outputs outputs[2];
    for (Device* each : {&device, &direct}) {
      each->SetLogits(Strided(logits));
      each->SetSlots(slots);
      each->SetRows(rows);
      each->PoisonOutputs();
    }
    CheckCuda(cudaGraphLaunch(executable, stream), "replay");
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    outputs[0] = device.Read();
    outputs[1] = direct.Run();
    for (int i = 0; i < kRows; ++i) {  // the rows past the last are poison in both
      ASSERT_EQ(outputs[0].Row(i, kMaxSampledTop), outputs[1].Row(i, kMaxSampledTop)) << step;
      const SampleResult& result = outputs[0].results[i];
      ASSERT_EQ(result.ok, i < static_cast<int>(rows.size()) ? 1 : -1) << step;
    }
    ASSERT_EQ(outputs[0].last_tokens, outputs[1].last_tokens) << step;
  }
  CheckCuda(cudaGraphExecDestroy(executable), "graph");
  CheckCuda(cudaGraphDestroy(graph), "graph");
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

TEST(SampleTest, RefusesBadArguments) {
  Device device(100, 2, 1);
  const auto refused = [&](auto change) {
    SampleArgs args = device.args();
    change(args);
    return LaunchSample(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](SampleArgs& args) { args.vocab_size = 0; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.vocab_size = kMaxSampledVocab + 1; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.logits_stride = 96; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.logits_stride = 102; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.max_rows = 0; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.max_rows = 65536; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.logits += 1; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.rows = nullptr; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.workspace = nullptr; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.results = nullptr; }));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
