#include "engine/request/request_id.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/random_bits.h"

namespace millrace {

std::string NewRequestId() { return absl::StrFormat("%016x%016x", RandomBits(), RandomBits()); }

bool IsFitRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

}  // namespace millrace
