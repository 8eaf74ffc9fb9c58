#include "executors/cpu/memory.h"

#include <sys/mman.h>

#include "base/strings.h"

namespace millrace::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

absl::StatusOr<Memory> Memory::Reserve(size_t bytes, std::string_view what) {
  // One extra huge page allows the start to be aligned to a huge page.
  const size_t mapped = bytes + kHugePage;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    return absl::ResourceExhaustedError(StrCat("no memory for ", what, " of ", bytes, " bytes"));
  }
  uint8_t* begin = static_cast<uint8_t*>(start);
  uint8_t* aligned =
      begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (aligned != begin) munmap(begin, aligned - begin);
  const size_t tail = begin + mapped - (aligned + bytes);
  const size_t whole_pages = tail / 4096 * 4096;
  if (whole_pages > 0) munmap(begin + mapped - whole_pages, whole_pages);
  madvise(aligned, bytes, MADV_HUGEPAGE);  // only a hint: without it everything is merely slower
  return Memory(aligned, bytes);
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace millrace::cpu
