// Dense linears with four-bit weights and few tiles, in grouped_kernel.cuh: teams of four warps
// take turns at the stages of a tile.
//
// A team unpacks its stage into registers while the others unpack and multiply, takes over the sums
// in shared memory, multiplies by wgmma, and hands them on: so K stays in sequence. A tile of 64
// rows would otherwise have one warp on each scheduler of its SM, which waits for its own
// instructions most of the time, and for the 13 cycles that wgmma takes to read weights from
// registers (docs/experiments/experts.md).
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_TURNS_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_TURNS_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/grouped_four_bit.cuh"
#include "kernels/gemm/sm90/grouped_load.cuh"
#include "kernels/gemm/sm90/grouped_output.cuh"
#include "kernels/gemm/sm90/grouped_shape.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class FourBitTurns {
 public:
  __device__ FourBitTurns(const GroupedParams& params, GroupedBarriers& barriers,
                          const GroupedMemory<Shape>& memory)
      : p_(params), barriers_(barriers), memory_(memory) {
    // The compiler is to know that all lanes have the same team.
    team_ = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  }

  // Called by all multiplying warps. A CTA has one tile, and each stage of it is a turn.
  __device__ void Run() {
    AwaitPredecessor();
    const bool odd = p_.chunks / 2 % 2 == 1;  // the last stage has one block
    PipelineState state = {.stage = team_, .phase = 0};
    Sums sums = {};
    int turn = team_;
    for (; turn < p_.steps; turn += Shape::kTeams) {
      barriers_.full[state.stage].Wait(state.phase);
      const bool is_last = turn + 1 == p_.steps;
      if (odd && is_last) {
        TakeTurn<1>(state.stage, turn > 0, is_last, sums);
      } else {
        TakeTurn<2>(state.stage, turn > 0, is_last, sums);
      }
      state.stage += Shape::kTeams;
      if (state.stage >= p_.stages) {
        state.stage -= p_.stages;
        state.phase ^= 1;
      }
    }
    if (turn - Shape::kTeams + 1 == p_.steps) Write(sums);
  }

 private:
  static_assert(Shape::kFourBitBlocks == 2 && Shape::kTeams <= kMinGroupedStages);
  static constexpr int kSums = Shape::kTokens / 2;  // a thread's
  using Sums = float[kSums];

  // Multiplies the kBlocks blocks of a stage, which has arrived. `continues`: another team's sums.
  template <int kBlocks>
  __device__ void TakeTurn(int stage, bool continues, bool is_last, Sums& sums) const {
    FourBitValues<Shape> values[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      values[i].Unpack(lane_, memory_.Weights(stage) + i * Shape::kFourBitBlockBytes,
                       p_.four_bit_scale);
      values[i].FenceAll();  // or the compiler would unpack when it is this team's turn
    }
    const uint32_t inputs = SwizzledMatrix(memory_.Inputs(stage));
    constexpr uint32_t kNextBlock = 2 * Shape::kTokens * kChunk >> 4;
    if (continues) {
      AwaitTurn();
      LoadSums(sums);
    }
    Fence(sums);
    BeginMultiply();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) values[i].Multiply(inputs + i * kNextBlock, sums);
    EndMultiply();
    WaitForProducts<0>();
    Fence(sums);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) values[i].FenceAll();
    Delay::Wait();
    if (!is_last) {
      StoreSums(sums);
      PassTurn();
    }
    if (threadIdx.x % kWarpSize == 0) barriers_.empty[stage].Arrive();
  }

  __device__ void Write(const Sums& sums) const {
    const GroupedTile tile = {
        .group = 0, .row_tile = static_cast<int>(blockIdx.x), .first = 0, .count = p_.tokens};
    const int thread = threadIdx.x % 128;
    GroupedColumns<Shape::kTokens> columns;
    columns.Load(p_, tile);
    const int first_row = tile.row_tile * Shape::kRows + thread / kWarpSize * 16;
    GroupedWriter<Shape::kTokens>(p_, tile, first_row).Write(sums, columns);
    if (p_.output.gate != GroupedGate::kNone && tile.row_tile + 1 == p_.row_tiles) {
      WritePadding(p_, tile, thread, 128);
    }
  }

  // A team waits until the one before it has passed the turn to it.
  __device__ void AwaitTurn() const {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + team_) : "memory");
  }
  __device__ void PassTurn() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + (team_ + 1) % Shape::kTeams) : "memory");
  }

  // The sums that teams hand on: those of a thread for the same thread of the next team.
  __device__ uint32_t Handed(int i) const {
    return memory_.sums + threadIdx.x % 128 * 16 + i * 512;
  }
  __device__ void StoreSums(const Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(Handed(i)), "f"(sums[i]),
                   "f"(sums[i + 1]), "f"(sums[i + 2]), "f"(sums[i + 3])
                   : "memory");
    }
  }
  __device__ void LoadSums(Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(sums[i]), "=f"(sums[i + 1]), "=f"(sums[i + 2]), "=f"(sums[i + 3])
                   : "r"(Handed(i))
                   : "memory");
    }
  }

  const GroupedParams& p_;
  GroupedBarriers& barriers_;
  const GroupedMemory<Shape> memory_;
  const FourBitLane<Shape> lane_;
  int team_;
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_TURNS_CUH_
