#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <utility>

#include "kernels/arguments.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/kernel_table.h"

namespace millrace::kernels {

namespace attention {
namespace {

constexpr uintptr_t kPartAlignment = 256;

// Carves aligned arrays out of one allocation.
class Parts {
 public:
  explicit Parts(void* memory) : begin_(reinterpret_cast<uintptr_t>(memory)), end_(begin_) {}
  template <typename T>
  T* Take(size_t count) {
    T* part = reinterpret_cast<T*>(end_);
    end_ += (count * sizeof(T) + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    return part;
  }
  size_t bytes() const { return end_ - begin_; }

 private:
  const uintptr_t begin_;
  uintptr_t end_;
};

Plan TakePlan(const AttentionStep& step, Parts& parts) {
  Plan plan;
  plan.header = parts.Take<PlanHeader>(1);
  plan.ranges = parts.Take<DecodeRange>(kMaxCtas);
  plan.arrivals = parts.Take<uint32_t>(size_t{kPartials} * step.kv_heads);
  plan.decode_rows = parts.Take<DecodeRow>(step.rows);
  plan.decode_tiles = parts.Take<int>(step.rows + 1);
  plan.prefill = parts.Take<PrefillItem>(MaxPrefillItems(step));
  return plan;
}

bool Decodes(const AttentionStep& step, int tokens) {
  return tokens * (step.heads / step.kv_heads) <= kDecodeRows;
}

// Only prefill uses the totals.
Scratch TakeScratch(const AttentionStep& step, int head_size, Parts& parts) {
  Scratch scratch;
  scratch.partial_sums = parts.Take<float2>(size_t{kPartials} * step.heads);
  scratch.partial_values = parts.Take<float>(size_t{kPartials} * step.heads * head_size);
  const size_t ctas = Decodes(step, step.max_row_tokens) ? 0 : kMaxCtas;
  scratch.totals = parts.Take<float4>(ctas * kPrefillRows * head_size / 4);
  return scratch;
}

cudaError_t Attribute(cudaDeviceAttr attribute, int& value) {
  int device;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess ? error : cudaDeviceGetAttribute(&value, attribute, device);
}

bool IsMemory(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % kPartAlignment == 0;
}

bool HasValidHeads(const AttentionStep& step) {
  return step.kv_heads >= 1 && step.heads >= step.kv_heads && step.heads % step.kv_heads == 0 &&
         step.heads / step.kv_heads <= kDecodeRows;
}

bool IsValid(const AttentionStep& step) {
  return HasValidHeads(step) && step.rows >= 1 && step.max_tokens >= 1 &&
         step.max_row_tokens >= 1 && step.window >= 0 && step.row_first != nullptr &&
         step.row_start != nullptr && step.row_slot != nullptr && IsMemory(step.plan);
}

bool CanFuseRope(int heads, int kv_heads) { return heads / kv_heads <= kFusedRopeRows; }

// Queries come either in `q` or as the qkv product.
bool HasValidQueries(const AttentionArgs& args, int64_t width) {
  if (args.qkv.data == nullptr) {
    return args.q != nullptr && IsAligned16(args.q) && args.q_stride >= width &&
           args.q_stride % 8 == 0;
  }
  const int64_t qkv_width =
      QkvWidth(args.rope.gates, args.step.heads, args.pages.kv_heads, args.pages.head_size);
  return args.q == nullptr && args.step.max_row_tokens == 1 &&
         CanFuseRope(args.step.heads, args.step.kv_heads) &&
         kernels::IsValid(args.qkv, qkv_width) && kernels::IsValid(args.rope, args.pages.head_size);
}

bool HasValidOutput(const Activation& out, int64_t width) {
  const bool plain = out.type == Type::kBf16 && out.scaling == Scaling::kNone;
  const bool scaled =
      out.type == Type::kFp8 && out.scaling == Scaling::kTensor && out.scales != nullptr;
  return (plain || scaled) && out.data != nullptr && IsAligned16(out.data) && out.stride >= width &&
         out.stride % 8 == 0;
}

bool IsValid(const AttentionArgs& args) {
  const int64_t width = int64_t{args.step.heads} * args.pages.head_size;
  return IsValid(args.step) && kernels::IsValid(args.pages) &&
         args.step.kv_heads == args.pages.kv_heads && HasValidQueries(args, width) &&
         HasValidOutput(args.out, width) && args.tables.blocks != nullptr && args.scale > 0 &&
         args.soft_cap >= 0 && IsMemory(args.scratch);
}

}  // namespace

cudaError_t MakeLaunch(const AttentionArgs& args, cudaStream_t stream, Launch& launch) {
  if (!IsValid(args)) return cudaErrorInvalidValue;
  launch.args = args;
  launch.stream = stream;
  for (const auto& [attribute, value] :
       {std::pair(cudaDevAttrMultiProcessorCount, &launch.sms),
        std::pair(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &launch.shared_per_sm),
        std::pair(cudaDevAttrMaxSharedMemoryPerBlockOptin, &launch.shared_per_cta)}) {
    const cudaError_t error = Attribute(attribute, *value);
    if (error != cudaSuccess) return error;
  }
  Parts plan(args.step.plan);
  Parts scratch(args.scratch);
  launch.plan = TakePlan(args.step, plan);
  launch.scratch = TakeScratch(args.step, args.pages.head_size, scratch);
  return cudaSuccess;
}

}  // namespace attention

using namespace attention;

size_t AttentionPlanBytes(const AttentionStep& step) {
  Parts parts(nullptr);
  TakePlan(step, parts);
  return parts.bytes();
}

size_t AttentionScratchBytes(const AttentionStep& step, int head_size) {
  Parts parts(nullptr);
  TakeScratch(step, head_size, parts);
  return parts.bytes();
}

int MostAppendingRows(int heads, int kv_heads) {
  constexpr int kMostHeads = 512;  // rows times kv heads: about two for each CTA
  return CanFuseRope(heads, kv_heads) ? kMostHeads / kv_heads : 0;
}

bool AppendsWithAttention(const AttentionStep& step) {
  return step.max_row_tokens == 1 && step.rows <= MostAppendingRows(step.heads, step.kv_heads);
}

cudaError_t LaunchPlanAttention(const AttentionStep& step, cudaStream_t stream) {
  if (!IsValid(step)) return cudaErrorInvalidValue;
  int sms;
  const cudaError_t error = Attribute(cudaDevAttrMultiProcessorCount, sms);
  if (error != cudaSuccess) return error;
  Parts parts(step.plan);
  return LaunchPlan(step, TakePlan(step, parts), std::min(kCtasPerSm * sms, kMaxCtas), stream);
}

cudaError_t LaunchPagedAttention(const AttentionArgs& args, cudaStream_t stream) {
  Launch launch;
  cudaError_t error = MakeLaunch(args, stream, launch);
  if (error == cudaSuccess) error = LaunchDecode(launch);
  if (error != cudaSuccess || Decodes(args.step, args.step.max_row_tokens)) return error;
  return TakesPrefillSm90(args) && MayRun(Kernel::kPrefillSm90, args.portable)
             ? LaunchPrefillSm90(launch)
             : LaunchPrefill(launch);
}

}  // namespace millrace::kernels
