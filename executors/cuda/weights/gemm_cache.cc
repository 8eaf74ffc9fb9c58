#include "executors/cuda/weights/gemm_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/random_bits.h"
#include "base/strings.h"

namespace millrace::cuda {
namespace {

namespace fs = std::filesystem;

// Version of the measurements. Increment it when our own kernels change.
constexpr int kFormat = 1;
constexpr size_t kMostBytes = size_t{1} << 20;

// Replaces all characters but letters and digits by '-'.
std::string FileName(std::string name) {
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return name;
}

// Returns the file's text, or an empty string unless it is a regular file of plausible size.
std::string ReadText(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  const uintmax_t size = fs::file_size(path, error);
  if (error || size > kMostBytes) return {};
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

absl::Status Failed(std::string_view what, const fs::path& path, int error) {
  return absl::UnavailableError(StrCat(what, " ", path.string(), ": ", std::strerror(error)));
}

// Replaces the file atomically, so that no other process reads a partial file.
absl::Status WriteText(const fs::path& path, std::string_view text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return Failed("making", path.parent_path(), error.value());
  // In containers that share a folder, all processes may have the same number.
  const fs::path part = StrCat(path.string(), ".", RandomBits());
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return Failed("writing", part, errno);
  const ssize_t written = write(file, text.data(), text.size());
  const int write_error = errno;
  close(file);
  if (written != static_cast<ssize_t>(text.size())) {
    fs::remove(part, error);
    return Failed("writing", part, written < 0 ? write_error : ENOSPC);
  }
  fs::rename(part, path, error);
  if (!error) return absl::OkStatus();
  const int rename_error = error.value();
  fs::remove(part, error);
  return Failed("writing", path, rename_error);
}

}  // namespace

GemmCache::GemmCache(const fs::path& folder, GemmCacheKey key) : key_(std::move(key)) {
  if (folder.empty()) return;
  path_ = folder / (FileName(key_.gpu) + "-cublaslt-" + std::to_string(key_.library) + ".txt");
  lines_ = Read();
}

fs::path GemmCache::DefaultFolder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "millrace" / "gemm";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "millrace" / "gemm";
  return {};
}

// Returns a line's beginning, e.g. "exact 4096x4096 bf16 bf16 bf16 store".
std::string GemmCache::LineKey(const kernels::GemmDesc& desc) const {
  return StrCat(key_.exact ? "exact" : "any",
                key_.gemm == kernels::Gemm::kCublasLt ? "-cublaslt " : " ",
                kernels::ToString(desc));
}

std::string GemmCache::Header() const {
  return StrCat("millrace gemm ", kFormat, ", cuBLASLt ", key_.library, ", ", key_.gpu);
}

GemmCache::Lines GemmCache::Read() const {
  Lines lines;
  std::istringstream text(ReadText(path_));
  std::string line;
  if (!std::getline(text, line) || line != Header()) return lines;
  while (std::getline(text, line)) {
    const size_t colon = line.find(": ");
    const size_t space = line.find(' ');
    if (colon == line.npos || space > colon) continue;
    const std::string_view desc = std::string_view(line).substr(space + 1, colon - space - 1);
    const std::string_view ranges = std::string_view(line).substr(colon + 2);
    if (!kernels::ParseGemmDesc(desc).has_value() ||
        !kernels::ParseGemmRanges(ranges).has_value()) {
      continue;
    }
    lines[line.substr(0, colon)] = ranges;
  }
  return lines;
}

std::optional<kernels::GemmRanges> GemmCache::Find(const kernels::GemmDesc& desc) const {
  const auto found = lines_.find(LineKey(desc));
  if (found == lines_.end()) return std::nullopt;
  return kernels::ParseGemmRanges(found->second);
}

void GemmCache::Add(const kernels::GemmDesc& desc, const kernels::GemmRanges& ranges) {
  lines_[LineKey(desc)] = kernels::ToString(ranges);
}

absl::Status GemmCache::Save() const {
  if (path_.empty()) return absl::OkStatus();
  Lines lines = lines_;
  lines.merge(Read());  // ours go first
  std::string text = Header() + "\n";
  for (const auto& [key, ranges] : lines) {
    if (text.size() + key.size() + ranges.size() + 3 > kMostBytes) break;
    text += key + ": " + ranges + "\n";
  }
  return WriteText(path_, text);
}

}  // namespace millrace::cuda
