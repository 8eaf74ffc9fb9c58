// Writes a Hugging Face folder so that it is there whole or not at all.
#ifndef MILLRACE_SERVER_CONVERT_FOLDER_WRITER_H_
#define MILLRACE_SERVER_CONVERT_FOLDER_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

// A file that is written from its front to its end.
class NewFile {
 public:
  static absl::StatusOr<NewFile> Create(const std::string& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  absl::Status Append(absl::Span<const uint8_t> bytes);

  // Returns once the file's bytes are on the disk.
  absl::Status Sync();

 private:
  NewFile(std::string base_name, int fd) : base_name_(std::move(base_name)), fd_(fd) {}
  absl::Status Error(std::string_view what) const;

  std::string base_name_;
  int fd_;
  int64_t written_ = 0;
};

// A new folder beside its target, "<target>.partial-" and six characters, which Publish renames.
// Its destructor removes a folder that was not published; a process that is killed leaves it.
class FolderWriter {
 public:
  // ALREADY_EXISTS for a target that is there and not an empty folder.
  static absl::StatusOr<std::unique_ptr<FolderWriter>> Create(const std::string& target);
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;
  ~FolderWriter();

  const std::string& folder() const { return folder_; }

  absl::Status WriteFile(const std::string& name, std::string_view text) const;

  // Renames the folder to its target. All files in it must have been synced.
  absl::Status Publish();

 private:
  FolderWriter(std::string target, std::string folder)
      : target_(std::move(target)), folder_(std::move(folder)) {}

  std::string target_;
  std::string folder_;
  bool published_ = false;
};

// A tensor as a safetensors header describes it.
struct TensorHeader {
  std::string name;
  std::string_view type;  // "BF16"
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

// Returns the header of a safetensors file with these tensors, in this order, its length in front.
std::string SafetensorsHeader(absl::Span<const TensorHeader> tensors);

// Divides tensors, in their order, among files of at most `most` bytes of data; a tensor that is
// larger has a file to itself. Returns the number of tensors of each.
std::vector<size_t> DivideAmongShards(absl::Span<const TensorHeader> tensors, uint64_t most);

// "model-00001-of-00003.safetensors"; `shard` counts from 0.
std::string ShardName(size_t shard, size_t shards);

// Returns the content of model.safetensors.index.json. `counts` are those of DivideAmongShards.
std::string ShardIndex(absl::Span<const TensorHeader> tensors, absl::Span<const size_t> counts);

}  // namespace millrace

#endif  // MILLRACE_SERVER_CONVERT_FOLDER_WRITER_H_
