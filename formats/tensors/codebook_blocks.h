// Reads the types of ggml that store a few bits an element as indices of points of a lattice:
// IQ4_XS, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M and IQ1_S (block_iq* in its ggml-common.h).
#ifndef MILLRACE_FORMATS_TENSORS_CODEBOOK_BLOCKS_H_
#define MILLRACE_FORMATS_TENSORS_CODEBOOK_BLOCKS_H_

#include <cstdint>

#include "formats/tensors/tensor.h"

namespace millrace {

// Every element of these types is value * (d * unit * scale), where `value` is one of at most 16
// integers and 16 consecutive elements share a scale. So a 4-bit code for the value loses nothing,
// whatever the number of bits in the file.

// The scales of a block of 256 elements.
struct CodebookScales {
  uint16_t d;  // f16
  int8_t halves[16];
};
CodebookScales ReadCodebookScales(TensorType type, const uint8_t* block);

// Reads the 4-bit codes of elements [32 * part, 32 * part + 32) of a block of 256.
void ReadCodebookCodes(TensorType type, const uint8_t* block, int part, uint8_t codes[32]);

// The values of the 16 codes. IQ4_XS has IQ4_NL's. In the others bit 3 is the element's sign, or
// the sign of IQ1's shift, and the lower bits count the lattice's levels; codes that no file can
// hold stand for 0.
inline constexpr int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kIq3SValues[16] = {1,  3,  5,  7,  9,  11,  13,  15,
                                           -1, -3, -5, -7, -9, -11, -13, -15};
inline constexpr int8_t kIq3XxsValues[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                             -4, -12, -20, -28, -36, -44, -52, -62};
inline constexpr int8_t kIq2Values[16] = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43, 0, 0, 0, 0, 0};
// Eights of a level of -1, 0 or 1, and an eighth that is added or taken away.
inline constexpr int8_t kIq1Values[16] = {-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7, 0, 0, 0, 0, 0};

// 1 / unit.
inline constexpr int kIq3XxsDivisor = 4;
inline constexpr int kIq2Divisor = 8;
inline constexpr int kIq1Divisor = 8;

// Returns the unit of a type: a power of two, so that products with it are exact.
float CodebookUnit(TensorType type);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_CODEBOOK_BLOCKS_H_
