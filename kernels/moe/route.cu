#include "kernels/moe/route.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/cluster.cuh"
#include "kernels/launch.cuh"
#include "kernels/mma.cuh"
#include "kernels/moe/assign_few.cuh"
#include "kernels/moe/choose_experts.cuh"
#include "kernels/norm/rms_norm.h"
#include "kernels/norm/token_norm.cuh"

namespace millrace::kernels {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRows = 16;    // of the weight, a CTA's: mma.sync's first operand
constexpr int kWindow = 32;  // columns that a warp takes at a time, eight a lane
constexpr int kParts = 3;    // BF16 that an fp32 weight is the sum of

// Eight neighbouring columns of a weight's row, as pairs of BF16 whose sum they are.
struct Bf16Row {
  static constexpr int kSummands = 1;
  uint4 raw;

  __device__ void Load(const void* weight, int64_t at) {
    raw = LoadRaw8(static_cast<const Bf16*>(weight) + at);
  }
  __device__ void Clear() { raw = make_uint4(0, 0, 0, 0); }
  __device__ void Split(uint32_t (&parts)[kSummands][4]) const {
    parts[0][0] = raw.x, parts[0][1] = raw.y, parts[0][2] = raw.z, parts[0][3] = raw.w;
  }
};

struct FloatRow {
  static constexpr int kSummands = kParts;
  float values[8];

  __device__ void Load(const void* weight, int64_t at) {
    Load8(static_cast<const float*>(weight) + at, values);
  }
  __device__ void Clear() {
#pragma unroll
    for (float& value : values) value = 0;
  }
  // The smallest part first.
  __device__ void Split(uint32_t (&parts)[kSummands][4]) const {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      float first = values[2 * pair], second = values[2 * pair + 1];
#pragma unroll
      for (int part = kSummands - 1; part >= 0; --part) {
        const __nv_bfloat162 rounded = __floats2bfloat162_rn(first, second);
        first -= __low2float(rounded);
        second -= __high2float(rounded);
        parts[part][pair] = *reinterpret_cast<const uint32_t*>(&rounded);
      }
    }
  }
};

// The sums of 16 rows of the weight and kTiles times eight tokens.
template <typename Row, int kTiles>
class Logits {
 public:
  static constexpr int kTokens = 8 * kTiles;
  // In a warp, as mma.sync leaves them: [warp][tile][4][lane].
  using Shared = float[kWarps][kTiles][4][kWarpSize];

  // `x` is RouteArgs::x, or a copy of its row in shared memory.
  __device__ Logits(const RouteArgs& args, const Bf16* x, int first_row, int first_token)
      : args_(args), x_(x), first_row_(first_row), first_token_(first_token) {}

  // Loads this thread's bias. Called before Add, which awaits the predecessor.
  __device__ void LoadBias() {
    const int row = OutputRow();
    if (args_.bias != nullptr && row < args_.rows) bias_ = args_.bias[row];
  }

