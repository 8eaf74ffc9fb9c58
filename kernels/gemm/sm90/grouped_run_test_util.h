// One launch of a grouped linear on a GroupedProblem, and its reference; for the tests of grouped
// linears.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_RUN_TEST_UTIL_H_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_RUN_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/gemm/grouped_test_util.h"
#include "kernels/gemm/sm90/grouped_linear.h"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {

inline constexpr int kTiles[] = {8, 16, 32, 64, 128};

// One launch: its pairs, and the output, poisoned before.
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
    const GroupedLinearArgs args = {.weight = problem->Weight(),
                                    .rows = &rows.view,
                                    .tokens = tokens,
                                    .slots = slots,
                                    .input = problem->Input(),
                                    .bias = bias ? problem->bias() : nullptr,
                                    .gate = gate,
                                    .output = output.get(),
                                    .output_type = output_type,
                                    .output_stride = output_stride,
                                    .output_scale = output_scale,
                                    .config = {tile, stages, ctas}};
    CheckCuda(cudaDeviceSynchronize(), "poison");
    EXPECT_EQ(launch(args), cudaSuccess);
    const std::vector<uint8_t> bytes = output.Download();
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

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_RUN_TEST_UTIL_H_
