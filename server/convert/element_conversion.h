// Changes the elements of a tensor on their way from a checkpoint to a folder.
#ifndef MILLRACE_SERVER_CONVERT_ELEMENT_CONVERSION_H_
#define MILLRACE_SERVER_CONVERT_ELEMENT_CONVERSION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "formats/distributed/torch_type.h"

namespace millrace {

// Returns whether elements are cast where another float type is asked for: those of float32,
// float16 and bfloat16. FP8 and integers stay as they are.
bool IsCast(const TorchType& type);

// Rounds each element of `in` to nearest, ties to even. Both types are IsCast(), and `out` has as
// many elements. INVALID_ARGUMENT for a finite number that is too large for `to`.
absl::Status CastElements(const TorchType& from, absl::Span<const uint8_t> in, const TorchType& to,
                          absl::Span<uint8_t> out);

// Puts the rows of one head from pairs into halves: row 2i of `in` becomes row i, and row 2i + 1
// row i + rows / 2. Both have `rows` rows, an even number.
void PairsToHalves(absl::Span<const uint8_t> in, int64_t rows, absl::Span<uint8_t> out);

}  // namespace millrace

#endif  // MILLRACE_SERVER_CONVERT_ELEMENT_CONVERSION_H_
