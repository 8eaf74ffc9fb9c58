#include "kernels/gemm/gemm_table.h"

#include <string>

namespace millrace::kernels {
namespace {

constexpr bool kExact = true, kAny = false;

constexpr TableRow kTable[] = {
#include "kernels/gemm/gemm_table.inc"
};

}  // namespace

std::span<const TableRow> GemmTable() { return kTable; }

std::optional<GemmRanges> FindInTable(const GemmDesc& desc, bool exact) {
  const std::string text = ToString(desc);
  for (const TableRow& row : kTable) {
    if (row.desc == text && row.exact == exact) return ParseGemmRanges(row.ranges);
  }
  return std::nullopt;
}

}  // namespace millrace::kernels
