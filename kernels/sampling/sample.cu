#include "kernels/sampling/sample.h"

#include "kernels/sampling/sample_internal.cuh"

namespace millrace::kernels {
namespace {

bool IsValid(const SampleArgs& args) {
  return args.vocab_size >= 1 && args.vocab_size <= kMaxSampledVocab &&  //
         args.max_rows >= 1 && args.max_rows <= 65535 &&                 //
         args.logits_stride >= args.vocab_size && args.logits_stride % 4 == 0 &&
         args.logits != nullptr && IsAligned16(args.logits) && IsAligned16(args.adjusted) &&
         args.num_rows != nullptr && args.rows != nullptr && IsAligned16(args.rows) &&
         args.slots != nullptr && args.biases_stride >= 0 && args.history_stride >= 0 &&  //
         args.logit_soft_cap >= 0 &&
         (args.masks == nullptr || args.masks_stride >= CeilDiv(args.vocab_size, 32)) &&
         (args.mask_arrival.wanted == nullptr ||
          (args.mask_arrival.ready != nullptr && args.mask_arrival.rows > 0)) &&
         args.workspace != nullptr && IsAligned16(args.workspace) && args.last_tokens != nullptr &&
         args.results != nullptr;
}

}  // namespace

size_t SampleWorkspaceBytes(int max_rows, int vocab_size) {
  return size_t{1} * max_rows * sampling::NumTiles(vocab_size) * sizeof(sampling::TileStats);
}

cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream) {
  if (!IsValid(args)) return cudaErrorInvalidValue;
  const cudaError_t error = sampling::LaunchScanTiles(args, stream);
  return error != cudaSuccess ? error : sampling::LaunchChooseTokens(args, stream);
}

}  // namespace millrace::kernels
