// Declares the instances of grouped_kernel.cuh that grouped_linear.cu launches. Each kind of weight
// has a file of its own, since the instances take long to compile.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_INSTANCES_H_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_INSTANCES_H_

#include <cuda_runtime_api.h>

#include "kernels/gemm/grouped_linear.h"

namespace millrace::kernels::sm90 {

struct GroupedParams;
enum class GroupedKind : uint8_t;

// Returns whether a launch would accept the arguments, but for the device.
bool IsValid(const GroupedLinearArgs& args);

// Returns the kind of kernel for valid arguments.
GroupedKind GroupedKindOf(const GroupedLinearArgs& args);

// Returns the parameters of a launch but for those that depend on the instance: weight, row_tiles,
// steps and stages.
GroupedParams GroupedParamsOf(const GroupedLinearArgs& args);

// Returns the stages that fit, and the CTAs to launch.
int GroupedStages(int wanted, int pipeline_bytes, int stage_bytes);
unsigned GroupedCtas(const GroupedLinearArgs& args, int row_tiles);

// Launch the instance of a kind for the config's tile. `args` are valid.
cudaError_t LaunchGroupedBf16(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedFp8(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedFp8Block(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedFp8BlockOfBf16(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedInt4By32(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedInt4By64(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedInt4By128(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedInt4Affine(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchGroupedMxfp4(const GroupedLinearArgs& args, cudaStream_t stream);

// Launch the instance of prompt_kernel.cuh, for configs whose tile is kPromptTile.
cudaError_t LaunchPromptPlain(const GroupedLinearArgs& args, cudaStream_t stream);
cudaError_t LaunchPromptFourBit(const GroupedLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_INSTANCES_H_
