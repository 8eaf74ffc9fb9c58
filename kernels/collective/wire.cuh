// The device code that collectives share: words on the wire, slots, bounded waits, and the rotation
// of the buffers. communicator.h describes the protocol.
#ifndef MILLRACE_KERNELS_COLLECTIVE_WIRE_CUH_
#define MILLRACE_KERNELS_COLLECTIVE_WIRE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/collective/communicator.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {

// The word of memory that holds nothing yet.
inline constexpr uint32_t kNothing = 0xffffffff;

// The start of a rank's memory. Only the rank itself uses it.
struct Control {
  alignas(8) uint32_t buffer;     // the number of the next call's buffer, 0 to kBuffers - 1
  uint32_t failure;               // see FailureWord
  alignas(128) uint32_t arrived;  // CTAs of the running call that know its buffer
};
static_assert(sizeof(Control) <= kControlBytes);

__host__ __device__ inline Control* ControlOf(const Communicator& communicator) {
  return static_cast<Control*>(communicator.memory[communicator.rank]);
}

inline bool IsValid(const Communicator& c) {
  if (c.ranks < 1 || c.ranks > kMaxRanks || c.rank < 0 || c.rank >= c.ranks || c.slot_bytes <= 0 ||
      c.slot_bytes % kSlotAlignment != 0 || c.max_ctas < 1 || c.timeout_ns == 0) {
    return false;
  }
  for (int rank = 0; rank < c.ranks; ++rank) {
    if (c.memory[rank] == nullptr ||
        reinterpret_cast<uintptr_t>(c.memory[rank]) % kSlotAlignment != 0) {
      return false;
    }
  }
  return true;
}

// ---- Accesses to memory that ranks share: each 32-bit word, or each half of two 64-bit words, is
// read and written as a whole, and no cache of an SM keeps it ----

__device__ inline uint4 LoadWire(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return v;
}

__device__ inline void StoreWire(uint4* to, const uint4& v) {
  asm volatile(
      "st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

__device__ inline ulonglong2 LoadWirePair(const uint4* from) {
  ulonglong2 v;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.x), "=l"(v.y)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return v;
}

__device__ inline void StoreWirePair(uint4* to, const ulonglong2& v) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
               "l"(v.x), "l"(v.y)
               : "memory");
}

__device__ inline uint32_t LoadRelaxed(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
               : "=r"(v)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return v;
}

__device__ inline uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// ---- Eight BF16 on the wire ----

// Returns `v` with the words that mean "nothing" replaced by two other NaNs.
__device__ inline uint4 ToWire(uint4 v) {
  constexpr uint32_t kNans = 0x7fff7fff;
  v.x = v.x == kNothing ? kNans : v.x;
  v.y = v.y == kNothing ? kNans : v.y;
  v.z = v.z == kNothing ? kNans : v.z;
  v.w = v.w == kNothing ? kNans : v.w;
  return v;
}

__device__ inline bool IsComplete(const uint4& v) {
  return v.x != kNothing && v.y != kNothing && v.z != kNothing && v.w != kNothing;
}

__device__ inline uint4 Nothing() { return make_uint4(kNothing, kNothing, kNothing, kNothing); }

// ---- One thread's view of one call ----