  // Leaves the warps' sums in `shared`. `make_x` awaits the predecessor, and leaves x.
  template <typename MakeX>
  __device__ void Add(Shared& shared, const MakeX& make_x) {
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int windows = CeilDiv(args_.hidden, kWindow);
    LoadWeights(warp);
    make_x();
    for (int first = warp; first < windows; first += kBatch * kWarps) {
      if (first > warp) LoadWeights(first);
      LoadTokens(first);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) AddWindow(i);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared[warp][tile][i][lane] = sums_[tile][i];
    }
  }

  // Writes the logits, one a thread, and calls also(token, row, logit) for each; the token is of
  // this CTA's. Called when all warps have left their sums.
  template <typename Also>
  __device__ void Write(const Shared& shared, const Also& also) const {
    static_assert(kRows * kTokens <= kThreads);
    const int i = static_cast<int>(threadIdx.x), lane = i % kWarpSize;
    const int which = i / kWarpSize % 4, tile = i / (4 * kWarpSize);
    const int row = OutputRow(), token = first_token_ + 8 * tile + lane % 4 * 2 + which % 2;
    if (tile >= kTiles || row >= args_.rows || token >= args_.tokens) return;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp][tile][which][lane];
    if (args_.bias != nullptr) sum += bias_;
    args_.logits[int64_t{token} * args_.rows + row] = sum;
    also(token - first_token_, row, sum);
  }

 private:
  static constexpr int kBatch = kTiles == 1 ? 4 : 1;  // windows whose loads are under way at a time

  // Returns the row of the logit that this thread writes.
  __device__ int OutputRow() const {
    const int lane = threadIdx.x % kWarpSize, which = threadIdx.x / kWarpSize % 4;
    return first_row_ + lane / 4 + which / 2 * 8;
  }

  __device__ int ColumnOf(int first, int i) const {
    return (first + i * kWarps) * kWindow + threadIdx.x % 4 * 8;
  }

  __device__ void LoadWeights(int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int column = ColumnOf(first, i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row_ + threadIdx.x % kWarpSize / 4 + 8 * half;
        if (column < args_.hidden && row < args_.rows) {
          weights_[i][half].Load(args_.weight, int64_t{row} * args_.hidden + column);
        } else {
          weights_[i][half].Clear();
        }
      }
    }
  }

  __device__ void LoadTokens(int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int column = ColumnOf(first, i);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int token = first_token_ + 8 * tile + threadIdx.x % kWarpSize / 4;
        tokens_[i][tile] = column < args_.hidden && token < args_.tokens
                               ? LoadRaw8(x_ + token * args_.x_stride + column)
                               : make_uint4(0, 0, 0, 0);
      }
    }
  }

  // A window is two steps of 16 columns. Which column is which of mma.sync's changes no product: of
  // a lane's eight columns step s has 4 s ... 4 s + 3.
  __device__ void AddWindow(int i) {
    uint32_t parts[2][Row::kSummands][4];
    weights_[i][0].Split(parts[0]);
    weights_[i][1].Split(parts[1]);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int part = 0; part < Row::kSummands; ++part) {
        const uint32_t a[4] = {parts[0][part][2 * step], parts[1][part][2 * step],
                               parts[0][part][2 * step + 1], parts[1][part][2 * step + 1]};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4& x = tokens_[i][tile];
          MultiplyBf16(sums_[tile], a, step == 0 ? x.x : x.z, step == 0 ? x.y : x.w);
        }
      }
    }
  }

  const RouteArgs& args_;
  const Bf16* const x_;
  const int first_row_, first_token_;
  Row weights_[kBatch][2];
  uint4 tokens_[kBatch][kTiles];
  float sums_[kTiles][4] = {};
  float bias_ = 0;
};

// Returns to all threads whether this CTA is the last one of `ctas` that calls this with the
// counter, which is 0 again then. What the others wrote before can be read from the L2 cache.
__device__ bool IsLast(unsigned* counter, unsigned ctas) {
  __shared__ bool last;
  __syncthreads();  // the release below then publishes the stores of all threads
  if (threadIdx.x == 0) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"  // wraps
                 : "=r"(before)
                 : "l"(counter), "r"(ctas - 1)
                 : "memory");
    last = before == ctas - 1;
  }
  __syncthreads();
  return last;
}

// The rows of the weight for which a part of the tokens' CTAs form a cluster, whose first one gets
// all logits in its shared memory: sooner than by way of a counter and the L2 cache.
constexpr int kMostClusterRows = 8 * kRows;

struct NoNorm {
  __device__ explicit NoNorm(const RmsNormArgs&) {}
};

// The grid is (parts of the rows, parts of the tokens). Of a part of the tokens the first CTA of
// its cluster makes the choice or, without clusters, the one that ends last, by a counter. The last
// of these makes the assignment. None waits for another but for those of its cluster.
template <typename Row, int kTiles, int kPerLane, bool kNorms, bool kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    RouteKernel(const __grid_constant__ RouteArgs args, const __grid_constant__ AssignArgs assign,
                const __grid_constant__ RmsNormArgs norm) {
  using Sums = Logits<Row, kTiles>;
  __shared__ union {
    typename Sums::Shared sums;
    AssignFewShared assign;
  } shared;
  __shared__ typename TokenNorm<kThreads>::Shared normed;  // where kNorms
  __shared__ int ids[Sums::kTokens * kMaxChosen];
  __shared__ float gathered[kCluster ? Sums::kTokens * kMostClusterRows : 1];  // logits
  if constexpr (kCluster) ClusterArrive();
  const int first_token = static_cast<int>(blockIdx.y) * Sums::kTokens;
  Sums logits(args, kNorms ? normed.row : args.x, static_cast<int>(blockIdx.x) * kRows,
              first_token);
  logits.LoadBias();
  std::conditional_t<kNorms, TokenNorm<kThreads>, NoNorm> row(norm);
  logits.Add(shared.sums, [&] {
    AwaitPredecessor();
    if constexpr (kNorms) row.Make(normed);
  });
  __syncthreads();
  if constexpr (kCluster) {
    ClusterWait();  // all have begun, so that their shared memory may be written
    logits.Write(shared.sums, [&](int token, int row, float logit) {
      StoreToCta(&gathered[token * kMostClusterRows + row], 0, logit);
    });
    ClusterArrive();
    if (blockIdx.x != 0) return;
    ClusterWait();
  } else {
    logits.Write(shared.sums, [](int, int, float) {});
    if (!IsLast(args.counters + 1 + blockIdx.y * kTiles, gridDim.x)) return;
  }
  if constexpr (kNorms) row.StoreResidual();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int tokens = min(Sums::kTokens, args.tokens - first_token);
  for (int i = thread / kWarpSize; i < tokens; i += kWarps) {
    ExpertChoice<kPerLane> choice(args);
    const int id = choice.Choose(first_token + i, [&](int expert) {
      if constexpr (kCluster) return gathered[i * kMostClusterRows + expert];
      // Another CTA may have written it: not from the first-level cache.
      return __ldcg(args.logits + int64_t{first_token + i} * args.rows + expert);
    });
    if (lane < args.chosen) ids[i * args.chosen + lane] = id;
  }
  if (assign.ids == nullptr) return;
  const bool has_pair = thread < assign.rows.pairs;
  int id = 0;  // of this thread's pair
  if (gridDim.y > 1) {
    if (!IsLast(args.counters, gridDim.y)) return;
    if (has_pair) id = __ldcg(assign.ids + thread);
  } else {
    __syncthreads();
    if (tokens == 1) return AssignDistinct(assign, ids);
    if (has_pair) id = ids[thread];
  }
  AssignFew(assign, id, shared.assign);
}
static_assert(kThreads == kAssignThreads);

