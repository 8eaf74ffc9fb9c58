#include "kernels/gemm/sm90/dense/block_linear.h"

#include "kernels/gemm/sm90/dense/block_launch.cuh"

namespace millrace::kernels::sm90 {

std::vector<BlockTile> BlockTiles() {
  std::vector<BlockTile> tiles;
  for (const BlockInstance& instance : BlockInstances<NoDelay>()) tiles.push_back(instance.tile);
  return tiles;
}

cudaError_t LaunchBlockLinear(const BlockLinearArgs& args, cudaStream_t stream) {
  return LaunchBlock<NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
