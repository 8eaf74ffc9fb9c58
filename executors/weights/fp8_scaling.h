// Turns the codes of an FP8 weight into the numbers that they stand for.
#ifndef MILLRACE_EXECUTORS_WEIGHTS_FP8_SCALING_H_
#define MILLRACE_EXECUTORS_WEIGHTS_FP8_SCALING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/weights/checkpoint.h"
#include "formats/tensors/quant_scheme.h"

namespace millrace {

// The scales of one weight [out, in], of a group of elements each.
class Fp8Scaling {
 public:
  // Reads the scales beside the weight `name`. The number of scales says which elements share one:
  // all, those of a row, or those of a 128x128 block. Fails if there are as many as none of these
  // have. The source has data.
  static absl::StatusOr<Fp8Scaling> Read(const Checkpoint& checkpoint, const std::string& name);

  // Multiplies decoded codes of `row`, those of the columns from `column` on, by their scales. Each
  // product is rounded to float32 once.
  void Apply(int64_t row, int64_t column, absl::Span<float> values) const;

 private:
  QuantGroup group_;
  int64_t across_ = 1;  // groups beside each other
  std::vector<float> scales_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_WEIGHTS_FP8_SCALING_H_
