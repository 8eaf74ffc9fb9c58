#include "kernels/elementwise/quantize.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"

namespace millrace::kernels {
namespace {

struct Bf16Source {
  const Bf16* data;
  int64_t stride;

  struct Constants {};
  __device__ Constants LoadConstants(int64_t) const { return {}; }
  __device__ void operator()(int64_t token, int64_t column, Constants, float (&values)[8]) const {
    Load8(data + token * stride + column, values);
  }
};

}  // namespace

cudaError_t LaunchQuantize(const QuantizeArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.width < 8 || args.width % 8 != 0 || !IsValid(args.out, args.width) ||
      args.out.stride > kMaxRowWidth || args.in == nullptr || !IsAligned16(args.in) ||
      args.in_stride < args.width || args.in_stride % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchWriteRows(Bf16Source{args.in, args.in_stride}, args.tokens, args.width, args.out,
                         stream);
}

}  // namespace millrace::kernels
