#include "formats/distributed/stored_zip.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read in place");

using Bytes = absl::Span<const uint8_t>;

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kLocator64 = 0x07064b50;
constexpr size_t kLocalHeaderBytes = 30;
constexpr size_t kDirectoryHeaderBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kLocator64Bytes = 20;
constexpr size_t kMaxCommentBytes = 0xffff;
constexpr uint16_t kExtra64 = 1;  // the extra field with numbers of 64 bits
constexpr uint64_t kMaxEntries = 1 << 16;

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(StrCat("zip archive: ", what));
}

// Reads a number at an offset that lies inside.
template <typename Number>
Number At(Bytes bytes, size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

struct Directory {
  uint64_t offset;
  uint64_t bytes;
  uint64_t entries;
};

// Finds the record that ends an archive: a comment may stand behind it.
std::optional<size_t> FindEnd(Bytes bytes) {
  if (bytes.size() < kEndBytes) return std::nullopt;
  const size_t last = bytes.size() - kEndBytes;
  const size_t first = last - std::min(last, kMaxCommentBytes);
  for (size_t at = last + 1; at > first; --at) {
    if (At<uint32_t>(bytes, at - 1) == kEnd &&
        At<uint16_t>(bytes, at - 1 + 20) == bytes.size() - (at - 1) - kEndBytes) {
      return at - 1;
    }
  }
  return std::nullopt;
}

absl::StatusOr<Directory> FindDirectory(Bytes bytes) {
  const std::optional<size_t> end = FindEnd(bytes);
  if (!end.has_value()) return Bad("has no end record; it was cut off");
  Directory directory{.offset = At<uint32_t>(bytes, *end + 16),
                      .bytes = At<uint32_t>(bytes, *end + 12),
                      .entries = At<uint16_t>(bytes, *end + 10)};
  if (*end >= kLocator64Bytes && At<uint32_t>(bytes, *end - kLocator64Bytes) == kLocator64) {
    const auto at = At<uint64_t>(bytes, *end - kLocator64Bytes + 8);
    if (at > *end || *end - at < kEnd64Bytes || At<uint32_t>(bytes, at) != kEnd64) {
      return Bad("its end record of 64 bits is not where its locator says");
    }
    directory = {.offset = At<uint64_t>(bytes, at + 48),
                 .bytes = At<uint64_t>(bytes, at + 40),
                 .entries = At<uint64_t>(bytes, at + 32)};
  }
  if (directory.offset > *end || directory.bytes > *end - directory.offset) {
    return Bad("its directory lies outside");
  }
  if (directory.entries > kMaxEntries) {
    return Bad(StrCat(directory.entries, " entries, must be at most ", kMaxEntries));
  }
  return directory;
}

// Replaces those of the numbers that are saturated by what the extra field has, in this order.
absl::Status ReadExtra64(Bytes extra, std::initializer_list<uint64_t*> numbers) {
  while (extra.size() >= 4) {
    const size_t size = At<uint16_t>(extra, 2);
    if (size > extra.size() - 4) break;
    Bytes field = extra.subspan(4, size);
    const bool wanted = At<uint16_t>(extra, 0) == kExtra64;
    extra.remove_prefix(4 + size);
    if (!wanted) continue;
    for (uint64_t* number : numbers) {
      if (*number != 0xffffffff) continue;
      if (field.size() < 8) return Bad("an extra field of 64 bits is too short");
      *number = At<uint64_t>(field, 0);
      field.remove_prefix(8);
    }
  }
  return absl::OkStatus();
}

// Returns the bytes behind the entry's own header.
absl::StatusOr<Bytes> EntryBytes(Bytes bytes, uint64_t header, uint64_t size) {
  if (header > bytes.size() || bytes.size() - header < kLocalHeaderBytes ||
      At<uint32_t>(bytes, header) != kLocalHeader) {
    return Bad("an entry's header is not where the directory says");
  }
  const uint64_t skipped =
      kLocalHeaderBytes + At<uint16_t>(bytes, header + 26) + At<uint16_t>(bytes, header + 28);
  if (skipped > bytes.size() - header || size > bytes.size() - header - skipped) {
    return Bad("an entry lies outside");
  }
  return bytes.subspan(header + skipped, size);
}

// Reads the entry at the front of the directory, and removes it there.
absl::StatusOr<StoredZip::Entry> ReadEntry(Bytes bytes, Bytes* directory) {
  if (directory->size() < kDirectoryHeaderBytes ||
      At<uint32_t>(*directory, 0) != kDirectoryHeader) {
    return Bad("its directory is damaged");
  }
  const auto flags = At<uint16_t>(*directory, 8);
  const auto method = At<uint16_t>(*directory, 10);
  uint64_t stored = At<uint32_t>(*directory, 20);
  uint64_t size = At<uint32_t>(*directory, 24);
  const size_t name_bytes = At<uint16_t>(*directory, 28);
  const size_t extra_bytes = At<uint16_t>(*directory, 30);
  const size_t comment_bytes = At<uint16_t>(*directory, 32);
  uint64_t header = At<uint32_t>(*directory, 42);
  directory->remove_prefix(kDirectoryHeaderBytes);
  if (name_bytes + extra_bytes + comment_bytes > directory->size()) {
    return Bad("its directory is damaged");
  }
  StoredZip::Entry entry;
  entry.name = {reinterpret_cast<const char*>(directory->data()), name_bytes};
  MILLRACE_RETURN_IF_ERROR(
      ReadExtra64(directory->subspan(name_bytes, extra_bytes), {&size, &stored, &header}));
  directory->remove_prefix(name_bytes + extra_bytes + comment_bytes);
  if (method != 0 || (flags & 1) != 0 || stored != size) {
    return absl::UnimplementedError(StrCat("zip archive: entry ", Printable(entry.name),
                                           " is compressed or encrypted; supported: stored"));
  }
  MILLRACE_ASSIGN_OR_RETURN(entry.bytes, EntryBytes(bytes, header, size));
  return entry;
}

}  // namespace

absl::StatusOr<StoredZip> StoredZip::Read(absl::Span<const uint8_t> bytes) {
  MILLRACE_ASSIGN_OR_RETURN(const Directory found, FindDirectory(bytes));
  Bytes directory = bytes.subspan(found.offset, found.bytes);
  StoredZip zip;
  for (uint64_t i = 0; i < found.entries; ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const Entry entry, ReadEntry(bytes, &directory));
    zip.entries.push_back(entry);
  }
  return zip;
}

const StoredZip::Entry* StoredZip::Find(std::string_view name) const {
  for (const Entry& entry : entries) {
    const size_t slash = entry.name.find('/');
    if (slash != entry.name.npos && entry.name.substr(slash + 1) == name) return &entry;
  }
  return nullptr;
}

}  // namespace millrace
