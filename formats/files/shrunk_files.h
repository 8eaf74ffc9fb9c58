// Says which file has shrunk while it was mapped, in the place of a bare SIGBUS.
#ifndef MILLRACE_FORMATS_FILES_SHRUNK_FILES_H_
#define MILLRACE_FORMATS_FILES_SHRUNK_FILES_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace millrace {

// Lets a read beyond the end of a mapped file that has shrunk end the process with one line on
// stderr that names the file, and status 1, instead of SIGBUS. Other causes of SIGBUS end it as
// before. Call once, before threads start.
void ExplainShrunkFiles();

// Adds a mapping to those that are explained, or removes it before it is unmapped. Thread-safe.
void AddMapping(absl::Span<const uint8_t> bytes, const std::string& base_name);
void RemoveMapping(absl::Span<const uint8_t> bytes);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FILES_SHRUNK_FILES_H_
