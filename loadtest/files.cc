#include "loadtest/files.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/strings.h"

namespace millrace {
namespace {

absl::Status Error(std::string_view verb, const std::string& path) {
  return absl::NotFoundError(
      StrCat("cannot ", verb, " ", Printable(path, 300), ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error("open", path);
  std::ostringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad() || text.fail()) return Error("read", path);
  return std::move(text).str();
}

absl::Status WriteFile(const std::string& path, std::string_view text) {
  return WriteFileInParts(path, 1, [text](uint64_t) { return std::string(text); });
}

absl::Status WriteFileInParts(const std::string& path, uint64_t count,
                              const std::function<std::string(uint64_t)>& part) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return Error("open", path);
  for (uint64_t i = 0; i < count && file; ++i) file << part(i);
  file.close();
  return file ? absl::OkStatus() : Error("write", path);
}

}  // namespace millrace
