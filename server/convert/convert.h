// `millraced convert`: a checkpoint of torch.distributed.checkpoint becomes a Hugging Face folder.
#ifndef MILLRACE_SERVER_CONVERT_CONVERT_H_
#define MILLRACE_SERVER_CONVERT_CONVERT_H_

#include <atomic>

#include "absl/status/status.h"
#include "config/settings.h"

namespace millrace {

// Converts settings.model to settings.output, and prints what it did to stdout. `stop`, once true,
// ends it with Cancelled. Whatever ends it leaves no folder of that name.
absl::Status RunConvert(const Settings& settings, const std::atomic<bool>& stop);

}  // namespace millrace

#endif  // MILLRACE_SERVER_CONVERT_CONVERT_H_
