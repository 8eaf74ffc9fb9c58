// Runs steps of paged attention in tests, and compares their outputs with the float64 reference.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_TEST_UTIL_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/attention/attention_cases.h"
#include "kernels/test_util.h"

namespace millrace::kernels {

inline int Tokens(const std::vector<StepRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0,
                         [](int sum, const StepRow& row) { return sum + row.tokens; });
}

inline int LongestRow(const std::vector<StepRow>& rows) {
  int longest = 1;
  for (const StepRow& row : rows) longest = std::max(longest, row.tokens);
  return longest;
}

inline std::vector<Bf16> RunStep(AttentionRunner& runner, const std::vector<StepRow>& rows) {
  runner.Upload(rows);
  EXPECT_EQ(runner.Launch(nullptr), cudaSuccess);
  std::vector<Bf16> out = runner.Result();
  EXPECT_TRUE(runner.Intact());
  return out;
}

inline std::vector<Bf16> RunStep(const AttentionWorld& world, const std::vector<StepRow>& rows) {
  AttentionRunner runner(world, rows.size(), Tokens(rows), LongestRow(rows));
  return RunStep(runner, rows);
}

// Returns the bits of one token's outputs without the padding.
inline std::vector<uint16_t> Bits(const AttentionWorld& world, const std::vector<Bf16>& out,
                                  int token) {
  std::vector<uint16_t> bits(world.Case().Width());
  std::memcpy(bits.data(), &out[size_t(token) * world.Case().Stride()], bits.size() * 2);
  return bits;
}

// Compares with float64. Returns the largest row error.
inline double ExpectRight(const AttentionWorld& world, const std::vector<StepRow>& rows) {
  const std::vector<Bf16> out = RunStep(world, rows);
  std::vector<StepRow> tokens;
  for (const StepRow& row : rows) {
    for (int i = 0; i < row.tokens; ++i) tokens.push_back({row.sequence, row.start + i, 1});
  }
  const int width = world.Case().Width();
  std::vector<double> errors(tokens.size()), limits(tokens.size()), largest(tokens.size());
  std::vector<int> padding(tokens.size());
  ParallelFor(tokens.size(), [&](int t) {
    const std::vector<double> reference = world.Reference(tokens[t].sequence, tokens[t].start);
    const Bf16* row = &out[size_t(t) * world.Case().Stride()];
    errors[t] = RowError(row, reference.data(), width);
    // Rounding the output contributes 1.2e-6 on average and, with few columns, sometimes the whole
    // bound. Rounding the probabilities adds about 1e-8, with few columns up to 2e-7.
    std::vector<Bf16> rounded;
    for (const double value : reference) rounded.push_back(__double2bfloat16(value));
    limits[t] = std::max(kBf16RowError, RowError(rounded.data(), reference.data(), width) + 2e-7);
    double magnitude = 0;
    for (int i = 0; i < width; ++i) {
      magnitude = std::max(magnitude, std::abs(reference[i]));
      largest[t] = std::max(largest[t], std::abs(__bfloat162float(row[i]) - reference[i]));
    }
    largest[t] /= magnitude;
    for (int i = width; i < world.Case().Stride(); ++i) {
      padding[t] += __bfloat162float(row[i]) != 0 || std::isnan(__bfloat162float(row[i]));
    }
  });
  double worst = 0;
  int wrong = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    worst = std::max(worst, errors[t]);
    if (errors[t] <= limits[t] && largest[t] <= 0x1p-7 && padding[t] == 0) continue;
    if (++wrong > 3) continue;
    ADD_FAILURE() << world.Case().Name() << ": sequence " << tokens[t].sequence << " position "
                  << tokens[t].start << ": error " << errors[t] << ", largest " << largest[t]
                  << ", padding " << padding[t];
  }
  EXPECT_EQ(wrong, 0) << "of " << tokens.size() << " tokens";
  return worst;
}

// Returns a row for each sequence, of its last tokens: decode rows, and prompts that start
// mid-sequence.
inline std::vector<StepRow> MixedRows(const AttentionCase& c) {
  std::vector<StepRow> rows;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    const int length = c.lengths[s];
    const int tokens = s % 3 == 0 ? 1 : s % 3 == 1 ? std::min(length, 150) : std::min(length, 2);
    rows.push_back({static_cast<int>(s), length - tokens, tokens});
  }
  return rows;
}

// Returns the last token of each sequence.
inline std::vector<StepRow> DecodeRows(const AttentionCase& c) {
  std::vector<StepRow> rows;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    rows.push_back({static_cast<int>(s), c.lengths[s] - 1, 1});
  }
  return rows;
}

// Lengths around the ends of tiles and chunks.
inline const std::vector<int> kLengths = {1, 17, 63, 64, 65, 200, 255, 256, 257, 700, 515, 513};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_TEST_UTIL_H_
