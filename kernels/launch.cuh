// Programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and
// Synchronization"; PTX ISA, griddepcontrol): a kernel is set up while the one before it ends.
//
//   __global__ void Kernel(Args args) {
//     ...                   // indices, barriers, and what is constant while steps run
//     AwaitPredecessor();
//     ...                   // everything else
//   }
//   return LaunchDependent(Kernel, grid, threads, shared_bytes, stream, args);
//
// Why a step's results are those of kernels that run one after the other:
//   1. A kernel launched so starts, at the earliest, when every CTA of its predecessor in the
//      stream has let it (ReleaseDependents) or has ended. WaitForPredecessor returns when the
//      predecessor has ended and what it wrote is visible.
//   2. Every thread of such a kernel waits, also where the kernel needs nothing or the thread does
//      nothing, and no kernel ends before its threads. So a kernel that waits for its predecessor
//      waits for all that came before that one, however many kernels are set up already. (One
//      thread that waits is enough for this, if others write nothing: CTAs of attention without
//      work leave.)
//   3. Before it waits a kernel writes nothing to global memory (buffers are reused: an earlier
//      kernel may still read what it would overwrite) and reads nothing that a kernel of a step
//      writes, but for 5. It may read what was written, and synchronized with the host, before the
//      first step: weights, their scales and norms, the rotations, tensor maps; and its own
//      arguments.
//   4. All else starts and ends as ever: a plain launch, as a library's, starts when its
//      predecessor has ended; copies and events likewise. A kernel behind a plain one is set up
//      when that one's CTAs have ended, and waits for what they wrote.
//   5. What ended long ago may be read before the wait if a kernel that knows has said so: after
//      its own wait it stores a number with release, and a kernel that loads that number with
//      acquire sees all that the storing thread saw. So attention reads ahead of its layer's
//      kernels once the previous layer's attention has published its number
//      (attention/decode_kernel.cuh). A number left by an earlier step must differ.
// Capture keeps this: such a launch becomes a kernel node with a programmatic edge
// (cudaGraphDependencyTypeProgrammatic), any other dependency stays a full one.
//
// CTAs that wait hold threads and shared memory. Those of an earlier kernel are running or done by
// then, so nothing can lock up, save where ranks share a GPU: see collective/communicator.h.
#ifndef MILLRACE_KERNELS_LAUNCH_CUH_
#define MILLRACE_KERNELS_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <cstddef>

namespace millrace::kernels {

// Lets the next kernel of the stream be set up as soon as all CTAs have called this. It does not
// publish this kernel's writes, so it may be called before or after them.
__device__ inline void ReleaseDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernels before this one have ended and what they wrote can be read.
__device__ inline void WaitForPredecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Releases the dependents and waits: for kernels with little to do before the wait.
__device__ inline void AwaitPredecessor() {
  ReleaseDependents();
  WaitForPredecessor();
}

// Returns whether the kernels of this build wait on the current device. Only then may they start
// early. Code for other GPUs has no such instruction, and a driver may compile it for any later
// one.
bool KernelsAwait();

// Launches `kernel`, which waits as above, in clusters of `cluster` CTAs.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependentClusters(void (*kernel)(Parameters...), dim3 cluster, dim3 grid,
                                    dim3 threads, size_t shared_bytes, cudaStream_t stream,
                                    const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (KernelsAwait()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster.x * cluster.y * cluster.z > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {.x = cluster.x, .y = cluster.y, .z = cluster.z};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 grid, dim3 threads,
                            size_t shared_bytes, cudaStream_t stream,
                            const Arguments&... arguments) {
  return LaunchDependentClusters(kernel, dim3(1), grid, threads, shared_bytes, stream,
                                 arguments...);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_LAUNCH_CUH_
