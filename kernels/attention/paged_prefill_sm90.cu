// Reading prompts with Hopper's wgmma: keys and values are read from shared memory once for 64
// rows, asynchronously. Two groups of four warps have 64 rows each; while one tile's scores become
// probabilities the next tile's are being multiplied. The bits are those of mma.sync: both sum a
// step of 16 at once, steps in sequence (measured; the tests compare with decoding).
//
// Compiled for all architectures, but launched on sm_90a alone: elsewhere nothing is multiplied.
//
// Keys and values lie in shared memory in rows of 128 bytes, the 16-byte words of eight rows
// permuted: the layout that wgmma calls 128-byte swizzled. Queries and probabilities come from
// registers.
#include "kernels/attention/prefill_common.cuh"

namespace millrace::kernels::attention {
namespace {

// Columns of 64 elements of a tile, one behind the other.
template <int kHeadSize>
struct SwizzledRow {
  static constexpr int kWords = kHeadSize / 8;
  static constexpr int kColumnBytes = kTile * 128;
  __device__ static uint32_t Offset(int row, int word) {
    return word / 8 * kColumnBytes + row * 128 + 16 * (word % 8 ^ row % 8);
  }
};

// What wgmma is told of a matrix in shared memory: 8 rows every 1024 bytes, 128-byte swizzled.
__device__ uint64_t Descriptor(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// d (+)= a * b of a warp group, asynchronously: a is 64 x 16, each warp has 16 rows of it; b is
// 16 x 64, of keys in BF16 (its columns are rows in memory) or of values in FP16 (its rows are).
template <bool kValues>
__device__ void MultiplyAsync(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kValues) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
        "%9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}\n"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
          "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
          "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
          "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
          "+f"(d[7][2]), "+f"(d[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  } else {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
        "%9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}\n"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
          "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
          "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
          "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
          "+f"(d[7][2]), "+f"(d[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  }
#endif
}

__device__ void BeginMultiply() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ void EndMultiply() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

__device__ void WaitForProducts() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

// Makes this thread's writes to shared memory visible to wgmma.
__device__ void FenceShared() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// The compiler does not know that registers change until the wait.
template <int kBlocks>
__device__ void Fence(float (&d)[kBlocks][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

template <int kSize>
class Reader : public PrefillBase<Bf16, kSize, 1, 3, SwizzledRow<kSize>> {
  using Base = PrefillBase<Bf16, kSize, 1, 3, SwizzledRow<kSize>>;
  using T = typename Base::T;
  using Base::params_, Base::query_lane_, Base::shared_, Base::Stage, Base::values_;
  static constexpr int kColumnBytes = SwizzledRow<kSize>::kColumnBytes;

 public:
  using Base::kThreads;
  static constexpr int kHeadSize = kSize;
  static constexpr int kCtas = 1;

  __device__ Reader(const Params& params, PrefillShared& shared, uint32_t memory)
      : Base(params, shared, memory) {}

  // The item is in shared memory.
  __device__ void RunItem() {
    const Span span = params_.Visible(shared_.item.position, shared_.item.tokens);
    const int first_tile = span.first / kTile;
    const int end = CeilDiv(span.end, kTile);
    this->Begin(span, first_tile);
    Finish(first_tile);
    if (first_tile + 1 < end) this->StartTile(first_tile + 1);
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) T::LoadQuery(query_lane_, step, query_[step]);
    float scores[1][kTileBlocks][4];
    MultiplyKeys(first_tile, scores[0]);
    WaitForProducts();
    Fence(scores[0]);
    for (int tile = first_tile; tile < end;) {
      const bool first_chunk = tile == first_tile;
      const int chunk_end = min(end, (tile / kTilesPerChunk + 1) * kTilesPerChunk);
      this->ClearChunk();
      for (bool first = true; tile < chunk_end; ++tile, first = false) {
        RunTile(tile, end, first, scores);
      }
      this->MergeChunk(first_chunk, tile == end);
    }
    this->Store();
  }

 private:
  // Makes the tile visible to wgmma, and the stage of the tile before the one before writable.
  __device__ void Finish(int tile) {
    this->FinishTile(tile);
    FenceShared();
    __syncthreads();
  }

  // `scores` are the tile's, and then the next one's.
  __device__ void RunTile(int tile, int end, bool first, float (&scores)[1][kTileBlocks][4]) {
    float next[kTileBlocks][4];
    const bool more = tile + 1 < end;
    if (more) {
      Finish(tile + 1);
      if (tile + 2 < end) this->StartTile(tile + 2);
      MultiplyKeys(tile + 1, next);
    }
    this->Mask(tile, scores);
    uint32_t probabilities[1][kTile / 16][4];
    this->AddScores(scores, first, probabilities);
    MultiplyValues(tile, probabilities[0]);
    WaitForProducts();
    Fence(values_[0]);
    if (!more) return;
    Fence(next);
#pragma unroll
    for (int i = 0; i < 4 * kTileBlocks; ++i) scores[0][i / 4][i % 4] = next[i / 4][i % 4];
  }

  __device__ void MultiplyKeys(int tile, float (&scores)[kTileBlocks][4]) {
    Fence(scores);
    BeginMultiply();
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      const uint32_t keys = Stage(tile) + step / 4 * kColumnBytes + step % 4 * 32;
      MultiplyAsync<false>(scores, query_[step], Descriptor(keys), step > 0);
    }
    EndMultiply();
  }

  __device__ void MultiplyValues(int tile, const uint32_t (&probabilities)[kTile / 16][4]) {
    Fence(values_[0]);
    BeginMultiply();
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
#pragma unroll
      for (int column = 0; column < kSize / 64; ++column) {
        const uint32_t values = Stage(tile) + T::kBytes + column * kColumnBytes + step * 2048;
        auto& sums = reinterpret_cast<float(&)[8][4]>(values_[0][8 * column]);
        MultiplyAsync<true>(sums, probabilities[step], Descriptor(values), true);
      }
    }
    EndMultiply();
  }

  uint32_t query_[T::kSteps][4];
};

template <int kHeadSize>
__global__ void __launch_bounds__(Reader<kHeadSize>::kThreads, 1)
    PrefillSm90Kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ PrefillShared shared;
  RunPrefillItems<Reader<kHeadSize>>(params, shared, SharedAddress(memory));
}

}  // namespace

bool TakesPrefillSm90(const AttentionArgs& args) {
  // At heads of 64 the portable kernel is the faster one.
  return args.pages.type == Type::kBf16 && args.pages.head_size == 128;
}

cudaError_t LaunchPrefillSm90(const Launch& launch) {
  return LaunchPrefillKernel<Reader<128>>(launch, PrefillSm90Kernel<128>);
}

}  // namespace millrace::kernels::attention
