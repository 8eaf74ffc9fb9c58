// The CPU executor's inner loops, as a table of functions: one table an instruction set, chosen at
// run time. Plain data and raw pointers only, no inline code: this header is also compiled with
// AVX-512 switched on, and whatever it defined could end up in functions that other machines run.
//
// Numbers: each function computes an output element in one order of operations, whatever the number
// of rows, queries or tokens it is called with. Two tables differ in rounding only.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_KERNELS_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "executors/host/sampling_kernels.h"

namespace millrace::cpu {

inline constexpr int kTileRows =
    16;                            // weight rows in a tile, keys in a group: a register of floats
inline constexpr int kBlock = 32;  // elements that share a scale
inline constexpr int kMaxQueries = 12;  // in one AttentionTile

// The form in which a linear reads x.
enum class Form : int8_t {
  kFloat,
  kBf16,
  kQ8,  // QuantizedBlocks
};

// A block of 32 int8 activations: x[i] = values[i] * scale, with scale = max|x| / 127. `scale` is
// not finite exactly if an x was not. The sums are computed once here for all linears, whose
// weights are unsigned codes with an offset.
struct QuantizedBlock {
  int8_t values[kBlock];
  float scale;
  float scaled_sum;      // scale * sum(values)
  int32_t offset;        // -128 * sum(values)
  int32_t first_offset;  // -128 * sum of the first 16 values
};
static_assert(sizeof(QuantizedBlock) == 48);

// Where max|x| is less, 127 / max|x| may be infinite, and all values are 0.
inline constexpr float kLeastQuantized = 0x1p-121f;

// How a tile's 16 rows lie. F32, F16: for each column [16 rows]. BF16: for each two columns
// [16 rows][2]. The others are quantized, in groups of 32-column blocks: a header with the numbers
// of the group, then the codes of each of its blocks. A header is, by kind,
//   of 2 blocks (Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4): [2][16] scales, f16, of MXFP4 bf16; 64 bytes
//   of 1 block (Q4_1, Q5_1): [16] f16 scales, [16] f16 minima; 64 bytes
//   of 1 block (INT4_32), of 4 (INT4_128): [16] f32 scales, [16] f32 minima; 128 bytes
//   of 8 blocks (Q4_K, Q5_K): [16] f16 d, [16] f16 dmin, [3][16][4 bytes] the file's 6-bit scales
//     and minima of the blocks; 256 bytes
//   of 8 blocks (Q6_K, Q3_K, Q2_K): [16] f16 d, [16] f16 dmin (of Q2_K), [4][16][4 bytes] scales of
//     the 16 half blocks: int8, of Q2_K a nibble for the scale and a high one for the minimum; 320
//   of 8 blocks (IQ4_XS, IQ3_S, IQ3_XXS, and IQ2 and IQ1 of any width): as Q6_K; d is to be divided
// (the last group has as many blocks as are left, its header is whole). Codes of a block are
//   4 bits: [4][16 rows][4 bytes]; byte b of dword j has element 4j + b in its low nibble and
//     element 16 + 4j + b in its high one. Q3_K's 3 bits and Q2_K's 2 lie like this, too.
//   5 bits (Q5_*): that, then [16 rows] dwords; bit 8b + j is the fifth of element 4j + b.
//   6 bits (Q6_K): that, then [2][16][4 bytes]; bits 2k and 2k + 1 of byte b of dword j are the
//     upper two of element 16j + 4k + b.
//   8 bits (Q8_0): [8][16 rows][4 bytes]; byte b of dword j is element 4j + b.
// An element is (code - middle) * scale, or code * scale + minimum, where minima are (in 8 blocks
// they are subtracted): formats/tensors/tensor.h.
enum class TileKind : int8_t {
  kF32,
  kF16,
  kBf16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kIq4Nl,
  kMxfp4,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kInt4x32,
  kInt4x128,
  kIq4Xs,
  kIq3S,
  kIq3Xxs,
  kIq2,
  kIq1,
};
inline constexpr int kNumTileKinds = 22;

// Bytes of a tile's parts, of the quantized kinds.
struct TileLayout {
  int group;   // blocks
  int header;  // of a group
  int codes;   // of a block
};
inline constexpr TileLayout kTileLayouts[kNumTileKinds] = {
    {0, 0, 0},      // F32
    {0, 0, 0},      // F16
    {0, 0, 0},      // BF16
    {2, 64, 256},   // Q4_0
    {1, 64, 256},   // Q4_1
    {2, 64, 320},   // Q5_0
    {1, 64, 320},   // Q5_1
    {2, 64, 512},   // Q8_0
    {2, 64, 256},   // IQ4_NL
    {2, 64, 256},   // MXFP4
    {8, 320, 256},  // Q2_K
    {8, 320, 256},  // Q3_K
    {8, 256, 256},  // Q4_K
    {8, 256, 320},  // Q5_K
    {8, 320, 384},  // Q6_K
    {1, 128, 256},  // INT4_32
    {4, 128, 256},  // INT4_128
    {8, 320, 256},  // IQ4_XS
    {8, 320, 256},  // IQ3_S
    {8, 320, 256},  // IQ3_XXS
    {8, 320, 256},  // IQ2
    {8, 320, 256},  // IQ1
};

// The values of the codes of IQ4_NL, MXFP4 and the types of formats/tensors/codebook_blocks.h, +
// 128.
inline constexpr uint8_t kIq4NlTable[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                            129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kMxfp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                            128, 127, 126, 125, 124, 122, 120, 116};
inline constexpr uint8_t kIq3STable[16] = {129, 131, 133, 135, 137, 139, 141, 143,
                                           127, 125, 123, 121, 119, 117, 115, 113};
inline constexpr uint8_t kIq3XxsTable[16] = {132, 140, 148, 156, 164, 172, 180, 190,
                                             124, 116, 108, 100, 92,  84,  76,  66};
inline constexpr uint8_t kIq2Table[16] = {136, 153, 171, 128, 128, 128, 128, 128,
                                          120, 103, 85,  128, 128, 128, 128, 128};
inline constexpr uint8_t kIq1Table[16] = {121, 129, 137, 128, 128, 128, 128, 128,
                                          119, 127, 135, 128, 128, 128, 128, 128};

// What their d is divided by: powers of two.
inline constexpr int kIq3XxsDivisor = 4;
inline constexpr int kIq2Divisor = 8;
inline constexpr int kIq1Divisor = 8;

// y = x * W^T for the 16 rows of one tile and `rows` tokens. Prefetches beyond the tile's end,
// where the next one is read.
struct GemmTile {
  const uint8_t* weights;  // 64-byte aligned
  int depth;               // columns; pairs of columns of BF16; blocks of the quantized kinds
  const void* x;           // [rows] in the kind's Form
  size_t x_stride;         // bytes from a row to the next
  int rows;                // >= 1
  float* out;              // [rows][16]
  size_t out_stride;       // floats from a row to the next
  bool add;                // out += instead of out =
};
using GemmKernel = void (*)(const GemmTile& tile);

// One kv head of a sequence in the paged cache.
struct HeadPages {
  const uint8_t* pages;        // of block 0
  const int32_t* block_table;  // of the sequence; -1 for blocks before all windows
  int32_t length;              // positions it holds, >= 1
};

// Attention of a few queries of one sequence and one kv head over its pages. A block's page
// of the head: keys [block_size / 16][head_size][16 tokens], then values [block_size][head_size],
// f16. Softmax in two passes over the scores; sums run over keys in ascending order. Keys and
// values that other queries of the tile see are read for all and never change a result, so memory
// that was never written may hold anything. What `next` names is only fetched
// from memory meanwhile, about as many positions as are read: it lies anywhere, so the processor's
// own prefetching misses it.
struct AttentionTile {
  HeadPages cache;
  HeadPages next;                     // of the tile that this thread probably takes next
  size_t block_bytes;                 // from a block to the next
  int block_size;                     // a multiple of 16
  int head_size;                      // a multiple of 16
  int num_queries;                    // [1, kMaxQueries]
  const float* queries[kMaxQueries];  // [head_size] each
  int32_t begins[kMaxQueries];        // the first key that the query sees
  int32_t lengths[kMaxQueries];       // and the end of its keys, more than that
  float scale;                        // of the scores
  float soft_cap;                     // they become soft_cap * tanh(score / soft_cap), if not 0
  // [num_queries]: numbers by key that are added to the scores, readable up to the end of a group
  // of 16; or nullptr.
  const float* const* biases;
  const float* sinks;   // [num_queries] scores that join the softmax's sum and have
                        // no value; or nullptr
  float* scores;        // scratch, [num_queries][score_stride]
  size_t score_stride;  // >= the longest length, a multiple of 64
  float* out;           // [num_queries][head_size]
};

// Columns of a state that lie together, whose sums kernels keep in registers at a time.
inline constexpr int kStateColumns = 32;

// A causal convolution of each channel: its value for one token, of the inputs of that token and of
// the width - 1 before it. Computes
//   sum = bias + sum over i of inputs[i] * weights[i], the oldest input first
//   out = silu(sum), or sum without `silu`
struct ConvolutionTile {
  const float* const* inputs;  // `width` of [channels]
  const float* weights;        // [width][channels]
  const float* bias;           // [channels]; null for none
  int width;                   // >= 1
  int channels;                // a multiple of 16
  bool silu;
  float* out;  // [channels]
};

// The gated delta rule (Gated DeltaNet, arXiv:2412.06464) of one head over consecutive tokens of a
// sequence. With the head's state S, [key_size, value_size], each token computes
//   S = decay * S;  S = S + beta * k (v - S^T k)^T;  out = S^T q
// one token after the other, so that results do not depend on how a sequence is cut into tiles.
struct DeltaTile {
  float* state;    // [value_size / kStateColumns][key_size][kStateColumns]
  int key_size;    // a multiple of 16
  int value_size;  // a multiple of kStateColumns
  int tokens;
  // The first token's queries and keys have `key_size` floats, its values `value_size`. The next
  // token's lie `stride` floats further on.
  const float* queries;
  const float* keys;
  const float* values;
  size_t stride;
  // The first token has one number of each. The next token's lie `gate_stride` floats further on.
  const float* decays;
  const float* betas;
  size_t gate_stride;
  float* out;  // of the first token, [value_size]; may be `values`
  size_t out_stride;
};

// The recurrence of one head of Mamba-2 (arXiv:2405.21060) over consecutive tokens of a sequence.
// With the head's state S, [state_size, head_size], each token computes
//   S = decay * S + b (step * x)^T;  out = S^T c + skip * x
// one token after the other, so that results do not depend on how a sequence is cut into tiles.
struct StateSpaceTile {
  // [head_size / kStateColumns][state_size][kStateColumns], and where 16 columns are left behind
  // these [state_size][16].
  float* state;
  int state_size;  // a multiple of 16
  int head_size;   // a multiple of 16
  int tokens;
  // The first token's b and c have `state_size` floats, its x `head_size`. The next token's lie
  // `stride` floats further on.
  const float* b;
  const float* c;
  const float* x;
  size_t stride;
  // The first token has one number of each. The next token's lie `factor_stride` floats further on.
  const float* decays;
  const float* steps;
  size_t factor_stride;
  float skip;
  float* out;  // of the first token, [head_size]; may be `x`
  size_t out_stride;
};

struct Kernels {
  const char* name;

