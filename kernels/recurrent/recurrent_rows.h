// What the kernels of all recurrent layers take: a step's rows, and the state at sequences' slots.
#ifndef MILLRACE_KERNELS_RECURRENT_RECURRENT_ROWS_H_
#define MILLRACE_KERNELS_RECURRENT_RECURRENT_ROWS_H_

#include <cstdint>

#include "kernels/arguments.h"

namespace millrace::kernels {

// The rows of a step, as attention takes them (AttentionStep): the arrays lie in device memory and
// may change between replays of a graph; the numbers belong to the host and are upper bounds. A row
// is consecutive tokens of one sequence. It may have none: nothing of it is read or written then.
// No two rows with tokens share a slot, but for padding rows: their slot's content is then any
// one's of them. The positions of padding rows must not follow one another: eight from a multiple
// of eight on would be taken for a block.
struct RecurrentRows {
  int rows;
  int max_tokens;      // of the step: row_first[rows] <= max_tokens
  int max_row_tokens;  // of a row; 1 in a graph of decode rows
  // Row r consists of the step's tokens [row_first[r], row_first[r + 1]). The first is at position
  // row_start[r] of the sequence whose state lies at slot row_slot[r].
  const int32_t* row_first;  // [rows + 1], ascending from 0
  const int32_t* row_start;  // [rows]
  const int32_t* row_slot;   // [rows]
  const int32_t* positions;  // [max_tokens]: of each token in its sequence
  const int32_t* slots;      // [max_tokens]
};

// The state of one layer, in float32: slot s begins at data[s * slot_stride], and the kind of layer
// says what lies there. A row that begins at position 0 reads nothing of its slot; another goes on
// from what the row before it left.
struct RecurrentState {
  float* data;          // 16-byte aligned
  int64_t slot_stride;  // floats, a multiple of 4, at least those of a slot
};

inline bool IsValid(const RecurrentRows& rows) {
  constexpr int kMaxRows = 65535;  // of a grid's last dimension
  return rows.rows >= 0 && rows.rows <= kMaxRows && rows.max_tokens >= 0 &&
         rows.max_row_tokens >= 0 && rows.max_row_tokens <= rows.max_tokens &&
         rows.row_first != nullptr && rows.row_start != nullptr && rows.row_slot != nullptr &&
         rows.positions != nullptr && rows.slots != nullptr;
}

inline bool IsValid(const RecurrentState& state, int64_t floats) {
  return state.data != nullptr && IsAligned16(state.data) && state.slot_stride % 4 == 0 &&
         state.slot_stride >= floats;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_RECURRENT_ROWS_H_
