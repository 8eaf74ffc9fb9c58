// The shared-memory layout of the sm_90a prefill kernel, and its four producer warps.
#ifndef MILLRACE_KERNELS_ATTENTION_PREFILL_SM90_COPY_CUH_
#define MILLRACE_KERNELS_ATTENTION_PREFILL_SM90_COPY_CUH_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_params.cuh"
#include "kernels/attention/attention_pipeline.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {

inline constexpr int kGroupThreads = 128;   // a warp group; the first one copies
inline constexpr int kComputingGroups = 2;  // with 64 rows of queries each
static_assert(kPrefillRows == kComputingGroups * 64);
// named barrier of the producer warps; 0 is __syncthreads
inline constexpr int kCopyingBarrier = 1;

// An item and kv head that a CTA processes. An item without tokens ends the loop.
struct PrefillWork {
  PrefillItem item;
  int head;
};

// Shared memory beside tiles and queries.
struct PrefillSm90Shared {
  uint64_t barriers[kBarrierBytes / 8];
  uint64_t queries_read;
  int next[2];          // tile counter values of even and odd work items
  PrefillWork work[2];  // of even and odd work items
  Softmax totals[kPrefillRows];
};

// Layout of a tile for wgmma: consecutive matrices of 64 columns of 16 bits, swizzled.
template <int kHeadSize>
struct SwizzledRow {
  static constexpr int kWords = kHeadSize / 8;
  static constexpr int kColumnBytes = kTile * 128;
  __device__ static uint32_t Offset(int row, int word) {
    return word / 8 * kColumnBytes + row * 128 + 16 * (word % 8 ^ row % 8);
  }
};

// Layout of a tile as in the pages.
template <int kRowBytes>
struct PlainRow {
  static constexpr int kWords = kRowBytes / 16;
  __device__ static uint32_t Offset(int row, int word) { return row * kRowBytes + word * 16; }
};

template <typename Kv, int kHeadSize>
struct PrefillSm90Layout {
  static constexpr bool kFp8 = sizeof(Kv) == 1;
  static constexpr int kRowBytes = kHeadSize * sizeof(Kv);
  // of keys, and again of values, in 16 bits
  static constexpr int kTileBytes = kTile * kHeadSize * 2;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kStages = kHeadSize == 64 ? 8 : kFp8 ? 4 : 5;
  static_assert(kStages <= kMaxStages);
  // FP8 tiles before their conversion to FP16.
  static constexpr int kRawBytes = 2 * kTile * kRowBytes;
  static constexpr int kRawStages = 3;

  static constexpr int kQueryOffset = kStages * kStageBytes;
  static constexpr int kRawOffset = kQueryOffset + kPrefillRows * kHeadSize * 2;
  static constexpr int kSharedOffset = kRawOffset + (kFp8 ? kRawStages * kRawBytes : 0);
  static constexpr int kBarriersOffset = kSharedOffset + offsetof(PrefillSm90Shared, barriers);
  static constexpr int kQueriesReadOffset =
      kSharedOffset + offsetof(PrefillSm90Shared, queries_read);
  static constexpr int kBytes = kSharedOffset + sizeof(PrefillSm90Shared);
};

template <typename Kv, int kHeadSize>
class PrefillProducer {
 public:
  __device__ PrefillProducer(const Params& params, PrefillSm90Shared& shared, uint32_t base)
      : params_(params),
        shared_(shared),
        base_(base),
        empty_(base + L::kBarriersOffset, L::kStages),
        full_(base + L::kBarriersOffset, L::kStages) {}

  // Takes items from the tile counter as the CTA becomes free. The last CTA to find none left
  // resets it.
  __device__ void Run() {
    PlanHeader& header = *params_.plan.header;
    const int works = header.prefill_items * params_.kv_heads;
    int next = 0;  // used by thread 0, which fetches it one item ahead
    if (threadIdx.x == 0) next = atomicAdd(&header.next_prefill_item, 1);
    for (int n = 0;; ++n) {
      if (threadIdx.x == 0) shared_.next[n % 2] = next;
      asm volatile("bar.sync %0, %1;" ::"n"(kCopyingBarrier), "n"(kGroupThreads) : "memory");
      const int i = shared_.next[n % 2];
      // Waits until the previous item's queries, and all state of the item before that, have been
      // read.
      if (n > 0) MbarrierWait(base_ + L::kQueriesReadOffset, (n - 1) % 2);
      if (i >= works) {
        if (threadIdx.x == 0) shared_.work[n % 2].item.tokens = 0;
        empty_.WaitEmpty();
        full_.Arrive();
        break;
      }
      const PrefillWork work = {params_.plan.prefill[i / params_.kv_heads], i % params_.kv_heads};
      if (threadIdx.x == 0) {
        shared_.work[n % 2] = work;
        next = atomicAdd(&header.next_prefill_item, 1);
      }
      LoadTiles(work);
    }
    if (threadIdx.x == 0) LeavePrefill(header);
  }

 private:
  using L = PrefillSm90Layout<Kv, kHeadSize>;
  using CopiedRow = std::conditional_t<L::kFp8, PlainRow<L::kRowBytes>, SwizzledRow<kHeadSize>>;

