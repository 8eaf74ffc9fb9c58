// The layout of a packed step: the one place that says which arrays it has, in which order, and how
// many 32-bit words an element takes. The host sizes its memory and packs by it, and step_input.cu
// reads by it.
#ifndef MILLRACE_KERNELS_STEP_STEP_LAYOUT_H_
#define MILLRACE_KERNELS_STEP_STEP_LAYOUT_H_

#include <cstdint>

#include "kernels/sampling/sample.h"

namespace millrace::kernels {

// The numbers of elements of a packed step's arrays.
struct StepCounts {
  int copies = 0;
  int rows = 0;  // some may have no tokens
  int host_tokens = 0;
  int wanted = 0;
  int appends = 0;
  int biases = 0;
  int history = 0;
  int starts = 0;
};

// The words of an element.
inline constexpr int kCopyWords = 2;
inline constexpr int kAppendWords = 3;
inline constexpr int kBiasWords = 4;
inline constexpr int kHistoryWords = 3;
inline constexpr int kSamplingWords = sizeof(SlotSampling) / sizeof(int32_t);
static_assert(sizeof(SlotSampling) % sizeof(int32_t) == 0);

// Where each array begins, in words. Arrays follow one another without gaps. The copies come first,
// so that they are aligned as the memory is; 4 bytes suffice for all other arrays.
struct StepLayout {
  constexpr explicit StepLayout(const StepCounts& n)
      : row_first(copies + int64_t{kCopyWords} * n.copies),
        row_start(row_first + n.rows + 1),
        row_slot(row_start + n.rows),
        row_source(row_slot + n.rows),
        host_tokens(row_source + n.rows),
        wanted_token(host_tokens + n.host_tokens),
        wanted_row(wanted_token + n.wanted),
        wanted_target(wanted_row + n.wanted),
        wanted_mask(wanted_target + n.wanted),
        appends(wanted_mask + n.wanted),
        biases(appends + int64_t{kAppendWords} * n.appends),
        history(biases + int64_t{kBiasWords} * n.biases),
        start_slots(history + int64_t{kHistoryWords} * n.history),
        starts(start_slots + n.starts),
        end(starts + int64_t{kSamplingWords} * n.starts) {}

  int64_t copies = 0;     // [copies][2]: source, destination; a group's lie together
  int64_t row_first;      // [rows + 1]: a row's first token in the step; the last one is the number
                          // of the step's tokens
  int64_t row_start;      // [rows]: the position of that token in the sequence
  int64_t row_slot;       // [rows]
  int64_t row_source;     // [rows]: the row's first token's index in host_tokens, or kSampled
  int64_t host_tokens;    // [host_tokens]
  int64_t wanted_token;   // [wanted]: the index in the step of a token whose logits are wanted
  int64_t wanted_row;     // [wanted]
  int64_t wanted_target;  // [wanted]: the token to score, or kSample
  int64_t wanted_mask;    // [wanted]: the row of the step's masks, or kUnmasked
  int64_t appends;        // [appends][3]: row of StepArrays::block_tables, index in it, block
  int64_t biases;         // [biases][4]: slot, index in its list, token, bias (a float's bits)
  int64_t history;        // [history][3]: slot, position, token
  int64_t start_slots;    // [starts]
  int64_t starts;         // [starts][kSamplingWords]
  int64_t end;            // the words of the step

  static constexpr int32_t kSampled = -1;
  static constexpr int32_t kSample = -1;
  static constexpr int32_t kUnmasked = -1;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_STEP_STEP_LAYOUT_H_
