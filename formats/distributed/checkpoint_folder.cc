#include "formats/distributed/checkpoint_folder.h"

#include <filesystem>
#include <system_error>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr char kMetadata[] = ".metadata";

absl::Status CheckInside(const CheckpointTensor& tensor, const CheckpointChunk& chunk,
                         const MappedFile& file) {
  const uint64_t size = file.bytes().size();
  if (chunk.offset <= size && chunk.bytes <= size - chunk.offset) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(file.base_name(), ": tensor ", tensor.name,
                                           ": a chunk of ", chunk.bytes, " bytes begins at byte ",
                                           chunk.offset, ", but the file has ", size, " bytes"));
}

}  // namespace

bool IsCheckpointFolder(const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_regular_file(std::filesystem::path(folder) / kMetadata, error);
}

absl::StatusOr<CheckpointFolder> CheckpointFolder::Open(const std::string& folder) {
  const std::filesystem::path path(folder);
  CheckpointFolder opened;
  {
    MILLRACE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path / kMetadata));
    absl::StatusOr<CheckpointMetadata> metadata = ReadCheckpointMetadata(file.bytes());
    if (!metadata.ok()) return Annotate(metadata.status(), kMetadata);
    opened.metadata_ = *std::move(metadata);
  }
  for (const std::string& name : opened.metadata_.files) {
    MILLRACE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path / name));
    opened.files_.push_back(std::move(file));
  }
  for (const CheckpointTensor& tensor : opened.metadata_.tensors) {
    for (const CheckpointChunk& chunk : tensor.chunks) {
      MILLRACE_RETURN_IF_ERROR(CheckInside(tensor, chunk, opened.files_[chunk.file]));
    }
  }
  return opened;
}

absl::StatusOr<StoredChunk> CheckpointFolder::Chunk(const CheckpointTensor& tensor,
                                                    const CheckpointChunk& chunk) {
  const MappedFile& file = files_[chunk.file];
  const std::string where = StrCat(file.base_name(), ": tensor ", tensor.name);
  const auto named = [&](absl::StatusOr<StoredChunk> stored) -> absl::StatusOr<StoredChunk> {
    if (stored.ok()) return stored;
    return Annotate(stored.status(), where);
  };
  if (IsZip(file.bytes(), chunk)) return named(ReadZipChunk(file.bytes(), tensor, chunk));
  auto header = headers_.find({chunk.file, chunk.offset});
  if (header == headers_.end()) {
    absl::StatusOr<ChunkHeader> read = ReadChunkHeader(file.bytes(), chunk.offset);
    if (!read.ok()) return Annotate(read.status(), where);
    header = headers_.emplace(std::pair(chunk.file, chunk.offset), *std::move(read)).first;
  }
  return named(ReadSafetensorsChunk(file.bytes(), header->second, tensor, chunk));
}

}  // namespace millrace
