#include "server/grpc/tokenizer_archive.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "absl/strings/escaping.h"
#include "base/regular_file.h"
#include "base/sha256.h"
#include "base/strings.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{256} << 20;

constexpr std::string_view kNames[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "config.json",
                                       "generation_config.json",
                                       "special_tokens_map.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.json",
                                       "added_tokens.json"};
constexpr std::string_view kExtensions[] = {".jinja", ".model", ".tiktoken"};

bool IsTokenizerFile(const fs::path& path) {
  const std::string name = path.filename().string(), extension = path.extension().string();
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::find(std::begin(kExtensions), std::end(kExtensions), extension) !=
             std::end(kExtensions);
}

// ISO 3309's CRC, which ZIP has.
uint32_t Crc32(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made;
    for (uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = (made[i] >> 1) ^ (made[i] & 1 ? 0xedb88320U : 0);
    }
    return made;
  }();
  uint32_t crc = ~0U;
  for (const char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

// Appends numbers as ZIP has them, the lowest byte first.
void Add16(std::string& out, size_t number) {
  for (int i = 0; i < 2; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
}
void Add32(std::string& out, size_t number) {
  Add16(out, number & 0xffff);
  Add16(out, number >> 16);
}

// The local header of a file and its entry in the directory have this in common.
void AddDescription(std::string& out, const ArchiveFile& file, uint32_t crc) {
  Add16(out, 20);      // the version of ZIP that is needed: 2.0
  Add16(out, 0x0800);  // flags: names are UTF-8
  Add16(out, 0);       // method: stored
  Add16(out, 0);       // time
  Add16(out, 0x21);    // date: the first day of 1980, so that equal files make equal archives
  Add32(out, crc);
  Add32(out, file.second.size());
  Add32(out, file.second.size());
  Add16(out, file.first.size());
  Add16(out, 0);  // extra fields
}

absl::StatusOr<std::vector<ArchiveFile>> ReadFiles(const std::string& folder) {
  std::error_code error;
  std::vector<ArchiveFile> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!IsTokenizerFile(at->path())) continue;
    absl::StatusOr<std::string> text = ReadRegularFile(at->path().string(), kMaxFileBytes);
    if (!text.ok()) return absl::InternalError("the tokenizer's files cannot be read");
    files.emplace_back(at->path().filename().string(), *std::move(text));
  }
  const bool whole = std::any_of(files.begin(), files.end(), [](const ArchiveFile& file) {
    return file.first == "tokenizer.json" || file.first.ends_with(".model");
  });
  if (error || !whole) {
    return absl::FailedPreconditionError(
        "the model's tokenizer is not in files of its own, as in a GGUF file; allowed: a router "
        "with a tokenizer of its own (--tokenizer-path)");
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string MakeZip(const std::vector<ArchiveFile>& files) {
  std::string out, directory;
  for (const ArchiveFile& file : files) {
    const uint32_t crc = Crc32(file.second);
    const size_t offset = out.size();
    Add32(out, 0x04034b50);
    AddDescription(out, file, crc);
    out += file.first;
    out += file.second;
    Add32(directory, 0x02014b50);
    Add16(directory, 20);  // the version that made it
    AddDescription(directory, file, crc);
    Add16(directory, 0);  // comment
    Add16(directory, 0);  // disk
    Add16(directory, 0);  // internal attributes
    Add32(directory, 0);  // external attributes
    Add32(directory, offset);
    directory += file.first;
  }
  const size_t at = out.size();
  out += directory;
  Add32(out, 0x06054b50);
  Add32(out, 0);  // disks
  Add16(out, files.size());
  Add16(out, files.size());
  Add32(out, directory.size());
  Add32(out, at);
  Add16(out, 0);  // comment
  return out;
}

absl::StatusOr<std::shared_ptr<const TokenizerArchive>> TokenizerArchives::Get(
    const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (archive_ == nullptr || path_ != path) {
    const absl::StatusOr<std::vector<ArchiveFile>> files = ReadFiles(path);
    if (!files.ok()) return files.status();
    auto made = std::make_shared<TokenizerArchive>();
    made->zip = MakeZip(*files);
    made->sha256 = absl::BytesToHexString(AbslView(AsBytes(Sha256Of(made->zip))));
    archive_ = std::move(made);
    path_ = path;
  }
  return archive_;
}

}  // namespace millrace
