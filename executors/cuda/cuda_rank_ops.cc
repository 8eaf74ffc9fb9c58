// The ops of CudaOps where ranks divide the weights: sums over the ranks, and logits that are
// dealt out to the ranks that sample them.
#include <algorithm>
#include <cstdint>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_ops.h"
#include "kernels/collective/all_gather.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/collective/deal_rows.h"
#include "kernels/collective/share_samples.h"
#include "kernels/norm/rms_norm.h"

namespace millrace::cuda {
namespace {

// Up to so many rows are sampled by every rank: their logits take less time than a further exchange
// of what was sampled.
constexpr int kFewRows = 8;

kernels::AllReduceMethod MethodFor(const RankPeers& peers, int tokens, int width) {
  if (peers.alone) return kernels::AllReduceMethod::kOneShot;
  return kernels::BestAllReduce(peers.communicator.ranks,
                                int64_t{sizeof(kernels::Bf16)} * tokens * width);
}

bool FitsSlot(const RankPeers& peers, int tokens, int width) {
  return kernels::AllReduceSlotBytes(MethodFor(peers, tokens, width), peers.communicator.ranks,
                                     tokens, width) <= peers.communicator.slot_bytes;
}

}  // namespace

CudaDelta CudaOps::SumRanks(const CudaDelta& delta, int tokens, int width) {
  if (delta.sum == nullptr) return delta;
  const kernels::Product& partial = delta.product;
  CudaDelta summed = delta;
  summed.product = {delta.sum, partial.stride, nullptr, nullptr};
  summed.sum = nullptr;
  if (c_.peers == nullptr) return summed;  // a dry run
  if (const NcclPeers* const by = by_nccl()) {
    SumByNccl(*by, delta, tokens, width);
    return summed;
  }
  const kernels::Communicator& communicator = c_.peers->communicator;
  int chunk = tokens;
  while (!FitsSlot(*c_.peers, chunk, width)) chunk = (chunk + 1) / 2;
  for (int first = 0; first < tokens; first += chunk) {
    const int rows = std::min(chunk, tokens - first);
    kernels::Product part = partial;
    part.data += first * partial.stride;
    if (part.token_scales != nullptr) part.token_scales += first;
    RunTogether("all-reduce", {int64_t{4} * rows * width}, [&] {
      return kernels::LaunchAllReduce({.communicator = communicator,
                                       .method = MethodFor(*c_.peers, rows, width),
                                       .partial = part,
                                       .sum = delta.sum + first * partial.stride,
                                       .sum_stride = partial.stride,
                                       .tokens = rows,
                                       .width = width},
                                      stream_);
    });
  }
  return summed;
}

bool CudaOps::ReducesInNorm(const CudaDelta& delta, int tokens, int width) const {
  if (by_nccl() != nullptr) return false;
  return delta.sum != nullptr && (c_.peers == nullptr || FitsSlot(*c_.peers, tokens, width));
}

cudaError_t CudaOps::LaunchReduceNorm(const kernels::RmsNormArgs& args) {
  return kernels::LaunchAllReduceNorm({.communicator = c_.peers->communicator,
                                       .method = MethodFor(*c_.peers, args.tokens, args.width),
                                       .norm = args},
                                      stream_);
}

void CudaOps::Meet() {
  if (measures_ || c_.peers == nullptr || c_.peers->group == nullptr) return;
  if (c_.peers->group->Barrier(c_.weights->rank.rank - c_.peers->first_rank)) return;
  Fail(absl::UnavailableError("another rank has failed"));
}

LinearInput CudaOps::AddMixture(const kernels::CombineArgs& combine, const Addend& addend,
                                Residual& residual, std::optional<NormId> norm,
                                Consumers consumers) {
  const int tokens = combine.tokens;
  const int width = combine.width;
  const CudaRows partial = TakeRows(sizeof(kernels::Bf16) * width, tokens);
  kernels::CombineArgs args = combine;
  args.partial = partial.bf16();
  Run("combine", {int64_t{2} * tokens * width * (combine.slots + 1)},
      [&] { return kernels::LaunchCombine(args, stream_); });
  const CudaDelta delta = {.product = {partial.bf16(), width, nullptr, nullptr},
                           .factor = addend.factor,
                           .sum = partial.bf16()};
  if (norm.has_value()) return AddNorm(*norm, residual, delta, consumers);
  AddDelta(delta, std::nullopt, width, residual);
  return Norm(norm, residual, consumers);
}

CudaRows CudaOps::GatherSquares(const HeadNorms& norms, kernels::RopeAppendArgs& args) {
  const CudaNorm& q = c_.weights->Norm(norms.q);
  const CudaNorm& k = c_.weights->Norm(norms.k);
  const int ranks = c_.weights->rank.size;
  constexpr int kRecord = 2;  // floats of a token
  CudaRows memory = TakeRows(sizeof(float) * kRecord * (1 + ranks), args.tokens);
  float* const own = memory.floats();
  float* const all = own + kRecord * args.tokens;
  args.rank_squares = all;
  args.ranks = ranks;
  args.all_q = q.all;
  args.all_k = k.all;
  const int64_t bytes = int64_t{sizeof(float)} * kRecord * args.tokens;
  Run("squares", {int64_t{2} * args.tokens * (q.size + k.size) + bytes}, [&] {
    return kernels::LaunchHeadSquares({.qkv = args.qkv,
                                       .bias = args.rope.bias,
                                       .tokens = args.tokens,
                                       .q_width = q.size,
                                       .k_width = k.size,
                                       .counts_k = k.counted,
                                       .squares = own},
                                      stream_);
  });
  GatherRecords(own, kRecord, args.tokens, all);
  return memory;
}

void CudaOps::GatherRecords(const float* own, int record, int tokens, float* all) {
  if (c_.peers == nullptr) return;  // a dry run
  const int record_bytes = static_cast<int>(sizeof(float)) * record;
  if (const NcclPeers* const by = by_nccl()) {
    GatherRecordsByNccl(*by, own, tokens, record_bytes, all);
    return;
  }
  const int64_t ranks = c_.weights->rank.size;
  const kernels::Communicator& communicator = c_.peers->communicator;
  const int chunk =
      static_cast<int>(std::min<int64_t>(communicator.slot_bytes / (2 * record_bytes), tokens));
  for (int first = 0; first < tokens; first += chunk) {
    RunTogether("all-gather", {int64_t{record_bytes} * tokens * (1 + ranks)}, [&] {
      return kernels::LaunchAllGather({.communicator = communicator,
                                       .records = own + int64_t{record} * first,
                                       .gathered = all + record * ranks * first,
                                       .rows = std::min(chunk, tokens - first),
                                       .record_bytes = record_bytes},
                                      stream_);
    });
  }
}

CudaOps::RowShare CudaOps::DealLogits(const CudaLinear& head, int rows) {
  const RowShare all{.first = 0, .count = rows};
  if (!divided() || c_.peers == nullptr) return all;  // or a dry run
  const StepBuffers& buffers = *c_.buffers;
  const int width = head.weight.rows;
  const int64_t row_bytes = sizeof(float) * width;
  if (const NcclPeers* const by = by_nccl()) {
    GatherRecordsByNccl(*by, buffers.logit_share, rows, static_cast<int>(row_bytes),
                        buffers.logits);
    return all;
  }
  const kernels::Communicator& communicator = c_.peers->communicator;
  const int share = rows > kFewRows ? (rows - 1) / communicator.ranks + 1 : rows;
  const int chunk =
      static_cast<int>(std::clamp<int64_t>(communicator.slot_bytes / row_bytes, 1, share));
  for (int first = 0; first < share; first += chunk) {
    const int count = std::min(chunk, share - first);
    RunTogether("logits", {2 * row_bytes * count * communicator.ranks}, [&] {
      return kernels::LaunchDealRows({.communicator = communicator,
                                      .columns = buffers.logit_share,
                                      .whole = buffers.logits,
                                      .rows = rows,
                                      .share = share,
                                      .width = width,
                                      .first = first,
                                      .count = count},
                                     stream_);
    });
  }
  return {.first = kernels::FirstDealtRow(rows, share, communicator.rank), .count = share};
}

void CudaOps::ShareSamples(int first, int rows, const RowShare& share) {
  if (share.count == rows) return;
  const StepBuffers& buffers = *c_.buffers;
  const int64_t bytes = int64_t{kernels::kSharedSampleBytes} * (share.count + rows);
  RunTogether("samples", {bytes}, [&] {
    return kernels::LaunchShareSamples({.communicator = c_.peers->communicator,
                                        .rows = buffers.arrays.samples + first,
                                        .results = buffers.results + first,
                                        .tops = buffers.tops + first * kernels::kMaxSampledTop,
                                        .num_rows = rows,
                                        .share = share.count,
                                        .last_tokens = buffers.last_tokens,
                                        .history = buffers.arrays.history,
                                        .history_stride = buffers.arrays.history_stride},
                                       stream_);
  });
}

}  // namespace millrace::cuda
