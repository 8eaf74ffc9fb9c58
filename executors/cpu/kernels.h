// The CPU executor's inner loops, as a table of functions: one table an instruction set, chosen at
// run time. Plain data and raw pointers only, no inline code: this header is also compiled with
// AVX-512 switched on, and whatever it defined could end up in functions that other machines run.
//
// Numbers: each function computes an output element in one order of operations, whatever the number
// of rows, queries or tokens it is called with. Two tables differ in rounding only.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace millrace::cpu {

inline constexpr int kTileRows =
    16;                            // weight rows in a tile, keys in a group: a register of floats
inline constexpr int kBlock = 32;  // elements that share a scale
inline constexpr int kMaxQueries = 12;  // in one AttentionTile

// What a linear reads as x: floats, or int8 blocks with the correction that its weights want.
enum class Form : int8_t {
  kFloat,
  kQ8ForQ4,  // QuantizedBlock::correction is the float scale * sum(values)
  kQ8ForQ8,  // ... is the int32 -128 * sum(values)
};

// 32 activations: values[i] * scale, scale = max|x| / 127. Not finite exactly when an x was not.
struct QuantizedBlock {
  int8_t values[kBlock];
  float scale;
  uint32_t correction;  // the bits of a float or an int32, see Form
};
static_assert(sizeof(QuantizedBlock) == 40);

// y = x * W^T for the 16 rows of one tile and `rows` tokens. A tile holds, for each step of depth,
//   F32, F16: [16 rows], one column; as deep as there are columns.
//   Q4_1: [4][16 rows][4 bytes], then [16] f16 d, [16] f16 m; columns / 32 deep. Byte b of dword j
//   has
//     element 4j + b in its low nibble and element 16 + 4j + b in its high one.
//   Q8_0: two steps together: [2][16] f16 d, then of each [8][16 rows][4 bytes]; columns / 32 deep.
//     Byte b of dword j is element 4j + b, + 128.
// 64-byte aligned. Prefetches beyond its end, where the next tile is read.
struct GemmTile {
  const uint8_t* weights;
  int depth;
  const void* x;      // [rows] floats or QuantizedBlocks
  size_t x_stride;    // bytes from a row to the next
  int rows;           // >= 1
  float* out;         // [rows][16]
  size_t out_stride;  // floats from a row to the next
  bool add;           // out += instead of out =
};
using GemmKernel = void (*)(const GemmTile& tile);

// One kv head of a sequence in the paged cache.
struct HeadPages {
  const uint8_t* pages;        // of block 0
  const int32_t* block_table;  // of the sequence
  int32_t length;              // positions it holds, >= 1
};

// Causal attention of a few queries of one sequence and one kv head over its pages. A block's page
// of the head: keys [block_size / 16][head_size][16 tokens], then values [block_size][head_size],
// f16. Softmax in two passes over the scores; sums run over keys in ascending order. Keys and
// values beyond a query's length are read as far as the longest query's and never change its
// result, so memory that was never written may hold anything. What `next` names is only fetched
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
  int32_t lengths[kMaxQueries];       // keys that the query sees, >= 1
  float scale;                        // of the scores
  float* scores;                      // scratch, [num_queries][score_stride]
  size_t score_stride;                // >= the longest length, a multiple of 64
  float* out;                         // [num_queries][head_size]
};

struct Kernels {
  const char* name;

  GemmKernel gemm_f32;
  GemmKernel gemm_f16;
  GemmKernel gemm_q8_0;
  GemmKernel gemm_q4_1;

  void (*attention)(const AttentionTile& tile);

  // out = x in another form. `width` is a multiple of 16, of 32 for the quantized ones.
  void (*store)(const float* x, int width, Form form, void* out);

  // out = x / sqrt(sum(x^2) / size + epsilon) * weight. `width` is `size` rounded up to 16 (x and
  // weight are 0 in between). Floats may be normed in place.
  void (*norm)(const float* x, const float* weight, int size, int width, float epsilon, Form form,
               void* out);

  // 32 outputs silu(gate) * up, of [16 gate][16 up][16 gate][16 up].
  void (*gate)(const float* x, Form form, void* out);

  // Turns the pairs of a head's first 2 * pairs values: (2i, 2i + 1), or (i, i + pairs).
  void (*rope)(float* head, const float* cosines, const float* sines, int pairs, bool interleaved);

  // Appends one token of one head to its page, in f16, clamped to its largest finite value. `keys`
  // is the token's lane of its group ([head_size], stride 16), `values` its row.
  void (*append)(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values);

  // Over x[0..count), for sampling. kMaximum: the largest, the lowest index of those, and whether
  // all are finite (value and index mean nothing otherwise, but for -inf). exp_sum: p[i] =
  // exp((x[i] - maximum) * factor) and their sum. select: the indexes, ascending, with x >=
  // threshold, at most `capacity` of them; returns how many there are. count_above: how many x >
  // value.
  void (*maximum)(const float* x, int count, float* value, int* index, bool* ok);
  double (*exp_sum)(const float* x, int count, float maximum, float factor, float* p);
  int (*select)(const float* x, int count, float threshold, int32_t* indexes, int capacity);
  int (*count_above)(const float* x, int count, float value);
};

// C++ for any machine.
const Kernels& PlainKernels();

// AVX-512 F, BW, DQ, VL and VNNI; nullptr where this machine lacks one of them.
const Kernels* Avx512Kernels();

// The fastest that this machine runs.
const Kernels& BestKernels();

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_H_
