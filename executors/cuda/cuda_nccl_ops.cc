// The parts of CudaOps for ranks that exchange by NCCL: those of other processes, or on GPUs that
// cannot reach one another's memory. Sums have the bits of the ranks' own collectives.
#include <algorithm>
#include <cstdint>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_ops.h"
#include "kernels/collective/gathered.h"

namespace millrace::cuda {
namespace {

// Puts what this rank sends in the place of every rank's.
cudaError_t PlayAll(const NcclPeers& by, const void* sent, int64_t bytes, cudaStream_t stream) {
  for (int rank = 0; rank < by.nccl->ranks(); ++rank) {
    const cudaError_t error =
        cudaMemcpyAsync(by.gathered + rank * bytes, sent, bytes, cudaMemcpyDeviceToDevice, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Returns how many rows of `bytes` fit into a slot, at least one of which does.
int RowsOfSlot(const NcclPeers& by, int64_t bytes, int rows) {
  return static_cast<int>(std::clamp<int64_t>(by.slot_bytes / bytes, 1, rows));
}

}  // namespace

void CudaOps::GatherByNccl(const NcclPeers& by, const void* sent, int64_t bytes) {
  RunTogether("nccl all-gather", {bytes * (1 + by.nccl->ranks())}, [&] {
    if (c_.peers->alone) return PlayAll(by, sent, bytes, stream_);
    return by.nccl->AllGather(sent, by.gathered, bytes, stream_);
  });
}

void CudaOps::GatherRecordsByNccl(const NcclPeers& by, const void* records, int rows,
                                  int record_bytes, void* gathered) {
  if (rows == 0) return;
  const int ranks = by.nccl->ranks();
  const int chunk = RowsOfSlot(by, record_bytes, rows);
  for (int first = 0; first < rows; first += chunk) {
    const int count = std::min(chunk, rows - first);
    const int64_t bytes = int64_t{record_bytes} * count;
    GatherByNccl(by, static_cast<const uint8_t*>(records) + int64_t{record_bytes} * first, bytes);
    Run("interleave", {2 * bytes * ranks}, [&] {
      return kernels::LaunchInterleave(
          {.records = by.gathered,
           .gathered = static_cast<uint8_t*>(gathered) + int64_t{record_bytes} * ranks * first,
           .ranks = ranks,
           .rows = count,
           .record_bytes = record_bytes},
          stream_);
    });
  }
}

void CudaOps::SumByNccl(const NcclPeers& by, const CudaDelta& delta, int tokens, int width) {
  if (tokens == 0) return;
  const int64_t row_bytes = int64_t{sizeof(kernels::Bf16)} * width;
  const int chunk = RowsOfSlot(by, row_bytes, tokens);
  for (int first = 0; first < tokens; first += chunk) {
    const int rows = std::min(chunk, tokens - first);
    const int64_t bytes = row_bytes * rows;
    kernels::Product part = delta.product;
    part.data += first * part.stride;
    if (part.token_scales != nullptr) part.token_scales += first;
    auto* const sent = reinterpret_cast<kernels::Bf16*>(by.sent);
    auto* const gathered = reinterpret_cast<kernels::Bf16*>(by.gathered);
    Run("pack", {2 * bytes}, [&] {
      return kernels::LaunchPackProduct(
          {.partial = part, .packed = sent, .tokens = rows, .width = width}, stream_);
    });
    if (by.all_reduce && !c_.peers->alone) {
      RunTogether("nccl all-reduce", {2 * bytes}, [&] {
        return by.nccl->AllReduce(sent, gathered, bytes / sizeof(kernels::Bf16), stream_);
      });
    } else {
      GatherByNccl(by, sent, bytes);
    }
    const int parts = by.all_reduce ? 1 : by.nccl->ranks();
    Run("sum", {bytes * (1 + parts)}, [&] {
      return kernels::LaunchSumParts({.parts = gathered,
                                      .sum = delta.sum + first * delta.product.stride,
                                      .sum_stride = delta.product.stride,
                                      .ranks = parts,
                                      .tokens = rows,
                                      .width = width},
                                     stream_);
    });
  }
}

void CudaOps::EmbedByNccl(const NcclPeers& by, const CudaEmbedding& embedding,
                          const kernels::EmbedArgs& args) {
  if (args.tokens == 0) return;
  const int64_t row_bytes = int64_t{sizeof(kernels::Bf16)} * args.width;
  const int chunk = RowsOfSlot(by, row_bytes, args.tokens);
  for (int first = 0; first < args.tokens; first += chunk) {
    const int rows = std::min(chunk, args.tokens - first);
    Run("embed share", {2 * row_bytes * rows}, [&] {
      return kernels::LaunchEmbedShare({.ids = args.ids + first,
                                        .table = args.table,
                                        .table_stride = args.table_stride,
                                        .part_rows = embedding.rows,
                                        .rank = by.nccl->rank(),
                                        .vocab = args.vocab,
                                        .tokens = rows,
                                        .width = args.width,
                                        .rows = reinterpret_cast<kernels::Bf16*>(by.sent)},
                                       stream_);
    });
    GatherByNccl(by, by.sent, row_bytes * rows);
    Run("embed", {6 * int64_t{rows} * args.width}, [&] {
      return kernels::LaunchPickRows({.ids = args.ids + first,
                                      .parts = reinterpret_cast<const kernels::Bf16*>(by.gathered),
                                      .part_rows = embedding.rows,
                                      .vocab = args.vocab,
                                      .tokens = rows,
                                      .width = args.width,
                                      .residual = args.residual + int64_t{first} * args.width,
                                      .factor = args.factor},
                                     stream_);
    });
  }
}

}  // namespace millrace::cuda
