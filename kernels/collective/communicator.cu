#include "kernels/collective/communicator.h"

#include "kernels/collective/wire.cuh"

namespace millrace::kernels {

cudaError_t InitializeCommunicator(const Communicator& communicator, cudaStream_t stream) {
  if (!IsValid(communicator)) return cudaErrorInvalidValue;
  char* memory = static_cast<char*>(communicator.memory[communicator.rank]);
  const int64_t bytes = CommunicatorBytes(communicator.ranks, communicator.slot_bytes);
  static_assert(kNothing == 0xffffffff, "the memset below writes this word");
  const cudaError_t error = cudaMemsetAsync(memory, 0, kControlBytes, stream);
  if (error != cudaSuccess) return error;
  return cudaMemsetAsync(memory + kControlBytes, 0xff, bytes - kControlBytes, stream);
}

uint32_t* FailureWord(const Communicator& communicator) {
  return &ControlOf(communicator)->failure;
}

}  // namespace millrace::kernels