bool IsValid(const RouteArgs& args) {
  const bool inputs = args.x != nullptr && IsAligned16(args.x) && args.x_stride >= args.hidden &&
                      args.x_stride % 8 == 0 && args.weight != nullptr &&
                      IsAligned16(args.weight) &&
                      (args.weight_type == Type::kBf16 || args.weight_type == Type::kF32);
  const bool sizes = args.tokens >= 0 && args.hidden >= 8 && args.hidden % 8 == 0 &&
                     args.experts >= 1 && args.experts <= kMaxExperts &&
                     args.rows >= args.experts && args.chosen >= 1 && args.chosen <= kMaxChosen;
  const bool groups = args.groups >= 1 && args.groups <= kMaxExpertGroups &&
                      args.experts % args.groups == 0 && args.chosen_groups >= 1 &&
                      args.chosen_groups <= args.groups &&
                      args.experts / args.groups * args.chosen_groups >= args.chosen;
  return inputs && sizes && groups && args.logits != nullptr && args.ids != nullptr &&
         args.token_scores != nullptr && args.counters != nullptr;
}

bool IsValidAssignment(const RouteArgs& args) {
  return args.assign == nullptr || (IsValid(*args.assign) && args.assign->ids == args.ids &&
                                    args.assign->rows.pairs == args.tokens * args.chosen &&
                                    args.assign->rows.pairs <= kFewPairs);
}

bool IsValidNorm(const RouteArgs& args) {
  if (args.norm == nullptr) return true;
  const RmsNormArgs& norm = *args.norm;
  return args.tokens == 1 && norm.tokens == 1 && norm.mixture == nullptr &&
         norm.out.data == args.x && norm.out.type == Type::kBf16 &&
         norm.out.stride <= kMaxRoutedNorm && norm.width == args.hidden && IsValid(norm);
}

// More tokens in a CTA read the weights less often; fewer end sooner.
constexpr int kFewTokens = 64;

}  // namespace

cudaError_t LaunchRoute(const RouteArgs& args, cudaStream_t stream) {
  if (!IsValid(args) || !IsValidAssignment(args) || !IsValidNorm(args)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  const bool clusters = args.rows > kRows && args.rows <= kMostClusterRows && KernelsAwait();
  const auto launch = [&]<typename Row, int kTiles, bool kNorms>() {
    const dim3 grid(CeilDiv(args.rows, kRows), CeilDiv(args.tokens, 8 * kTiles));
    const bool cluster = kTiles == 1 && clusters;
    const auto kernel = cluster               ? RouteKernel<Row, kTiles, 4, kNorms, kTiles == 1>
                        : args.experts <= 128 ? RouteKernel<Row, kTiles, 4, kNorms, false>
                                              : RouteKernel<Row, kTiles, 16, kNorms, false>;
    return LaunchDependentClusters(kernel, dim3(cluster ? grid.x : 1), grid, dim3(kThreads), 0,
                                   stream, args,
                                   args.assign == nullptr ? AssignArgs{} : *args.assign,
                                   args.norm == nullptr ? RmsNormArgs{} : *args.norm);
  };
  const auto launch_row = [&]<typename Row>() {
    if (args.norm != nullptr) return launch.template operator()<Row, 1, true>();
    return args.tokens <= kFewTokens ? launch.template operator()<Row, 1, false>()
                                     : launch.template operator()<Row, 4, false>();
  };
  return args.weight_type == Type::kBf16 ? launch_row.operator()<Bf16Row>()
                                         : launch_row.operator()<FloatRow>();
}

}  // namespace millrace::kernels
