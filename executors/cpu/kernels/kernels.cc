#include "executors/cpu/kernels/kernels.h"

#include "executors/cpu/kernels/kernel_sets.h"
#include "executors/host/processor.h"

namespace millrace::cpu {

// The functions of the namespace that it stands in, in the order of TileKind and of Kernels.
#define MILLRACE_CPU_KERNELS                                                                    \
  {                                                                                             \
    .name = "", .gemm = {GemmF32,  GemmF16,    GemmBf16,  GemmQ4_0,    GemmQ4_1,     GemmQ5_0,  \
                         GemmQ5_1, GemmQ8_0,   GemmIq4Nl, GemmMxfp4,   GemmQ2K,      GemmQ3K,   \
                         GemmQ4K,  GemmQ5K,    GemmQ6K,   GemmInt4x32, GemmInt4x128, GemmIq4Xs, \
                         GemmIq3S, GemmIq3Xxs, GemmIq2,   GemmIq1},                             \
    .bf16_input = Form::kFloat, .attention = Attention, .store = Store, .norm = Norm,           \
    .gates = {Gate, GeluGate, ClampedGate, ErfGeluGate, SquaredRelu}, .cap = Cap, .rope = Rope, \
    .append = Append, .convolve = Convolve, .delta_rule = DeltaRule, .state_space = StateSpace, \
    .sigmoid_gate = SigmoidGate, .sampling = &kSampling,                                        \
  }

namespace plain {
static constexpr Kernels kKernels = MILLRACE_CPU_KERNELS;
}  // namespace plain

#ifdef MILLRACE_X86
namespace avx2 {
static constexpr Kernels kKernels = MILLRACE_CPU_KERNELS;
}  // namespace avx2

namespace avx512 {
static constexpr Kernels kKernels = MILLRACE_CPU_KERNELS;
}  // namespace avx512
#endif

#undef MILLRACE_CPU_KERNELS

namespace {

constexpr Kernels Named(const char* name, Kernels kernels) {
  kernels.name = name;
  return kernels;
}

constexpr Kernels kPlain = Named("plain", plain::kKernels);

#ifdef MILLRACE_X86
constexpr Kernels WithBf16(Kernels kernels) {
  kernels.gemm[static_cast<int>(TileKind::kBf16)] = avx512_bf16::GemmBf16;
  kernels.bf16_input = Form::kBf16;
  return kernels;
}

constexpr Kernels kAvx2 = Named("avx2", avx2::kKernels);
constexpr Kernels kAvx512 = Named("avx512-vnni", avx512::kKernels);
constexpr Kernels kAvx512Bf16 = Named("avx512-bf16", WithBf16(avx512::kKernels));
#endif

KernelList FindSupported() {
  KernelList list{.tables = {&kPlain}, .count = 1};
#ifdef MILLRACE_X86
  const InstructionSet best = BestInstructionSet();
  if (best >= InstructionSet::kAvx2) list.tables[list.count++] = &kAvx2;
  if (best >= InstructionSet::kAvx512) list.tables[list.count++] = &kAvx512;
  if (best >= InstructionSet::kAvx512Bf16) list.tables[list.count++] = &kAvx512Bf16;
#endif
  return list;
}

}  // namespace

const Kernels& PlainKernels() { return kPlain; }

KernelList SupportedKernels() {
  static const KernelList list = FindSupported();
  return list;
}

const Kernels& BestKernels() {
  const KernelList list = SupportedKernels();
  return *list.tables[list.count - 1];
}

}  // namespace millrace::cpu