  // Loads an item's queries and tiles. Copies are started kAhead tiles before they are waited for.
  __device__ void LoadTiles(const PrefillWork& work) {
    constexpr int kAhead = L::kFp8 ? L::kRawStages - 1 : 1;
    const Span span = params_.Visible(work.item.position, work.item.tokens);
    const HeadPages pages = params_.Head(work.head);
    const int32_t* blocks = params_.Blocks(work.item.slot);
    const int first_block = span.first >> pages.block_shift;
    const int last_block = (span.end - 1) >> pages.block_shift;
    int ids[kTileRuns];  // for runs without a visible position, the nearest visible block's
    const auto load_ids = [&](int tile) {
#pragma unroll
      for (int run = 0; run < kTileRuns; ++run) {
        const int block = (tile * kTile + run * kRun) >> pages.block_shift;
        ids[run] = blocks[max(first_block, min(block, last_block))];
      }
    };
    const int first = span.first / kTile;
    const int end = CeilDiv(span.end, kTile);
    const auto start = [&](int tile) {
      if (tile < end) {
        uint32_t to = base_ + L::kRawOffset + tile % L::kRawStages * L::kRawBytes;
        if constexpr (!L::kFp8) {
          empty_.WaitEmpty();
          to = base_ + empty_.stage() * L::kStageBytes;
          empty_.Advance();
        }
        CopyTile(pages, tile * kTile, span, ids, to);
        load_ids(tile + 1);
      }
      CommitCopies();
    };
    load_ids(first);
    LoadQueries<kHeadSize, kPrefillRows, kGroupThreads>(params_, work.item, work.head,
                                                        base_ + L::kQueryOffset, threadIdx.x);
    for (int i = 0; i < kAhead; ++i) start(first + i);
    for (int tile = first; tile < end; ++tile) {
      start(tile + kAhead);
      WaitForCopies<kAhead>();
      if constexpr (L::kFp8) {
        empty_.WaitEmpty();
        ConvertTile(base_ + L::kRawOffset + tile % L::kRawStages * L::kRawBytes,
                    base_ + empty_.stage() * L::kStageBytes);
        empty_.Advance();
      }
      WgmmaFenceShared();
      full_.Arrive();
    }
  }

  // Starts the copies of a tile: keys to address `to`, values behind them.
  __device__ void CopyTile(const HeadPages& pages, int position, const Span& span,
                           const int (&ids)[kTileRuns], uint32_t to) const {
    if (position < span.first || position + kTile > span.end) {
#pragma unroll 1
      for (int run = 0; run < kTileRuns; ++run) {
        int id = ids[0];  // ids[run], but not in memory
#pragma unroll
        for (int i = 1; i < kTileRuns; ++i) id = run == i ? ids[i] : id;
        LoadRun<CopiedRow, kGroupThreads>(pages, position, run * kRun, span, id, to, threadIdx.x);
      }
      return;
    }
    // As above, but nearly all addresses are constants: a run's keys are contiguous in memory, and
    // a thread copies the same word of every kRows-th row.
    constexpr int kRows = kGroupThreads / CopiedRow::kWords;
    static_assert(kRows % 8 == 0 && kRun % kRows == 0);  // the permutation's period
    to += CopiedRow::Offset(threadIdx.x / CopiedRow::kWords, threadIdx.x % CopiedRow::kWords);
    const uint8_t* data = pages.data + threadIdx.x * 16;
#pragma unroll
    for (int run = 0; run < kTileRuns; ++run) {
      const int row = (position + run * kRun) & ((1 << pages.block_shift) - 1);
      const uint8_t* keys = data + ids[run] * pages.block_stride + row * L::kRowBytes;
      const uint8_t* values = keys + pages.value_offset;
#pragma unroll
      for (int i = 0; i < kRun; i += kRows) {
        const uint32_t at = to + (run * kRun + i) * 128;
        CopyAsync(at, keys + i * L::kRowBytes);
        CopyAsync(at + kTile * L::kRowBytes, values + i * L::kRowBytes);
      }
    }
  }

  // Converts a tile from FP8 to FP16. Each thread converts the words that it has copied.
  __device__ static void ConvertTile(uint32_t raw, uint32_t to) {
    constexpr int kWords = kTile * CopiedRow::kWords;  // of keys, of values
#pragma unroll 2
    for (int i = 0; i < 2 * kWords / kGroupThreads; ++i) {
      const int word = i * kGroupThreads % kWords + threadIdx.x;
      const int row = word / CopiedRow::kWords;
      const int column = word % CopiedRow::kWords;
      const uint32_t tile = i * kGroupThreads / kWords * L::kTileBytes;
      const uint4 codes = LoadShared(raw + i * kGroupThreads * 16 + threadIdx.x * 16);
      uint4 low, high;
      Fp8ToHalf(codes.x, low.x, low.y);
      Fp8ToHalf(codes.y, low.z, low.w);
      Fp8ToHalf(codes.z, high.x, high.y);
      Fp8ToHalf(codes.w, high.z, high.w);
      StoreShared(to + tile + SwizzledRow<kHeadSize>::Offset(row, 2 * column), low);
      StoreShared(to + tile + SwizzledRow<kHeadSize>::Offset(row, 2 * column + 1), high);
    }
  }

  __device__ static uint4 LoadShared(uint32_t from) {
    uint4 word;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "r"(from)
                 : "memory");
    return word;
  }
  __device__ static void StoreShared(uint32_t to, const uint4& word) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
  }

  const Params& params_;
  PrefillSm90Shared& shared_;
  const uint32_t base_;
  PipelineState empty_;  // the next stage to be written
  PipelineState full_;   // the next stage to be complete
};

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_PREFILL_SM90_COPY_CUH_
