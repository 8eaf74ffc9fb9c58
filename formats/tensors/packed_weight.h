// A weight of four bits whose codes, scales and zero points lie in tensors of their own.
#ifndef MILLRACE_FORMATS_TENSORS_PACKED_WEIGHT_H_
#define MILLRACE_FORMATS_TENSORS_PACKED_WEIGHT_H_

#include <cstdint>
#include <vector>

#include "formats/tensors/quant_scheme.h"
#include "formats/tensors/tensor.h"

namespace millrace {

// The tensors of a linear's weight [out, in], element w[n][k] = scale * (code - zero), with one
// scale and one zero for each n and group of inputs. Words are int32, nibbles of a word counted
// from the lowest; K is in, N is out, G = K / group.
//   GPTQ: codes [K/8, N], code (n, k) is nibble k % 8 of word (k/8, n); scales [G, N]; zeros
//     [G, N/8], zero (g, n) is nibble n % 8 of word (g, n/8). Where the scheme says so, they are
//     less 1: GPTQModel subtracts 0x11111111 from a word, so that a zero of 0 borrows. Of a
//     symmetric weight all nibbles of zeros are 7 or all are 8, whatever the config calls the
//     format: files that lie about it exist, and both mean 8.
//   AWQ: codes [K, N/8], where nibbles 0 to 7 of a word are columns 0, 2, 4, 6, 1, 3, 5, 7 of its
//     eight; scales [G, N]; zeros [G, N/8] in the same order.
//   pack-quantized: codes [N, ceil(K/8)], code (n, k) is nibble k % 8 of word (n, k/8); scales
//     [N, G]; zeros, unless symmetric, [ceil(N/8), G], zero (n, g) is nibble n % 8. The signed
//     numbers that its authors speak of are less 8. A -1 among the groups of inputs: k / group.
// Scales are F16, BF16 or F32.
struct PackedWeight {
  QuantScheme scheme;
  int64_t rows = 0;       // N, or half of it where a shared expert's gate and up are stored as one
  int64_t columns = 0;    // K
  int64_t first_row = 0;  // among the N: the gate's come first
  int64_t group = 0;      // inputs in a group, a divisor of K
  const TensorInfo* codes = nullptr;
  const TensorInfo* scales = nullptr;
  const TensorInfo* zeros = nullptr;   // or nullptr: all are 8
  const TensorInfo* groups = nullptr;  // [K], I32: the group of each input; nullptr: k / group

  int64_t num_groups() const { return columns / group; }
  // Returns those of the four tensors that the weight has.
  std::vector<const TensorInfo*> Stored() const;
};

// Returns the type as which a packed weight is presented and in which its elements can be kept:
// kInt4x128 if whole blocks fit the row and its groups, else kInt4x32.
TensorType PackedType(const QuantScheme& scheme, int64_t columns);

// Returns the bytes of a row of this type, filled up to whole blocks.
uint64_t RowBytes(TensorType type, int64_t columns);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_PACKED_WEIGHT_H_
