// Plans that were measured offline, on an H200, for the shapes of some models: a model that has
// them measures nothing when it is loaded. linear_bench.cu writes the table.
#ifndef MILLRACE_KERNELS_GEMM_GEMM_TABLE_H_
#define MILLRACE_KERNELS_GEMM_GEMM_TABLE_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/gemm/gemm_desc.h"

namespace millrace::kernels {

// The table holds for this version of cuBLASLt and GPUs of this compute capability and SM count.
inline constexpr size_t kTableVersion = 130100;
inline constexpr int kTableCapability = 90;
inline constexpr int kTableSms = 132;

struct TableRow {
  std::string_view desc;
  bool exact;
  std::string_view ranges;
};

std::span<const TableRow> GemmTable();

// Returns the ranges for a product; nothing where it was not measured.
std::optional<GemmRanges> FindInTable(const GemmDesc& desc, bool exact);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_GEMM_TABLE_H_
