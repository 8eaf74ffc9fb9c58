// What the kernels of a Mamba-2 layer (arXiv:2405.21060) pass to one another: the layer's heads,
// the state at a sequence's slot, and the operands of the scan.
#ifndef MILLRACE_KERNELS_RECURRENT_MAMBA2_TYPES_H_
#define MILLRACE_KERNELS_RECURRENT_MAMBA2_TYPES_H_

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/recurrent/recurrent_rows.h"

namespace millrace::kernels {

inline constexpr int kMamba2Width = 4;      // tokens that the convolution reads
inline constexpr int kMamba2HeadStep = 32;  // what the values of a head are a multiple of

// The heads of a layer, or of a rank's part of it.
struct Mamba2Heads {
  int heads;
  int head_size;  // values of a head: a multiple of kMamba2HeadStep
  int groups;  // heads [g * heads / groups, (g + 1) * heads / groups) read the b and c of group g
  int state_size;  // elements of b and c: 128 or 256

  constexpr int inner() const { return heads * head_size; }
  constexpr int state_width() const { return groups * state_size; }
  // The channels of the convolution: all x, all b, all c.
  constexpr int channels() const { return inner() + 2 * state_width(); }
};

// Floats before the heads' states in a slot: the inputs of the convolution of the last three
// tokens, [3][channels], the oldest first. The states, [heads][head_size][state_size], follow.
constexpr int64_t Mamba2HeadsAt(const Mamba2Heads& heads) {
  return int64_t{kMamba2Width - 1} * heads.channels();
}

constexpr int64_t Mamba2Floats(const Mamba2Heads& heads) {
  return Mamba2HeadsAt(heads) + int64_t{heads.inner()} * heads.state_size;
}

// The scalars of a token and a head.
struct alignas(8) Mamba2Gates {
  float step;   // dt
  float decay;  // exp(dt * A)
};

// The operands of the scan, each 16-byte aligned.
struct Mamba2Operands {
  float* x;            // [tokens, heads, head_size]
  float* bc;           // [tokens, 2, groups, state_size]: all of b, then c
  Mamba2Gates* gates;  // [tokens, heads]
};

inline bool IsValid(const Mamba2Heads& heads) {
  constexpr int kMost = 65535;  // of a grid's second dimension
  return heads.heads > 0 && heads.heads <= kMost && heads.head_size > 0 &&
         heads.head_size <= 1024 && heads.head_size % kMamba2HeadStep == 0 && heads.groups > 0 &&
         heads.heads % heads.groups == 0 && (heads.state_size == 128 || heads.state_size == 256) &&
         int64_t{heads.heads} * heads.head_size <= (int64_t{1} << 20);
}

inline bool IsValid(const RecurrentState& state, const Mamba2Heads& heads) {
  return IsValid(state, Mamba2Floats(heads));
}

inline bool IsValid(const Mamba2Operands& operands) {
  return operands.x != nullptr && IsAligned16(operands.x) && operands.bc != nullptr &&
         IsAligned16(operands.bc) && operands.gates != nullptr && IsAligned16(operands.gates);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_MAMBA2_TYPES_H_
