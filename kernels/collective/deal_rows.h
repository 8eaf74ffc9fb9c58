// Deals rows out to the ranks of a Communicator: each rank has some columns of all rows, and gets
// all columns of some rows (an all-to-all), or of all rows (an all-gather).
#ifndef MILLRACE_KERNELS_COLLECTIVE_DEAL_ROWS_H_
#define MILLRACE_KERNELS_COLLECTIVE_DEAL_ROWS_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/collective/communicator.h"

namespace millrace::kernels {

// Returns the first of the `share` rows that a rank gets. Every rank gets as many, which the
// protocol of communicator.h needs: where the shares exceed the rows, the last ones overlap those
// before them.
constexpr int FirstDealtRow(int rows, int share, int rank) {
  return std::min(rank * share, rows - share);
}

// Brings rows [first, first + count) of every rank's share:
//   whole[i][rank] = rank's columns[FirstDealtRow + i]
// A rank sends its columns once to each peer, as 16 bytes at a time. A word of a peer's whose bits
// are all ones, which is a NaN, arrives as another NaN.
struct DealRowsArgs {
  Communicator communicator;
  const float* columns;  // [rows, width], 16-byte aligned
  float* whole;          // [share, ranks, width], 16-byte aligned
  int rows;
  int share;  // 1 to rows; `share` * ranks is at least `rows`
  int width;  // a multiple of 4
  int first;
  int count;  // count * width * 4 is at most slot_bytes
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchDealRows(const DealRowsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_DEAL_ROWS_H_
