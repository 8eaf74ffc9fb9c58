#include "executors/weights/fp8_scaling.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

absl::StatusOr<Fp8Scaling> Fp8Scaling::Read(const Checkpoint& checkpoint, const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> weights,
                            checkpoint.Matrices({name}));
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Fp8Scales read, checkpoint.ScalesOf(name));
  const int64_t out = weights[0]->shape[0];
  const int64_t in = weights[0]->shape[1];
  const auto count = static_cast<int64_t>(read.weight.size());
  for (const QuantGroup& group : {kPerTensor, kPerChannel, kFp8Blocks}) {
    const int64_t across = group == kFp8Blocks ? group.Across(in) : 1;
    if (count != group.Down(out) * across) continue;
    Fp8Scaling scaling;
    scaling.group_ = group;
    scaling.across_ = across;
    scaling.scales_ = std::move(read.weight);
    return scaling;
  }
  return absl::InvalidArgumentError(
      StrCat(checkpoint.source().base_name(), ": tensor ", weights[0]->name, " has ", count,
             " scales; allowed: one, one for each of its ", out, " rows, or one for each block of ",
             kFp8Block, "x", kFp8Block));
}

void Fp8Scaling::Apply(int64_t row, int64_t column, absl::Span<float> values) const {
  const int64_t down = group_.rows == 0 ? 0 : row / group_.rows;
  const float* const scales = scales_.data() + down * across_;
  const auto size = static_cast<int64_t>(values.size());
  for (int64_t i = 0; i < size;) {
    const int64_t group = group_.columns == 0 ? 0 : (column + i) / group_.columns;
    const int64_t end =
        group_.columns == 0 ? size : std::min(size, (group + 1) * group_.columns - column);
    for (; i < end; ++i) values[i] *= scales[group];
  }
}

}  // namespace millrace
