// What the kernels of a gated delta rule's layer (Gated DeltaNet, arXiv:2412.06464) pass to one
// another: the layer's heads, a step's rows, the state at a sequence's slot, and the operands of
// the rule.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_TYPES_H_
#define MILLRACE_KERNELS_RECURRENT_DELTA_TYPES_H_

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/recurrent/recurrent_rows.h"

namespace millrace::kernels {

inline constexpr int kDeltaHeadSize = 128;  // elements of a key, a query and a value
inline constexpr int kMaxDeltaGroup = 4;    // value heads that share a key head
inline constexpr int kConvolutionTokens = 4;

// Tokens of a block: those at positions [8 n, 8 n + 8) of a sequence. The rule's order of
// arithmetic goes by blocks (delta_rule.h).
inline constexpr int kDeltaBlockTokens = 8;

// The heads of a layer, or of a rank's part of it.
struct DeltaHeads {
  int key_heads;    // of queries, too
  int value_heads;  // 1 to kMaxDeltaGroup times key_heads
  // False: value heads [h * group, (h + 1) * group) read key head h. True: value head v reads key
  // head v % key_heads, as in files of llama.cpp's converter.
  bool interleaved = false;

  constexpr int group() const { return value_heads / key_heads; }
  constexpr int64_t value_width() const { return int64_t{value_heads} * kDeltaHeadSize; }
  // The channels of the convolution: all queries, all keys, all values.
  constexpr int64_t channels() const {
    return int64_t{2} * key_heads * kDeltaHeadSize + value_width();
  }
  // Returns the i-th value head, i < group(), of those that read a key head.
  constexpr int ValueHead(int key_head, int i) const {
    return interleaved ? i * key_heads + key_head : key_head * group() + i;
  }
};

constexpr int64_t ConvolutionFloats(const DeltaHeads& heads) {
  return (kConvolutionTokens - 1) * heads.channels();
}

// Where the parts of a slot begin, in floats. One after the other it has
//   the inputs of the convolution of the last three tokens, [3][channels], the oldest first;
//   the states of the value heads before the sequence's current block,
//     [value_heads][128 values][128 keys], which are zeros, and not stored, in the first block;
//   of the block's tokens so far, by their place in the block: the keys, [7][key_heads][128], the
//     deltas, [7][value_heads][128], and the decays, [7][value_heads].
// A sequence at position p has p % 8 such tokens; what the slot holds of others has no meaning.
struct StateParts {
  int64_t heads;
  int64_t keys;
  int64_t deltas;
  int64_t decays;
  int64_t size;  // a multiple of 4

  constexpr explicit StateParts(const DeltaHeads& of)
      : heads(ConvolutionFloats(of)),
        keys(heads + of.value_width() * kDeltaHeadSize),
        deltas(keys + int64_t{kKept} * of.key_heads * kDeltaHeadSize),
        decays(deltas + kKept * of.value_width()),
        size((decays + int64_t{kKept} * of.value_heads + 3) / 4 * 4) {}

 private:
  static constexpr int kKept = kDeltaBlockTokens - 1;  // the last token ends the block
};

constexpr int64_t StateFloats(const DeltaHeads& heads) { return StateParts(heads).size; }

// The scalars of a token and a key head. Element i belongs to the i-th value head that reads it;
// elements from the group's size on are not used.
struct DeltaGates {
  float decay[kMaxDeltaGroup];
  float beta[kMaxDeltaGroup];
  float query_key;  // the product of query and key
  float unused[3];  // keeps the elements 16-byte aligned
};

// The factors of a block and a value head: what its tokens do to one another. With g_i the decay of
// token i, L(t, j) = g_t g_(t-1) ... g_(j+1), multiplied in this order.
struct DeltaWeights {
  // [j / 4][t][j % 4], so that quads of neighbouring tokens are neighbours. Of delta t for j < t:
  // -(beta_t (L(t, j) (k_j k_t))); and at j = 7 L(t, 0) g_0, the decay since the block began.
  float deltas[2][kDeltaBlockTokens][4];
  // The same of output t for j <= t: L(t, j) (k_j q_t).
  float outputs[2][kDeltaBlockTokens][4];
  float beta[kDeltaBlockTokens];
  float fold[kDeltaBlockTokens];  // L(7, j)

  constexpr float delta(int t, int j) const { return deltas[j / 4][t][j % 4]; }
  constexpr float output(int t, int j) const { return outputs[j / 4][t][j % 4]; }
  constexpr float start(int t) const { return deltas[1][t][3]; }
};

// The operands of the rule, each 16-byte aligned.
struct DeltaOperands {
  float* keys_queries;  // [tokens, key_heads, 2, 128]: the key, then the query
  float* values;        // [tokens, value_heads, 128]
  DeltaGates* gates;    // [tokens, key_heads]
};

inline bool IsValid(const DeltaHeads& heads) {
  return heads.key_heads > 0 && heads.value_heads > 0 && heads.value_heads % heads.key_heads == 0 &&
         heads.group() <= kMaxDeltaGroup && heads.channels() <= (int64_t{1} << 22);
}

inline bool IsValid(const RecurrentState& state, const DeltaHeads& heads) {
  return IsValid(state, StateFloats(heads));
}

inline bool IsValid(const DeltaOperands& operands) {
  return operands.keys_queries != nullptr && IsAligned16(operands.keys_queries) &&
         operands.values != nullptr && IsAligned16(operands.values) && operands.gates != nullptr &&
         IsAligned16(operands.gates);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_TYPES_H_
