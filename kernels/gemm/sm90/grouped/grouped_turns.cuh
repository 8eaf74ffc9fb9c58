// Linears with four-bit weights and few tokens, and dense ones with few tiles, in
// grouped_kernel.cuh: teams of four warps take turns at the stages of a tile. Rows by group lie in
// the order of the groups.
//
// A team unpacks its stage into registers while the others unpack and multiply, takes over the sums
// in shared memory, multiplies by wgmma, and hands them on: so K stays in sequence. A tile of 64
// rows would otherwise have one warp on each scheduler of its SM, which waits for its own
// instructions most of the time, and for the 13 cycles that wgmma takes to read weights from
// registers (docs/experiments/experts.md).
//
// Weights and inputs have a thread and barriers of their own: the first stages are unpacked before
// the predecessor has ended, and one thread would take as long for both as the memory for a stage.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_TURNS_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_TURNS_CUH_

#include <cstdint>
#include <limits>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/grouped/grouped_four_bit.cuh"
#include "kernels/gemm/sm90/grouped/grouped_load.cuh"
#include "kernels/gemm/sm90/grouped/grouped_output.cuh"
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

// Returns a tile of a dense linear. More tokens than a tile holds have CTAs of one tile each; those
// of the same weights are neighbours.
template <typename Shape>
__device__ GroupedTile DenseTile(const GroupedParams& p, int number) {
  if (!Shape::kHasOneTile) return {.group = 0, .row_tile = number, .first = 0, .count = p.tokens};
  return TileList<Shape::kTokens>(p).TileOf(number, make_int4(0, 0, 0, p.tokens));
}

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class FourBitTurns {
 public:
  __device__ FourBitTurns(const GroupedParams& params, GroupedBarriers& barriers,
                          const GroupedMemory<Shape>& memory)
      : p_(params), memory_(memory), addresses_(barriers) {
    // The compiler is to know that all lanes have the same team.
    team_ = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  }

  // Called by all multiplying warps. A CTA has one tile after the other, and each stage is a turn.
  __device__ void Run() {
    ReleaseDependents();
    if (Shape::kGroupTurns) {
      if (p_.groups.order != nullptr) WaitForPredecessor();
      tiles_ = TileList<Shape::kTokens>(p_).Count();
    }
    WithSteps<Shape::kFourBitType>(p_.four_bit_steps,
                                   [this](auto steps) { TakeTurns<decltype(steps)::value>(); });
  }

 private:
  static_assert(Shape::kTeams <= kMinGroupedStages);
  static constexpr int kSums = Shape::kTokens / 2;  // a thread's
  using Sums = float[kSums];

  template <FourBitSteps kSteps>
  __device__ void TakeTurns() {
    PipelineState state = {.stage = team_, .phase = 0};
    Turn turn = {.tile = static_cast<int>(blockIdx.x), .step = team_};
    for (; turn.tile < Tiles(); turn.tile = NextTile(turn.tile)) {
      Sums sums = {};
      for (; turn.step < p_.steps; turn.step += Shape::kTeams) {
        TakeTurn<kSteps>(state, turn, sums);
        state.stage += Shape::kTeams;
        if (state.stage >= p_.stages) {
          state.stage -= p_.stages;
          state.phase ^= 1;
        }
      }
      turn.step -= p_.steps;
      if (!Shape::kGroupTurns && turn.step + 1 == Shape::kTeams) Write(turn.tile, sums);
    }
  }

  // A stage of a tile.
  struct Turn {
    int tile, step;
  };
  __device__ bool IsFirst(const Turn& turn) const {
    return turn.step == 0 && (Shape::kHasOneTile || turn.tile == static_cast<int>(blockIdx.x));
  }
  __device__ bool IsLast(const Turn& turn) const {
    return turn.step + 1 == p_.steps && NextTile(turn.tile) >= Tiles();
  }
  __device__ int Tiles() const {
    return Shape::kGroupTurns ? tiles_ : Shape::kHasOneTile ? kNoTile : p_.row_tiles;
  }
  __device__ int NextTile(int tile) const {
    return Shape::kHasOneTile ? kNoTile : tile + static_cast<int>(gridDim.x);
  }
  static constexpr int kNoTile = std::numeric_limits<int>::max();

  // Multiplies the blocks of a stage.
  template <FourBitSteps kSteps>
  __device__ void TakeTurn(const PipelineState& state, const Turn& turn, Sums& sums) const {
    constexpr int kBlocks = Shape::kFourBitBlocks;
    const int blocks = p_.chunks / 2 - turn.step * kBlocks;  // this stage's, and those behind
    const uint32_t full = addresses_.full + state.stage * sizeof(Barrier);
    int hands_on = !IsLast(turn);
    asm volatile("" : "+r"(hands_on));  // known before the next team waits for it
    Barrier::WaitAtAddress(full, state.phase);
    if (blocks >= kBlocks) {
      Multiply<kSteps, kBlocks>(state, 0, turn, sums);
    } else {
      if (blocks >= 2) Multiply<kSteps, 2>(state, 0, turn, sums);
      if (blocks % 2 == 1) Multiply<kSteps, 1>(state, blocks - 1, turn, sums);
    }
    if (hands_on) {
      StoreSums(sums);  // for nothing where a tile ends: one condition is there earlier than two
      PassTurn();
    }
    if (Shape::kGroupTurns && turn.step + 1 == p_.steps) {
      WriteGroup(memory_.ends + state.stage * Shape::kEndBytes, sums);
    }
    if (addresses_.first_lane) {
      Barrier::ArriveAtAddress(full + GroupedBarriers::kFromFullToEmpty);
    }
  }

  // Adds the products of the blocks [first, first + kBlocks) of a stage, whose weights have
  // arrived. The turn begins with the first product.
  template <FourBitSteps kSteps, int kBlocks>
  __device__ void Multiply(const PipelineState& state, int first, const Turn& turn,
                           Sums& sums) const {
    FourBitValues<Shape> values[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      values[i].template Unpack<kSteps>(
          lane_, memory_.Weights(state.stage) + (first + i) * Shape::kFourBitBlockBytes);
      values[i].FenceAll();  // or the compiler would unpack when it is this team's turn
    }
    constexpr uint32_t kBlockInputs = 2 * Shape::kTokens * kChunk;
    const uint32_t inputs = SwizzledMatrix(memory_.Inputs(state.stage) + first * kBlockInputs);
    Barrier::WaitAtAddress(
        addresses_.full + state.stage * sizeof(Barrier) + GroupedBarriers::kFromFullToInputs,
        state.phase);
    // Also where a tile begins: until then the sums of the one before may still be read.
    if (first == 0 && !IsFirst(turn)) AwaitTurn();
    if (first == 0 && turn.step > 0) LoadSums(sums);
    Fence(sums);
    BeginMultiply();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) values[i].Multiply(inputs + i * (kBlockInputs >> 4), sums);
    EndMultiply();
    WaitForProducts<0>();
    Fence(sums);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) values[i].FenceAll();
    Delay::Wait();
  }

  // Writes the sums of a tile of a dense linear.
  __device__ void Write(int number, const Sums& sums) const {
    WaitForPredecessor();
    const GroupedTile tile = DenseTile<Shape>(p_, number);
    const int thread = threadIdx.x % 128;
    GroupedColumns<Shape::kTokens> columns;
    columns.LoadPairs(p_, tile);
    columns.template LoadScales<true>(p_, tile);
    const int first_row = tile.row_tile * Shape::kRows + thread / kWarpSize * 16;
    GroupedWriter<Shape::kTokens> writer(p_, tile, first_row);
    writer.LoadRows();
    writer.Write(sums, columns);
    WritePaddingOf(tile);
  }

  // The same with kGroupTurns; `end` has what it takes. Nothing is read from global memory: the
  // team would miss its next turn.
  __device__ void WriteGroup(uint32_t end, const Sums& sums) const {
    WaitForPredecessor();
    const int thread = threadIdx.x % 128, lane = thread % kWarpSize;
    const uint4 entry = LoadAt<uint4>(end, 0);
    const GroupedTile tile = {.group = static_cast<int>(entry.x),
                              .row_tile = static_cast<int>(entry.y),
                              .first = static_cast<int>(entry.z),
                              .count = static_cast<int>(entry.w)};
    GroupedColumns<Shape::kTokens> columns;
    for (float& scale : columns.scale) scale = p_.unit;
    constexpr int kRows = 16, kBiases = kRows + Shape::kTokens * 4;
#pragma unroll
    for (int i = 0; i < Shape::kTokens / 8; ++i) {
      columns.pair[i] = static_cast<int>(LoadAt<uint32_t>(end, kRows + (8 * i + lane / 4) * 4));
    }
    const int row = thread / kWarpSize * 16;
    float bias[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bias[half] =
          __uint_as_float(LoadAt<uint32_t>(end, kBiases + (row + lane / 4 + 8 * half) * 4));
    }
    GroupedWriter<Shape::kTokens>(p_, tile, tile.row_tile * Shape::kRows + row)
        .Write(sums, columns, bias);
    WritePaddingOf(tile);
  }

  __device__ void WritePaddingOf(const GroupedTile& tile) const {
    if (p_.output.gate != GroupedGate::kNone && tile.row_tile + 1 == p_.row_tiles) {
      WritePadding(p_, tile, threadIdx.x % 128, 128);
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
  const GroupedMemory<Shape> memory_;
  const BarrierAddresses addresses_;
  const FourBitLane<Shape> lane_;
  int team_;
  int tiles_ = 0;  // kGroupTurns
};

// The loading warps: a thread of the first one copies weights, one of the other inputs, to which
// with kGroupTurns the warp adds what writes a tile.
template <typename Shape, typename Delay>
class TurnsLoader {
 public:
  __device__ TurnsLoader(const GroupedParams& params, GroupedBarriers& barriers,
                         const GroupedMemory<Shape>& memory)
      : p_(params), barriers_(barriers), memory_(memory) {}

  // Called by all loading threads; `thread` is this one's number among them.
  __device__ void Run(int thread) const {
    static_assert(Shape::kLoadThreads == 2 * kWarpSize && Shape::kRowGroups == 1);
    ReleaseDependents();
    if (thread == 0) CopyWeights();
    if (Shape::kGroupTurns) {
      if (thread >= kWarpSize) CopyInputs(thread - kWarpSize);
    } else {
      if (thread == kWarpSize) CopyInputs(0);
    }
  }

 private:
  static constexpr int kRowsOfLane = CeilDiv(Shape::kTokens, kWarpSize);

  // Weights of a dense linear depend on nothing. No more than kEarlyStages are under way at a
  // time: what else an SM asks for, as the inputs, stands in line behind them.
  __device__ void CopyWeights() const {
    if (Shape::kGroupTurns && p_.groups.order != nullptr) WaitForPredecessor();
    constexpr int kBytes = Shape::kFourBitBlocks * Shape::kFourBitBlockBytes;
    const int bytes = p_.chunks / 2 * Shape::kFourBitBlockBytes;  // of a tile
    const int row_blocks = CeilDiv(p_.rows, kFourBitRows);
    PipelineState state = {.stage = 0, .phase = 1}, landed;
    int left = min(Shape::kEarlyStages, p_.stages);  // that may begin before another has landed
    ForEachTile([&](const GroupedTile& tile) {
      const uint8_t* const from =
          p_.four_bit + (int64_t{tile.group} * row_blocks + tile.row_tile) * bytes;
      for (int at = 0; at < bytes; at += kBytes) {
        barriers_.empty[state.stage].Wait(state.phase);
        if (--left < 0) {
          barriers_.full[landed.stage].Wait(landed.phase);
          landed.Advance(p_.stages);
        }
        const int of_stage = min(kBytes, bytes - at);
        Delay::Wait();
        barriers_.full[state.stage].ArriveAndExpect(of_stage);
        CopyBytes(memory_.Weights(state.stage), from + at, of_stage, barriers_.full[state.stage],
                  EvictFirst());
        state.Advance(p_.stages);
      }
    });
  }

  // With a tile's last stage comes what its end takes, which is read when the tile begins.
  __device__ void CopyInputs(int lane) const {
    if (lane == 0) PrefetchMap(p_.input_rows);
    WaitForPredecessor();
    PipelineState state = {.stage = 0, .phase = 1};
    ForEachTile([&](const GroupedTile& tile) {
      int rows[kRowsOfLane] = {};
      float bias[2] = {};
      if (Shape::kGroupTurns) {
        for (int i = 0; i < kRowsOfLane; ++i) rows[i] = OutputRow(tile, i * kWarpSize + lane);
        bias[0] = Bias(tile, lane), bias[1] = Bias(tile, kWarpSize + lane);
      }
      for (int step = 0; step < p_.steps; ++step) {
        if (lane == 0) barriers_.empty[state.stage].Wait(state.phase);
        if (Shape::kGroupTurns && step + 1 == p_.steps) {
          __syncwarp();
          StoreEnd(state.stage, tile, rows, bias, lane);
          __syncwarp();
        }
        if (lane == 0) {
          Delay::Wait();
          barriers_.inputs[state.stage].ArriveAndExpect(Shape::kInputBytes);
          CopyBox(memory_.Inputs(state.stage), p_.input_rows, 0, tile.first, step * Shape::kChunks,
                  barriers_.inputs[state.stage], EvictLast());
        }
        state.Advance(p_.stages);
      }
    });
  }

  // Returns where a row of the tile goes, and the bias of a row of the tile's weight.
  __device__ int OutputRow(const GroupedTile& tile, int row) const {
    if (row >= tile.count) return 0;
    return p_.output_rows == nullptr ? tile.first + row : p_.output_rows[tile.first + row];
  }
  __device__ float Bias(const GroupedTile& tile, int of_tile) const {
    const int row = tile.row_tile * Shape::kRows + of_tile;
    return p_.bias == nullptr || row >= p_.rows ? 0 : p_.bias[int64_t{tile.group} * p_.rows + row];
  }

  __device__ void StoreEnd(int stage, const GroupedTile& tile, const int (&rows)[kRowsOfLane],
                           const float (&bias)[2], int lane) const {
    const uint32_t end = memory_.ends + stage * Shape::kEndBytes;
    const auto store = [end](int at, uint32_t word) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(end + at * 4), "r"(word) : "memory");
    };
    if (lane == 0) store(0, tile.group), store(1, tile.row_tile);
    if (lane == 0) store(2, tile.first), store(3, tile.count);
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int of_tile = i * kWarpSize + lane;
      if (of_tile < Shape::kTokens) store(4 + of_tile, rows[i]);
    }
    constexpr int kBiases = 4 + Shape::kTokens;
    store(kBiases + lane, __float_as_uint(bias[0]));
    store(kBiases + kWarpSize + lane, __float_as_uint(bias[1]));
  }

  // Calls copy(tile) for the CTA's tiles. The list's entries are read one tile ahead.
  template <typename Copy>
  __device__ void ForEachTile(const Copy& copy) const {
    const int apart = static_cast<int>(gridDim.x);
    if constexpr (!Shape::kGroupTurns) {
      const int tiles = Shape::kHasOneTile ? apart : p_.row_tiles;
      for (int number = blockIdx.x; number < tiles; number += apart) {
        copy(DenseTile<Shape>(p_, number));
      }
      return;
    }
    const TileList<Shape::kTokens> list(p_);
    const int tiles = list.Count();
    int4 entry = list.EntryOf(static_cast<int>(blockIdx.x));
    for (int number = blockIdx.x; number < tiles; number += apart) {
      const GroupedTile tile = list.TileOf(number, entry);
      if (number + apart < tiles) entry = list.EntryOf(number + apart);
      copy(tile);
    }
  }

  const GroupedParams& p_;
  GroupedBarriers& barriers_;
  const GroupedMemory<Shape> memory_;
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_TURNS_CUH_
