#include "kernels/gemm/sm90/dense/wide_linear.h"

#include "kernels/gemm/sm90/dense/wide_launch.cuh"

namespace millrace::kernels::sm90 {

std::vector<WideTile> WideTiles() {
  std::vector<WideTile> tiles;
  for (const WideInstance& instance : WideInstances<Type::kBf16, NoDelay>())
    tiles.push_back(instance.tile);
  return tiles;
}

cudaError_t LaunchWideLinear(const WideLinearArgs& args, cudaStream_t stream) {
  return LaunchWide<NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
