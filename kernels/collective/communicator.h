// The group of ranks that a collective runs over: one rank a GPU, or several virtual ranks on one
// GPU. Every rank has memory that its peers write, and each collective takes the addresses of all
// of them.
//
// How data arrive (after the low-latency all-reduce of TensorRT-LLM and FlashInfer,
// trtllm_allreduce_fusion.cuh, which calls it Lamport; SGLang pull requests 19880 and 35192;
// arXiv:2607.16100). A rank stores its vectors of 16 bytes into a slot of every peer's memory. A
// peer polls its own memory until the vector is there. There is no other flag: memory that holds
// nothing yet is kNothing in every 32-bit word, and no word on the wire has that value. Words are
// compared as integers, since a comparison of floats may flush subnormals (flashinfer#3304).
//   1. kNothing is all ones, two NaNs in BF16. A sender turns such a word into 0x7fff7fff, two NaNs
//      as well, so no number changes and -0 stays -0. What never arrived reads as NaN.
//   2. A word is polled by one thread, which sets it to kNothing again as soon as its vector is
//      complete. So there is nothing to clear later and no size to remember, and sizes and kinds of
//      collectives may change from call to call and from replay to replay.
//   3. Calls rotate through three buffers. A rank writes call k + 3 into a peer's memory after it
//      received call k + 2 from that peer, which the peer sent after its kernel of call k, with all
//      its stores of kNothing, had ended.
//   4. The number of the next buffer lies in device memory, and the last CTA of a call advances it:
//      a captured graph replays without the host.
//
// Every rank must launch the same collectives with the same shapes and methods, in the same order,
// one after the other: never two at once, and not from two streams (sglang#31117 hangs so).
//
// A wait is bounded: see timeout_ns. Waiting CTAs occupy their SMs. A collective ends only if every
// rank's CTAs become resident while those of its peers wait:
//   * Launch at most max_ctas CTAs a rank, so that all of them are resident together.
//   * A kernel that starts early (launch.cuh) behind a collective holds SMs while the collective
//     waits. On a GPU with one rank that is harmless, since all CTAs of the collective have
//     started by then. With several virtual ranks on one GPU it is a deadlock: a linear that
//     prefetches weights takes all shared memory of every SM, and the rank that it waits for cannot
//     start the collective. There, clear release_early, or give each rank SMs of its own.
//   * A CTA that waits keeps kernels that want all shared memory from its SM. With virtual ranks
//     that share SMs, max_ctas of all ranks together must leave SMs for the kernels before the
//     slowest rank's collective, and those must not need all SMs at once.
//   * Load every kernel (CUDA_MODULE_LOADING=EAGER), upload every graph and finish all allocations
//     before the first launch that waits for a peer: each of these may wait for the device.
#ifndef MILLRACE_KERNELS_COLLECTIVE_COMMUNICATOR_H_
#define MILLRACE_KERNELS_COLLECTIVE_COMMUNICATOR_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::kernels {

inline constexpr int kMaxRanks = 8;

// Slots are multiples of this.
inline constexpr int64_t kSlotAlignment = 256;

// One rank's view of the group, a plain value. `ranks`, `slot_bytes` and `max_ctas` are the same on
// every rank.
struct Communicator {
  int rank;   // 0 to ranks - 1
  int ranks;  // 1 to kMaxRanks
  // memory[p] is where this rank's device sees the memory of rank p, CommunicatorBytes() long and
  // aligned to kSlotAlignment. Peers need write access.
  void* memory[kMaxRanks];
  // Capacity for one sender's data of one call, a multiple of kSlotAlignment; see the launch
  // functions.
  int64_t slot_bytes;
  // Limit on CTAs of up to 512 threads a launch. All of them must be resident at once; with virtual
  // ranks, those of all ranks together.
  int max_ctas;
  // A thread that has waited this long, in nanoseconds, records a failure and stops waiting. It
  // ends the waits of the whole kernel, and later collectives of this rank do not wait at all, so
  // that no queue of launches adds up its waits. The outputs are NaN where data are missing.
  // Collectives work again after InitializeCommunicator on every rank.
  uint64_t timeout_ns;
  // Whether the next kernel may start when all CTAs of the collective have. If not, it may when
  // each of them has received data from its peers. Then the CTAs of all ranks have started, so this
  // is safe with virtual ranks.
  bool release_early = true;
  // Set to the failure's number (FailureWord) besides, if not null: for memory that the host can
  // read while kernels run.
  uint32_t* failure_report = nullptr;
};

// Bytes in front of the slots.
inline constexpr int64_t kControlBytes = 256;

// Number of buffers that calls rotate through.
inline constexpr int kBuffers = 3;

// Returns the size of one rank's memory.
constexpr int64_t CommunicatorBytes(int ranks, int64_t slot_bytes) {
  return kControlBytes + kBuffers * ranks * slot_bytes;
}

// Prepares this rank's own memory. It must have finished on every rank before any rank launches a
// collective. Not for capture.
cudaError_t InitializeCommunicator(const Communicator& communicator, cudaStream_t stream);

// Returns the device address of the word that says whether a collective of this rank has failed: 0,
// or 1 + the rank that a thread was waiting for. The first failure stays. To end all waits of the
// rank before their time, copy another value than 0 there, on another stream.
uint32_t* FailureWord(const Communicator& communicator);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_COMMUNICATOR_H_
