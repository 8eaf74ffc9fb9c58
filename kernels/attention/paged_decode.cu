#include "kernels/attention/decode_launch.cuh"

namespace millrace::kernels::attention {

cudaError_t LaunchDecode(const Launch& launch) {
  return ForPages(launch.args.pages, [&]<typename Kv, int kHeadSize>() {
    return LaunchDecodeHeads<Kv, kHeadSize, NoDelay>(launch);
  });
}

}  // namespace millrace::kernels::attention
