// One launch of a grouped linear on a GroupedProblem, and its reference; for the tests of grouped
// linears.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_RUN_TEST_UTIL_H_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_RUN_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/elementwise/gather_rows.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/grouped_test_util.h"
#include "kernels/gemm/sm90/grouped/dense_tiles.h"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {

// Returns the rows that a tile of a form may have.
inline std::vector<int> TilesOf(const GroupedForm& form) {
  std::vector<int> tiles = {8, 16, 32, 64, kPromptTile};
  if (form.four_bit.has_value()) tiles.push_back(kWideTokens);
  return tiles;
}

// Rows of an input in the order of the groups.
class SortedInput {
 public:
  SortedInput(const Activation& in, int tokens, int slots, const std::vector<int32_t>& ids,
              int groups)
      : order_(HostRows(ids, 0, groups, kPromptTile).order),
        rows_(static_cast<int>(order_.size())),
        pairs_(static_cast<int>(ids.size())),
        data_(std::max(pairs_, 1) * in.stride * (in.type == Type::kBf16 ? 2 : 1)),
        scales_(in.stride / 128 * PaddedTokens(pairs_) + 4),
        view_(in) {
    view_.data = data_.get();
    std::vector<int32_t> tokens_of = order_;
    for (int32_t& pair : tokens_of) pair /= slots;
    tokens_of.resize(std::max(pairs_, 1));  // what lies behind the groups' rows is not used
    const DeviceBuffer<int32_t> indices(tokens_of);
    if (in.type == Type::kFp8 && in.scaling != Scaling::kTensor) view_.scales = scales_.get();
    CheckCuda(LaunchGatherRows({in, tokens, indices.get(), pairs_, view_}, nullptr), "gather");
    CheckCuda(cudaDeviceSynchronize(), "gather");
  }

  const Activation& view() const { return view_; }
  // Moves sorted rows of `bytes` to their pairs' places.
  void ToPairs(int64_t row_bytes, std::vector<uint8_t>& bytes) const {
    const std::vector<uint8_t> sorted = bytes;
    std::fill(bytes.begin(), bytes.end(), 0xff);
    for (int i = 0; i < rows_; ++i) {
      std::copy_n(sorted.begin() + i * row_bytes, row_bytes, bytes.begin() + order_[i] * row_bytes);
    }
    // Nothing was written behind the groups' rows.
    EXPECT_TRUE(std::all_of(sorted.begin() + rows_ * row_bytes, sorted.end(),
                            [](uint8_t byte) { return byte == 0xff; }));
  }

 private:
  const std::vector<int32_t> order_;
  const int rows_, pairs_;
  const DeviceBuffer<uint8_t> data_;
  const DeviceBuffer<float> scales_;
  Activation view_;
};

// One launch: its pairs, and the output, poisoned before. Where the kernel wants it, the input is
// sorted, and of a gated linear the output is, too; what is returned is not.
struct GroupedRun {
  const GroupedProblem* problem;
  std::vector<int32_t> ids;  // of pairs; those outside [0, groups) are left out
  int groups, tokens, slots;
  GroupedGate gate = GroupedGate::kNone;
  Type output_type = Type::kBf16;
  int64_t output_stride;
  const float* output_scale = nullptr;
  bool bias = true;
  int tile = 8;
  int ctas = 1000;
  int stages = 16;

  template <typename Launch>
  std::vector<uint8_t> Bytes(const Launch& launch) const {
    const size_t element = output_type == Type::kF32 ? 4 : output_type == Type::kBf16 ? 2 : 1;
    const DeviceBuffer<uint8_t> output(std::max<size_t>(ids.size(), 1) * output_stride * element);
    const DeviceRows rows(ids, groups, tile);
    const bool sorted = ReadsSorted(problem->Weight(), tile);
    std::optional<SortedInput> sorted_input;
    if (sorted) sorted_input.emplace(problem->Input(), tokens, slots, ids, groups);
    const bool sorts_output = sorted && gate != GroupedGate::kNone;
    const GroupedLinearArgs args = {.weight = problem->Weight(),
                                    .rows = &rows.view,
                                    .tokens = sorted ? rows.view.pairs : tokens,
                                    .slots = sorted ? 1 : slots,
                                    .sorted_input = sorted,
                                    .sorted_output = sorts_output,
                                    .input = sorted ? sorted_input->view() : problem->Input(),
                                    .bias = bias ? problem->bias() : nullptr,
                                    .gate = gate,
                                    .output = output.get(),
                                    .output_type = output_type,
                                    .output_stride = output_stride,
                                    .output_scale = output_scale,
                                    .config = {tile, stages, ctas}};
    CheckCuda(cudaDeviceSynchronize(), "poison");
    EXPECT_EQ(launch(args), cudaSuccess);
    std::vector<uint8_t> bytes = output.Download();
    if (sorts_output) {
      sorted_input->ToPairs(output_stride * static_cast<int64_t>(element), bytes);
    }
    EXPECT_TRUE(output.GuardsIntact() && rows.order.GuardsIntact() && problem->GuardsIntact());
    return bytes;
  }
  std::vector<uint8_t> Bytes() const {
    return Bytes([](const GroupedLinearArgs& args) { return LaunchGroupedLinear(args, nullptr); });
  }
  template <typename T>
  std::vector<T> Values() const {
    const std::vector<uint8_t> bytes = Bytes();
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

inline double Joined(GroupedGate function, double gate, double up) {
  switch (function) {
    case GroupedGate::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case GroupedGate::kGeluTanh:
      return gate / 2 *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    default:
      gate = std::min(gate, 7.0);
      up = std::clamp(up, -7.0, 7.0);
      return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
  }
}

// The row of a pair in double: products and bias, joined.
inline std::vector<double> Reference(const GroupedRun& run, int pair, int64_t rows) {
  const int group = run.ids[pair];
  std::vector<double> values = run.problem->Products(pair / run.slots, group);
  for (int64_t row = 0; row < rows && run.bias; ++row) {
    values[row] += run.problem->host_bias()[group * rows + row];
  }
  if (run.gate == GroupedGate::kNone) return values;
  std::vector<double> joined(rows / 2);
  for (int64_t i = 0; i < rows / 2; ++i) {
    const int64_t row = i / 8 * 16 + i % 8;
    joined[i] = Joined(run.gate, values[row], values[row + 8]);
  }
  return joined;
}

template <typename T>
bool IsPoison(const T* values, int64_t count) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values);
  return std::all_of(bytes, bytes + count * sizeof(T), [](uint8_t byte) { return byte == 0xff; });
}

struct Size {
  int64_t rows, columns;
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_RUN_TEST_UTIL_H_
