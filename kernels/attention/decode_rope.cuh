// Rope and append fused into the decode kernel: at the beginning of a segment the consumer warps
// compute its queries, key and value from the qkv linear's product, with the bits of
// rope_append.cu.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_ROPE_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_ROPE_CUH_

#include "kernels/attention/attention_params.cuh"
#include "kernels/attention/decode_segment.cuh"
#include "kernels/attention/rope.cuh"
#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"

namespace millrace::kernels::attention {

// Stores to shared memory.
__device__ inline void StoreShared8(uint32_t to, uint2 words) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(words.x), "r"(words.y) : "memory");
}
__device__ inline void StoreShared4(uint32_t to, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// Copies `words` 16-byte words of a head at shared address `head`, from word `first` on, to a
// tile's row. Called by all lanes of a warp.
template <typename Row>
__device__ inline void CopyHead(uint32_t tile, int row, uint32_t head, int first, int words) {
  const int lane = threadIdx.x % kWarpSize;
  const int word = first + lane;
  if (lane >= words || word >= Row::kWords) return;
  uint32_t bits[4];
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(head + 16 * word)
               : "memory");
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(tile + Row::Offset(row, word)),
               "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
               : "memory");
}

// One of kComputingThreads threads' part in a segment's heads: 8 values of each head assigned to
// it. All loads from global memory are issued before any is used.
template <typename Kv, int kHeadSize>
class FusedRope {
 public:
  static constexpr int kRowBytes = Tile<Kv, kHeadSize>::kRowBytes;

  // Loads the constants and the block id of the new key and value. Safe before the predecessor has
  // ended.
  __device__ FusedRope(const Params& params, const Segment& segment)
      : params_(params),
        segment_(segment),
        lane_(threadIdx.x % kLanes),
        head_(threadIdx.x / kLanes),
        runs_(RunsOf(lane_, params.rope.dimensions, !params.rope.interleaved)) {
    if (segment.HasLast()) {
      block_ = params.Blocks(segment.row.slot)[segment.row.position >> params.block_shift];
    }
    if (Rotates()) {
      const int64_t row = int64_t{segment.row.position} * (params.rope.dimensions / 2);
      Load8(reinterpret_cast<const float*>(params.rope.rotations + row + 4 * lane_), rotation_);
    }
    LoadConstants();
  }

  // Loads the product. Call after the kernel's predecessor has ended.
  __device__ void Load() {
    if (Works()) raw_.Load(params_.qkv, segment_.row.token, Column(), runs_);
  }

  // Writes queries to rows at shared address `rows`. Stores the new key and value to their pages
  // and to shared address `kv`.
  __device__ void Compute(uint32_t rows, uint32_t kv) {
    while (true) {
      ComputeHead(rows, kv);
      head_ += kAtOnce;
      if (head_ - static_cast<int>(threadIdx.x) / kLanes >= Heads()) break;
      LoadConstants();
      Load();
    }
  }

 private:
  using QueryRow = typename Tile<Kv, kHeadSize>::QueryRow;
  static constexpr int kLanes = kHeadLanes<kHeadSize>;
  static constexpr int kAtOnce = kComputingThreads / kLanes;  // heads per iteration

  __device__ bool IsInHead() const { return 8 * lane_ < kHeadSize; }
  __device__ bool Works() const { return head_ < Heads() && IsInHead(); }
  __device__ bool Rotates() const { return lane_ < params_.rope.dimensions / 8; }

  // Returns the number of heads to compute: the queries' and, in the segment with the row's last
  // position, a key and a value, in this order.
  __device__ int Heads() const { return params_.group + (segment_.HasLast() ? 2 : 0); }
  // Returns the first column of the thread's head in the product.
  __device__ int64_t Column() const {
    const int in_product = head_ < params_.group ? segment_.head * params_.group + head_
                                                 : head_ * params_.kv_heads + segment_.head;
    return HeadColumn(params_.rope.gates, in_product, params_.kv_heads * params_.group, kHeadSize);
  }

  __device__ void LoadConstants() {
    const float* const scales = params_.qkv.channel_scales;
    const float* const norm = head_ < params_.group ? params_.rope.q_norm : params_.rope.k_norm;
#pragma unroll
    for (int i = 0; i < 8; ++i) scales_[i] = weight_[i] = 1;
    if (!Works()) return;
    if (scales != nullptr) LoadRuns(scales + Column(), runs_, scales_);
    if (norm != nullptr) LoadRuns(norm, runs_, weight_);
  }

  // Called by all lanes of the warp.
  __device__ void ComputeHead(uint32_t rows, uint32_t kv_address) {
    const int kv = head_ - params_.group;  // 0: a key, 1: a value
    float x[8];
    const float* const bias = params_.rope.bias;
    raw_.Values(scales_, bias != nullptr && Works() ? bias + Column() : nullptr, runs_, x);
    const HeadRule rule = {params_.rope.q_norm != nullptr, Rotates(), !params_.rope.interleaved,
                           params_.rope.norm_epsilon};
    NormAndRotate<kHeadSize>(rule, kv == 1, IsInHead(), weight_, rotation_, x);
    if (!Works()) return;
    if (kv >= 0) {
      StoreKv(kv, kv_address + kv * kRowBytes, x);
      return;
    }
    const uint4 query = Pack8(x);
    StoreShared8(rows + ByteOffset(head_, 2 * runs_.first), make_uint2(query.x, query.y));
    StoreShared8(rows + ByteOffset(head_, 2 * runs_.second), make_uint2(query.z, query.w));
  }

  __device__ void StoreKv(int kv, uint32_t to, const float (&x)[8]) const {
    const int in_block = segment_.row.position & ((1 << params_.block_shift) - 1);
    uint8_t* const page = params_.pages + block_ * params_.block_stride +
                          (kv * params_.kv_heads + segment_.head) * params_.head_stride +
                          in_block * kRowBytes;
    if constexpr (sizeof(Kv) == 1) {
      const uint2 codes = Fp8Codes8(x, kv == 0 ? params_.key_inverse : params_.value_inverse);
      *reinterpret_cast<uint32_t*>(page + runs_.first) = codes.x;
      *reinterpret_cast<uint32_t*>(page + runs_.second) = codes.y;
      StoreShared4(to + runs_.first, codes.x);
      StoreShared4(to + runs_.second, codes.y);
    } else {
      const uint4 bits = PackForPages(x, kv == 1);
      const uint2 first = make_uint2(bits.x, bits.y), second = make_uint2(bits.z, bits.w);
      *reinterpret_cast<uint2*>(page + 2 * runs_.first) = first;
      *reinterpret_cast<uint2*>(page + 2 * runs_.second) = second;
      StoreShared8(to + 2 * runs_.first, first);
      StoreShared8(to + 2 * runs_.second, second);
    }
  }

  __device__ static uint32_t ByteOffset(int row, int byte) {
    return QueryRow::Offset(row, byte / 16) + byte % 16;
  }

  const Params& params_;
  const Segment& segment_;
  const int lane_;  // among those of a head
  int head_;
  const Runs runs_;
  int64_t block_;  // of the new key and value
  float rotation_[8];
  float scales_[8];
  float weight_[8];
  HeadRuns raw_;
};

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_ROPE_CUH_
