#include "executors/torch/length_groups.h"

#include <algorithm>

namespace millrace::aten {

std::vector<size_t> CutByLength(absl::Span<const int64_t> lengths) {
  std::vector<size_t> ends;
  size_t begin = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    tokens += lengths[i];
    const int64_t padded = static_cast<int64_t>(i + 1 - begin) * lengths[i];
    if (padded <= std::max(2 * tokens, kCheapPaddedLength)) continue;
    ends.push_back(i);
    begin = i;
    tokens = lengths[i];
  }
  if (!lengths.empty()) ends.push_back(lengths.size());
  return ends;
}

}  // namespace millrace::aten