class Call {
 public:
  // Reads the state that the previous call left, so the predecessor must have ended. The thread
  // waits for it only when it uses a slot, so other loads should be issued before.
  __device__ explicit Call(const Communicator& communicator) : communicator_(communicator) {
    const Control* control = ControlOf(communicator);
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(buffer_), "=r"(failure_)
                 : "l"(__cvta_generic_to_global(&control->buffer))
                 : "memory");
    offset_ = kControlBytes +
              buffer_ * static_cast<uint64_t>(communicator.ranks * communicator.slot_bytes);
  }

  // Returns where rank `to` keeps what rank `from` sends in this call.
  __device__ uint4* Slot(int to, int from) const {
    return reinterpret_cast<uint4*>(static_cast<char*>(communicator_.memory[to]) + offset_ +
                                    from * communicator_.slot_bytes);
  }

  // Returns the i-th rank to send to, 1 <= i < ranks. Each rank begins with its neighbour, so that
  // not all send to the same rank at once.
  __device__ int Peer(int i) const {
    const int peer = communicator_.rank + i;
    return peer < communicator_.ranks ? peer : peer - communicator_.ranks;
  }

  // Stores `v` as vector `index` of this rank's slot in every peer's memory.
  template <int kRanks>
  __device__ void Send(int64_t index, const uint4& v) const {
#pragma unroll
    for (int i = 1; i < kRanks; ++i) {
      if (i < communicator_.ranks) StoreWire(Slot(Peer(i), communicator_.rank) + index, v);
    }
  }

  // Waits for vector `index` of every peer's slot and marks the places as empty again. `all` has
  // this rank's own vector at its place already.
  template <int kRanks, int kCount>
  __device__ void Receive(const int64_t (&index)[kCount], const bool (&wanted)[kCount],
                          uint4 (&all)[kCount][kRanks]) {
    const int rank = communicator_.rank, ranks = communicator_.ranks;
    const int64_t slot = communicator_.slot_bytes / 16;
    uint4* at[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) at[i] = Slot(rank, 0) + index[i];
    const auto for_each_wanted = [&](const auto& action) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int from = 0; from < kRanks; ++from) {
          if (wanted[i] && from < ranks && from != rank) action(i, from);
        }
      }
    };
    int missing;
    do {
      missing = -1;
      for_each_wanted([&](int i, int from) { all[i][from] = LoadWire(at[i] + from * slot); });
      for_each_wanted([&](int i, int from) {
        if (!IsComplete(all[i][from])) missing = from;
      });
    } while (missing >= 0 && MayWait(missing));
    for_each_wanted([&](int i, int from) { StoreWire(at[i] + from * slot, Nothing()); });
  }

  // Returns whether a thread that waits for `from` may look again. Called after each look.
  __device__ bool MayWait(int from) {
    constexpr uint32_t kLooksPerCheck = 64;
    if (failure_ != 0) return false;
    if (++looks_ % kLooksPerCheck != 0) return true;
    Control* control = ControlOf(communicator_);
    failure_ = LoadRelaxed(&control->failure);
    if (failure_ != 0) return false;
    const uint64_t now = Nanoseconds();
    if (deadline_ == 0) deadline_ = now + communicator_.timeout_ns;
    if (now < deadline_) return true;
    failure_ = 1 + from;
    if (atomicCAS(&control->failure, 0, failure_) == 0 && communicator_.failure_report != nullptr) {
      asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(communicator_.failure_report), "r"(failure_)
                   : "memory");
    }
    return false;
  }

  // Lets the next kernel start, if it may not start earlier. Called after the last wait. A CTA lets
  // it start with the first thread that does, so this is left to thread 0, which always receives
  // something. What it received was sent by the same CTA of every peer.
  __device__ void ReleaseWhenReceived() const {
    if (!communicator_.release_early && threadIdx.x == 0) ReleaseDependents();
  }

  // Counts the CTA among those that know the call's buffer. Called by all of its threads, between
  // sending and waiting, which hides the barrier and the trip of the atomic operation.
  __device__ void Arrive(int ctas) {
    __syncthreads();
    ctas_ = ctas;
    // The last CTA sets the count back to 0. The result is looked at in Finish.
    if (threadIdx.x == 0) before_ = atomicInc(&ControlOf(communicator_)->arrived, ctas - 1);
  }

  // Turns to the next buffer, if this is the last CTA to arrive. Called by all of its threads at
  // the kernel's end.
  __device__ void Finish() const {
    if (threadIdx.x != 0 || before_ != ctas_ - 1) return;
    ControlOf(communicator_)->buffer = buffer_ == kBuffers - 1 ? 0 : buffer_ + 1;
  }

 private:
  const Communicator& communicator_;
  uint32_t buffer_;
  uint32_t failure_;  // not 0: do not wait
  int64_t offset_;    // of the buffer, in bytes from the start of a rank's memory
  uint32_t looks_ = 0;
  uint64_t deadline_ = 0;           // 0: not set yet
  uint32_t ctas_ = 0, before_ = 0;  // thread 0: CTAs of the call, and how many arrived before
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_WIRE_CUH_
