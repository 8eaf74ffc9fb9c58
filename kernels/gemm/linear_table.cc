#include "kernels/gemm/linear_table.h"

#include <algorithm>
#include <iterator>

#include "kernels/types.h"

namespace millrace::kernels {
namespace {

struct TableRow {
  LinearShape shape;
  bool exact;
  bool fast_accumulation;
  int64_t tokens;  // one of kTokenBounds
  TunedAlgorithm tuned;
};

constexpr Type kBf16 = Type::kBf16, kF32 = Type::kF32, kFp8 = Type::kFp8;
constexpr bool kExact = true, kAny = false, kFull = false;

constexpr LinearShape Shape(int64_t rows, int64_t stride, Type type, Type output) {
  return {.rows = rows, .stride = stride, .type = type, .blocks = false, .output = output};
}

constexpr TableRow kTable[] = {
#include "kernels/gemm/linear_table.inc"
};

constexpr bool IsWellFormed(const TableRow& row) {
  const int64_t run_tokens = row.tuned.run_tokens;
  const bool padded = run_tokens > row.tokens;
  return std::find(std::begin(kTokenBounds), std::end(kTokenBounds), row.tokens) !=
             std::end(kTokenBounds) &&
         run_tokens >= row.tokens && (!padded || run_tokens <= LinearRoom(row.tokens)) &&
         (!padded || row.shape.output == kBf16) && (!row.exact || IsExact(row.tuned.config));
}
static_assert(std::all_of(std::begin(kTable), std::end(kTable), IsWellFormed));

}  // namespace

const TunedAlgorithm* FindTuned(const LinearShape& shape, const LinearOptions& options,
                                int64_t tokens) {
  const auto bound = std::find_if(std::begin(kTokenBounds), std::end(kTokenBounds),
                                  [&](int64_t bound) { return tokens <= bound; });
  if (bound == std::end(kTokenBounds)) return nullptr;
  for (const TableRow& row : kTable) {
    if (row.shape == shape && row.exact == options.exact &&
        row.fast_accumulation == options.fast_accumulation && row.tokens == *bound) {
      return &row.tuned;
    }
  }
  return nullptr;
}

}  // namespace millrace::kernels
