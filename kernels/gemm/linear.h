// Linear layers: y[tokens][rows] = x[tokens][stride] . W[rows][stride]^T, summed in fp32. On Hopper
// few tokens may run on kernels of our own (sm90/stream_linear.h, sm90/wide_linear.h,
// sm90/block_linear.h), everything else through cuBLASLt.
//
// What is chosen (kernels, algorithms) is chosen when a model is loaded, once a shape and range of
// tokens; a launch fills in pointers. It allocates nothing, asks no heuristic, changes no state
// that another launch sees, and may be captured in a graph.
//
// Exact plans: a row of y depends on its row of x and on W alone, bit for bit, whatever the number
// of tokens. All of cuBLASLt's algorithms that do not split K sum in the same order (measured on an
// H200 with 13.1; linear_test.cc looks again), so an exact plan takes only those, and our
// kernels give their bits.
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/gemm/cublaslt_api.h"
#include "kernels/types.h"

namespace millrace::kernels {

// What a plan is made for. Weights of one shape share one.
struct LinearShape {
  int64_t rows;    // outputs; a multiple of 16
  int64_t stride;  // inputs with their padding; a multiple of kColumnPadding
  Type type;       // of weight and input: kBf16 or kFp8
  bool blocks;     // kFp8: 128x128 weight blocks (kBlock) and kTokenGroup inputs
  Type output;     // kBf16, or kF32 (the vocabulary head)

  friend bool operator==(const LinearShape&, const LinearShape&) = default;
};

enum class Gemm : uint8_t {
  kAuto,      // what is fastest for the shape, tokens and device
  kCublasLt,  // for all tokens
};

struct LinearOptions {
  Gemm gemm = Gemm::kAuto;
  bool exact = true;
  // The tensor cores' own sum of FP8 products, which keeps fewer bits than fp32, for up to a tenth
  // of the time of a large product. Block scales know only the full sum.
  bool fast_accumulation = false;
  int64_t max_tokens = 8192;
  size_t workspace_bytes = size_t{32} << 20;
};

class LinearPlan;

// A product of few tokens may be faster on more rows than it has: its CTAs all read the same few
// lines of the input at once, while more rows spread over the L2 cache (measured: 18.6 µs instead
// of 25.9 for 4096x14336 FP8 at one token, on 64 rows). Given memory for this many rows, plans make
// use of it.
constexpr int64_t LinearRoom(int64_t tokens) {
  for (const int64_t rows : {64, 128, 256}) {
    if (tokens <= rows) return rows;
  }
  return PaddedTokens(tokens);
}

// Plans by shape. Used by one thread; the plans that it made may be launched from any, and live as
// long as it does. Keeps a reference to `lt`.
class LinearPlanner {
 public:
  LinearPlanner(const CublasLt& lt, const LinearOptions& options);
  ~LinearPlanner();

  // The same plan for the same shape. Null, with the reason in *error, for a shape outside the
  // limits above or one that cuBLASLt cannot run on this device.
  const LinearPlan* Plan(const LinearShape& shape, std::string* error);
  const LinearOptions& options() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a linear of one token makes its input of, which nobody has written then: the bits are those
// that LaunchRmsNorm (with a `norm`) or LaunchQuantize (with a `plain` row) would have left. What
// the row's scale is, for Scaling::kToken, is written to the input's scales.
struct InputRow {
  const Bf16* plain = nullptr;  // [width], 16-byte aligned
  const float* norm = nullptr;  // the norm's weight, [width], 16-byte aligned
  float epsilon = 0;
  const float* residual = nullptr;  // [width], 16-byte aligned
  Product delta = {};               // [1, width]; data null: nothing is added to the residual
  float* new_residual = nullptr;    // [width], where the sum goes; not `residual`, which CTAs read
  int width = 0;                    // at most kMostMadeInputs, a multiple of 8
};
inline constexpr int kMostMadeInputs = 4096;

// Whether the plan takes an InputRow at so many tokens. Null takes none.
bool MakesInput(const LinearPlan* plan, int64_t tokens);

// Whether the plan takes LinearArgs::gated at so many tokens. Null takes none.
bool TakesGate(const LinearPlan* plan, int64_t tokens);

struct LinearArgs {
  const LinearPlan* plan;
  Weight weight;     // rows, stride, type and blocks as in the plan's shape
  Activation input;  // stride as in the plan's shape; type like the weight's
  int64_t tokens;  // 1 ... max_tokens; for blocks the pointers have memory for PaddedTokens(tokens)
  void* output;    // [tokens][output_stride] of the shape's output type, 16-byte aligned
  int64_t output_stride;  // elements; a multiple of 8, at least weight.rows
  void* workspace;        // the planner's workspace_bytes, 256-byte aligned; one stream's at a time
  unsigned* ticket;       // likewise; 0 before the first launch, and left so
  const InputRow* input_row = nullptr;  // instead of what the input's data hold; see MakesInput
  // Instead of output, which is null, where TakesGate says so: LaunchGatedActivation's, bit for
  // bit, of what would be there. [tokens][weight.rows / 2] without padding columns: BF16, or FP8
  // with Scaling::kTensor. The weight's rows lie as GateLayout::kInterleaved says, the input's
  // scaling is kNone or kTensor.
  Activation gated = {};
  // Rows that input and output have memory for, if more than above; LinearRoom(tokens) is enough.
  // Rows past the tokens are read, whatever they hold, and written.
  int64_t room = 0;
};

// Scalar scales (kTensor, of either side) and those of blocks are applied; a scale per channel and
// one per token are left to whoever reads the output (Product), since cuBLASLt is slow with them at
// few tokens. Arguments that do not fit the plan give cudaErrorInvalidValue, and nothing runs.
cudaError_t LaunchLinear(const LinearArgs& args, cudaStream_t stream);

// What a launch with a BF16 output leaves, with the scales that it left out.
Product LinearProduct(const LinearArgs& args);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_H_
