// Linear layers: y[tokens][rows] = x[tokens][stride] . W[rows][stride]^T, summed in fp32. On Hopper
// products of few tokens may run on our own kernels (sm90/dense/skinny_linear.h,
// sm90/dense/wide_linear.h, sm90/dense/block_linear.h), all others run through cuBLASLt.
//
// A LinearPlanner chooses a config (gemm_desc.h) for each product and range of tokens when a model
// is loaded: the measured one where it has been told of one (Learn), the table's (gemm_table.h), or
// a rule's guess (gemm_rule.h). A launch only fills in pointers. It allocates nothing, calls no
// heuristic, changes no state that another launch sees, and may be captured in a graph.
//
// Exact plans: a row of y depends on its row of x and on W alone, bit for bit, whatever the number
// of tokens. All of cuBLASLt's algorithms that do not split K sum in the same order (measured on an
// H200 with 13.1; linear_test.cc and gemm_tuner.h compare), so an exact plan takes only those, and
// our kernels give their bits.
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/gemm/cublaslt_api.h"
#include "kernels/gemm/gemm_desc.h"
#include "kernels/types.h"

namespace millrace::kernels {

enum class Gemm : uint8_t {
  kAuto,      // the fastest kernel for the product, the tokens and the device
  kCublasLt,  // cuBLASLt for all tokens
};

struct LinearOptions {
  Gemm gemm = Gemm::kAuto;
  bool exact = true;
  // Uses the tensor cores' own sum of FP8 products, which keeps fewer bits than fp32 and saves up
  // to a tenth of the time of a large product. Block scales have the full sum only.
  bool fast_accumulation = false;
  int64_t max_tokens = 8192;
  size_t workspace_bytes = size_t{32} << 20;
};

class LinearPlan;

// Returns the number of rows to allocate for the activations of a product of so many tokens: it may
// run faster on more rows than it has tokens. The CTAs of very few tokens all read the same few
// cache lines of the input at once, while more rows spread over the L2 cache (18.6 µs instead of
// 25.9 for 4096x14336 FP8 at one token, on 64 rows), and the copy engine is slow for rows outside a
// tensor.
constexpr int64_t LinearCapacity(int64_t tokens) {
  for (const int64_t rows : {64, 128, 256}) {
    if (tokens <= rows) return rows;
  }
  return (tokens + 63) / 64 * 64;
}

// Makes plans. Used by one thread; the plans that it made may be launched from any, and live as
// long as it does. Keeps a reference to `lt`.
class LinearPlanner {
 public:
  LinearPlanner(const CublasLt& lt, const LinearOptions& options);
  ~LinearPlanner();

  // Returns the plan of a product, the same one each time. Returns null, with the reason in *error,
  // for a product outside the limits of GemmDesc or one that cuBLASLt cannot run on this device.
  const LinearPlan* Plan(const GemmDesc& desc, std::string* error);

  // Returns whether a plan would be made of measurements, here or in the table, and not of a rule.
  bool Knows(const GemmDesc& desc) const;
  // Makes later plans for the product of these ranges, which were measured on this device. Returns
  // false if one of them cannot run or, for an exact planner, would not be exact.
  bool Learn(const GemmDesc& desc, const GemmRanges& ranges);

  const LinearOptions& options() const;
  const CublasLt& library() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The input row of a fused prologue: a linear of one token computes its own input, which is in no
// memory then. The bits are those that LaunchRmsNorm (with a `norm`) or LaunchQuantize (with a
// `plain` row) would have left. With Scaling::kToken the row's scale is written to the input's
// scales.
struct InputRow {
  const Bf16* plain = nullptr;  // [width], 16-byte aligned
  const float* norm = nullptr;  // the norm's weight, [width], 16-byte aligned
  float epsilon = 0;
  const float* residual = nullptr;  // [width], 16-byte aligned
  Product delta = {};               // [1, width]; data null: nothing is added to the residual
  float* new_residual = nullptr;    // [width], where the sum goes; not `residual`, which CTAs read
  int width = 0;                    // at most kMaxPrologueWidth, a multiple of 8
};
inline constexpr int kMaxPrologueWidth = 4096;

// Returns whether the plan takes an InputRow for so many tokens. A null plan takes none.
bool FusesPrologue(const LinearPlan* plan, int64_t tokens);

// Returns whether the plan takes LinearArgs::gated for so many tokens. A null plan does not.
bool FusesGate(const LinearPlan* plan, int64_t tokens);

// Returns whether the plan's kernel for so many tokens may read the weight before the kernel before
// it has ended: our own kernels do. Such a weight must not be what that one writes.
bool ReadsWeightEarly(const LinearPlan* plan, int64_t tokens);

struct LinearArgs {
  const LinearPlan* plan;
  Weight weight;     // rows, stride and type as in the plan
  Activation input;  // stride as in the plan; type like the weight's
  int64_t tokens;  // 1 ... max_tokens; for blocks the pointers have memory for PaddedTokens(tokens)
  void* output;    // [tokens][output_stride] of the plan's output type, 16-byte aligned
  int64_t output_stride;  // elements; a multiple of 8, at least weight.rows
  void* workspace;        // the planner's workspace_bytes, 256-byte aligned; one stream's at a time
  unsigned* tile_counter;               // likewise; 0 before the first launch, and left so
  const InputRow* input_row = nullptr;  // in place of the input's data; see FusesPrologue
  // The output of a fused gate, where FusesGate allows it; `output` is null then. The bits are
  // those of LaunchGatedActivation on that output. [tokens][weight.rows / 2] without padding
  // columns: BF16, or FP8 with Scaling::kTensor. The weight's rows lie as GateLayout::kInterleaved
  // says, the input's scaling is kNone or kTensor.
  Activation gated = {};
  // The rows that input and output have memory for, if more than above; LinearCapacity(tokens) is
  // enough. Rows past the tokens are read, whatever they hold, and written.
  int64_t capacity = 0;
};

// Applies scalar scales (kTensor, of either side) and those of blocks. A scale per channel and one
// per token are left to the reader of the output (Product), since cuBLASLt is slow with them for
// few tokens. Arguments that do not fit the plan give cudaErrorInvalidValue, and nothing runs.
cudaError_t LaunchLinear(const LinearArgs& args, cudaStream_t stream);

// Describes the output of a launch with a BF16 output, with the scales that were not applied.
Product LinearProduct(const LinearArgs& args);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_H_
