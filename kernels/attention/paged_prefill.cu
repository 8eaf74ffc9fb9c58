// Prefill with mma.sync, as in FlashAttention-2 (arXiv:2307.08691). A warp holds 32 query rows
// where registers allow, so that each key and value read from shared memory serves two
// instructions.
#include "kernels/attention/prefill_common.cuh"

namespace millrace::kernels::attention {
namespace {

constexpr int BlocksFor(int head_size) { return head_size <= 128 ? 2 : 1; }

template <typename Kv, int kSize>
class Reader : public PrefillBase<Kv, kSize, BlocksFor(kSize), 2, typename Tile<Kv, kSize>::Row> {
  using Base = PrefillBase<Kv, kSize, BlocksFor(kSize), 2, typename Tile<Kv, kSize>::Row>;
  using T = typename Base::T;
  using Base::lane_, Base::params_, Base::queries_, Base::query_lane_, Base::shared_, Base::Stage,
      Base::values_;
  static constexpr int kBlocks = BlocksFor(kSize);

 public:
  using Base::kThreads;
  static constexpr int kHeadSize = kSize;
  static constexpr int kCtas = kThreads == 128 ? kCtasPerSm : 1;

  __device__ Reader(const Params& params, PrefillShared& shared, uint32_t memory)
      : Base(params, shared, memory),
        key_lane_(T::KeyLane(lane_)),
        value_lane_(T::kBytes + T::ValueLane(lane_)) {}

  // Processes the item in shared memory.
  __device__ void RunItem() {
    const Span span = params_.Visible(shared_.item.position, shared_.item.tokens);
    const int first_tile = span.first / kTile;
    const int end = CeilDiv(span.end, kTile);
    this->Begin(span, first_tile);
    for (int tile = first_tile; tile < end;) {
      const bool first_chunk = tile == first_tile;
      const int chunk_end = min(end, (tile / kTilesPerChunk + 1) * kTilesPerChunk);
      this->ClearChunk();
      for (; tile < chunk_end; ++tile) {
        this->FinishTile();
        __syncthreads();  // this tile has arrived, and the previous one has been read
        if (tile + 1 < end) this->StartTile(tile + 1);
        if (T::kFp8 && tile == first_tile) ConvertQueries();
        RunTile(tile);
      }
      this->MergeChunk(first_chunk, tile == end);
    }
    this->Store();
  }

 private:
  // Converts the queries to FP16, which the product with FP8 keys takes.
  __device__ void ConvertQueries() {
    uint4* words = static_cast<uint4*>(__cvta_shared_to_generic(queries_));
    for (int i = threadIdx.x; i < Base::kQueryBytes / 16; i += kThreads) {
      const uint4 word = words[i];
      words[i] = make_uint4(Bf16ToHalf(word.x), Bf16ToHalf(word.y), Bf16ToHalf(word.z),
                            Bf16ToHalf(word.w));
    }
    __syncthreads();
  }

  __device__ void RunTile(int tile) {
    const uint32_t keys = Stage(tile) + key_lane_;
    float scores[kBlocks][kTileBlocks][4] = {};
#pragma unroll
    for (int pair = 0; pair < T::Row::kWords / 2; ++pair) {
      uint32_t a[kBlocks][T::kStepsPerPair][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int step = 0; step < T::kStepsPerPair; ++step) {
          T::LoadQuery(query_lane_ + 16 * m * kHeadSize * 2, pair * T::kStepsPerPair + step,
                       a[m][step]);
        }
      }
#pragma unroll
      for (int key = 0; key < kTile; key += 16) {
        uint32_t b[T::kStepsPerPair][2][2];
        T::LoadKeys(keys + key * T::kRowBytes, pair, b);
#pragma unroll
        for (int step = 0; step < T::kStepsPerPair; ++step) {
#pragma unroll
          for (int block = 0; block < 2; ++block) {
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) {
              T::MultiplyKeys(scores[m][key / 8 + block], a[m][step], b[step][block]);
            }
          }
        }
      }
    }
    this->Mask(tile, scores);
    uint32_t probabilities[kBlocks][kTile / 16][4];
    this->AddScores(scores, probabilities);
    AddValues(Stage(tile) + value_lane_, probabilities);
  }

  __device__ void AddValues(uint32_t from,
                            const uint32_t (&probabilities)[kBlocks][kTile / 16][4]) {
#pragma unroll
    for (int rows = 0; rows < kTile / 32; ++rows) {
#pragma unroll
      for (int word = 0; word < T::Row::kWords; ++word) {
        uint32_t b[2][T::kBlocksPerWord][2];
        T::LoadValues(from + rows * 32 * T::kRowBytes, word, b);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int block = 0; block < T::kBlocksPerWord; ++block) {
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) {
              T::MultiplyValues(values_[m][word * T::kBlocksPerWord + block],
                                probabilities[m][2 * rows + step], b[step][block]);
            }
          }
        }
      }
    }
  }

  const uint32_t key_lane_;  // in a stage
  const uint32_t value_lane_;
};

template <typename Kv, int kHeadSize>
__global__ void __launch_bounds__(Reader<Kv, kHeadSize>::kThreads, Reader<Kv, kHeadSize>::kCtas)
    PrefillKernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ PrefillShared shared;
  RunPrefillItems<Reader<Kv, kHeadSize>>(params, shared, SharedAddress(memory));
}

template <typename Kv, int kHeadSize>
cudaError_t LaunchKernel(const Launch& launch) {
  return LaunchPrefillKernel<Reader<Kv, kHeadSize>>(launch, PrefillKernel<Kv, kHeadSize>);
}

}  // namespace

cudaError_t LaunchPrefill(const Launch& launch) {
  return ForPages(launch.args.pages, [&]<typename Kv, int kHeadSize>() {
    return LaunchKernel<Kv, kHeadSize>(launch);
  });
}

}  // namespace millrace::kernels::attention
