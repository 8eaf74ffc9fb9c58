#include "server/convert/folder_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeaderAlignment = 8;  // of the data behind it

absl::Status SystemError(std::string_view what, int error) {
  const std::string message = StrCat(what, ": ", std::strerror(error));
  return error == ENOSPC ? absl::ResourceExhaustedError(message)
                         : absl::FailedPreconditionError(message);
}

absl::Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(StrCat(folder, ": open"), errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  // Some file systems cannot sync folders, and say so.
  return error == 0 || error == EINVAL ? absl::OkStatus()
                                       : SystemError(StrCat(folder, ": fsync"), error);
}

}  // namespace

absl::StatusOr<NewFile> NewFile::Create(const std::string& path) {
  std::string base_name = path.substr(path.find_last_of('/') + 1);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError(StrCat(base_name, ": create"), errno);
  return NewFile(std::move(base_name), fd);
}

NewFile::NewFile(NewFile&& other) noexcept
    : base_name_(std::move(other.base_name_)),
      fd_(std::exchange(other.fd_, -1)),
      written_(other.written_) {}

NewFile::~NewFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status NewFile::Error(std::string_view what) const {
  return SystemError(StrCat(base_name_, ": ", what), errno);
}

absl::Status NewFile::Append(absl::Span<const uint8_t> bytes) {
  const int64_t begin = written_;
  while (!bytes.empty()) {
    const ssize_t count = write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error("write");
    bytes.remove_prefix(static_cast<size_t>(count));
    written_ += count;
  }
  // The disk begins at once, so that Sync has little left to wait for. It is a hint.
  sync_file_range(fd_, begin, written_ - begin, SYNC_FILE_RANGE_WRITE);
  return absl::OkStatus();
}

absl::Status NewFile::Sync() { return fsync(fd_) == 0 ? absl::OkStatus() : Error("fsync"); }

absl::StatusOr<std::unique_ptr<FolderWriter>> FolderWriter::Create(const std::string& target) {
  fs::path path = fs::path(target).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // it ended with a slash
  std::error_code error;
  const bool exists = fs::exists(fs::symlink_status(path, error));
  if (exists && !(fs::is_directory(path, error) && fs::is_empty(path, error))) {
    return absl::AlreadyExistsError(
        StrCat(target, ": is there; expected a new or an empty folder"));
  }
  std::string folder = StrCat(path.string(), ".partial-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return SystemError(StrCat(folder, ": create"), errno);
  fs::permissions(folder, fs::perms(0755), error);
  return std::unique_ptr<FolderWriter>(new FolderWriter(path, std::move(folder)));
}

FolderWriter::~FolderWriter() {
  std::error_code error;
  if (!published_) fs::remove_all(folder_, error);
}

absl::Status FolderWriter::WriteFile(const std::string& name, std::string_view text) const {
  MILLRACE_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(StrCat(folder_, "/", name)));
  MILLRACE_RETURN_IF_ERROR(
      file.Append({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
  return file.Sync();
}

absl::Status FolderWriter::Publish() {
  MILLRACE_RETURN_IF_ERROR(SyncFolder(folder_));
  // An empty folder of that name is replaced; one that got files meanwhile is not.
  if (std::rename(folder_.c_str(), target_.c_str()) != 0) {
    return SystemError(StrCat(target_, ": rename"), errno);
  }
  published_ = true;
  const std::string parent = fs::path(target_).parent_path();
  return SyncFolder(parent.empty() ? "." : parent);
}

std::string SafetensorsHeader(absl::Span<const TensorHeader> tensors) {
  OrderedJson header;
  header["__metadata__"]["format"] = "pt";
  uint64_t begin = 0;
  for (const TensorHeader& tensor : tensors) {
    header[tensor.name] = {{"dtype", std::string(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, begin + tensor.bytes}}};
    begin += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  const uint64_t size = text.size();
  std::string framed(sizeof(size), '\0');
  std::memcpy(framed.data(), &size, sizeof(size));
  return framed + text;
}

std::vector<size_t> DivideAmongShards(absl::Span<const TensorHeader> tensors, uint64_t most) {
  std::vector<size_t> counts;
  uint64_t bytes = 0;
  for (const TensorHeader& tensor : tensors) {
    if (counts.empty() || bytes + tensor.bytes > most) {
      counts.push_back(0);
      bytes = 0;
    }
    ++counts.back();
    bytes += tensor.bytes;
  }
  return counts;
}

std::string ShardName(size_t shard, size_t shards) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
  return name;
}

std::string ShardIndex(absl::Span<const TensorHeader> tensors, absl::Span<const size_t> counts) {
  uint64_t total = 0;
  Json map = Json::object();
  size_t next = 0;
  for (size_t shard = 0; shard < counts.size(); ++shard) {
    const std::string file = ShardName(shard, counts.size());
    for (size_t i = 0; i < counts[shard]; ++i, ++next) {
      map[tensors[next].name] = file;
      total += tensors[next].bytes;
    }
  }
  OrderedJson index;
  index["metadata"]["total_size"] = total;
  index["weight_map"] = map;
  return index.dump(2) + "\n";
}

}  // namespace millrace