  GemmKernel gemm[kNumTileKinds];
  Form bf16_input;  // what linears of BF16 read: floats, or BF16 where the machine multiplies it

  void (*attention)(const AttentionTile& tile);

  // out = x in another form. `width` is a multiple of 16, of 32 for the quantized ones.
  void (*store)(const float* x, int width, Form form, void* out);

  // out = x / sqrt(sum(x^2) / size + epsilon) * weight. `width` is `size` rounded up to 16 (x and
  // weight are 0 in between). Floats may be normed in place.
  void (*norm)(const float* x, const float* weight, int size, int width, float epsilon, Form form,
               void* out);

  // 32 outputs of a gate function, by GateFunction, of [16 gate][16 up][16 gate][16 up]; of one
  // without a gate, of [32].
  void (*gates[5])(const float* x, Form form, void* out);

  // x = factor * x; then soft_cap * tanh(x / soft_cap), if not 0.
  void (*cap)(float* x, int count, float factor, float soft_cap);

  // Turns the pairs of a head's first 2 * pairs values: (2i, 2i + 1), or (i, i + pairs).
  void (*rope)(float* head, const float* cosines, const float* sines, int pairs, bool interleaved);

  // Appends one token of one head to its page, in f16, clamped to its largest finite value. `keys`
  // is the token's lane of its group ([head_size], stride 16), `values` its row.
  void (*append)(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values);

  void (*convolve)(const ConvolutionTile& tile);

  void (*delta_rule)(const DeltaTile& tile);

  void (*state_space)(const StateSpaceTile& tile);

  // x = x * sigmoid(gate), or if `silu` x * silu(gate).
  void (*sigmoid_gate)(const float* gate, int count, bool silu, float* x);

  const SamplingKernels* sampling;
};

// Returns the table in plain C++, for any machine.
const Kernels& PlainKernels();

// All that this machine runs, the fastest last: plain C++; AVX2 with FMA and F16C; AVX-512 F, BW,
// DQ, VL and VNNI; that with AVX-512 BF16. All but the first give the same bits, linears of BF16 in
// the last apart.
struct KernelList {
  const Kernels* tables[4];
  int count;
};
KernelList SupportedKernels();

// Returns the last, and fastest, of SupportedKernels.
const Kernels& BestKernels();

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_KERNELS_H_
