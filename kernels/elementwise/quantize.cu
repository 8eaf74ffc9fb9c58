#include "kernels/elementwise/quantize.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"

namespace millrace::kernels {
namespace {

template <typename T>
struct RowsSource {
  const T* data;
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
      args.in_stride < args.width || args.in_stride % 8 != 0 ||
      (args.in_type != Type::kBf16 && args.in_type != Type::kF32)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  const auto launch = [&]<typename T>(const T* in) {
    return LaunchWriteRows(RowsSource<T>{in, args.in_stride}, args.tokens, args.width, args.out,
                           stream);
  };
  return args.in_type == Type::kBf16 ? launch(static_cast<const Bf16*>(args.in))
                                     : launch(static_cast<const float*>(args.in));
}

}  // namespace millrace::kernels
