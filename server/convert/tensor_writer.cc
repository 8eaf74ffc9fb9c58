#include "server/convert/tensor_writer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/distributed/tensor_stream.h"
#include "server/convert/element_conversion.h"

namespace millrace {
namespace {

constexpr int64_t kWindowBytes = 16 << 20;  // that are read at a time
constexpr int64_t kMaxHeadBytes = 256 << 20;

class TensorWriter {
 public:
  TensorWriter(CheckpointFolder* checkpoint, const FolderTensors& tensors,
               const TensorWriting& writing, const FolderWriter& folder)
      : checkpoint_(checkpoint), tensors_(tensors), writing_(writing), folder_(folder) {}

  absl::StatusOr<WrittenTensors> Write() {
    std::vector<TensorHeader> headers;
    for (const FolderTensor& tensor : tensors_.tensors) {
      MILLRACE_ASSIGN_OR_RETURN(TensorHeader header, HeaderOf(tensor));
      headers.push_back(std::move(header));
    }
    const std::vector<size_t> counts = DivideAmongShards(headers, writing_.shard_bytes);
    WrittenTensors written{.files = counts.size()};
    size_t next = 0;
    for (size_t shard = 0; shard < counts.size(); ++shard) {
      const absl::Span<const TensorHeader> of_shard =
          absl::MakeConstSpan(headers).subspan(next, counts[shard]);
      const std::string name = ShardName(shard, counts.size());
      const uint64_t before = written.bytes;
      MILLRACE_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(StrCat(folder_.folder(), "/", name)));
      const std::string header = SafetensorsHeader(of_shard);
      MILLRACE_RETURN_IF_ERROR(
          file.Append({reinterpret_cast<const uint8_t*>(header.data()), header.size()}));
      for (size_t i = 0; i < counts[shard]; ++i, ++next) {
        MILLRACE_RETURN_IF_ERROR(WriteTensor(tensors_.tensors[next], &file));
        written.bytes += headers[next].bytes;
      }
      MILLRACE_RETURN_IF_ERROR(file.Sync());
      writing_.on_file(name, written.bytes - before);
    }
    MILLRACE_RETURN_IF_ERROR(
        folder_.WriteFile("model.safetensors.index.json", ShardIndex(headers, counts)));
    return written;
  }

 private:
  const CheckpointTensor& SourceOf(const FolderTensor& tensor) const {
    return checkpoint_->metadata().tensors[tensor.source];
  }

  const TorchType& TypeOf(const FolderTensor& tensor) const {
    const TorchType& stored = *SourceOf(tensor).type;
    return writing_.type != nullptr && IsCast(stored) ? *writing_.type : stored;
  }

  absl::StatusOr<TensorHeader> HeaderOf(const FolderTensor& tensor) const {
    const CheckpointTensor& source = SourceOf(tensor);
    if (writing_.type != nullptr && source.type->torch == "torch.float64") {
      return absl::UnimplementedError(
          StrCat("tensor ", source.name, ": is torch.float64, which is not cast"));
    }
    const int64_t elements = ElementsOf(tensor.shape);
    if (tensor.rotary_heads > 0 &&
        elements / tensor.rotary_heads * source.type->bytes > kMaxHeadBytes) {
      return absl::UnimplementedError(
          StrCat("tensor ", source.name, ": a head has more than ", kMaxHeadBytes, " bytes"));
    }
    const TorchType& type = TypeOf(tensor);
    return TensorHeader{tensor.name, type.safetensors, tensor.shape,
                        static_cast<uint64_t>(elements * type.bytes)};
  }

  absl::Status WriteTensor(const FolderTensor& tensor, NewFile* file) {
    const CheckpointTensor& source = SourceOf(tensor);
    if (!stream_.has_value() || stream_source_ != tensor.source) {
      MILLRACE_ASSIGN_OR_RETURN(TensorStream stream, TensorStream::Open(checkpoint_, source));
      stream_.emplace(std::move(stream));
      stream_source_ = tensor.source;
    }
    const int64_t elements = ElementsOf(tensor.shape);
    const int64_t head = tensor.rotary_heads > 0 ? elements / tensor.rotary_heads : 1;
    const int64_t window = std::max<int64_t>(kWindowBytes / source.type->bytes / head, 1) * head;
    for (int64_t done = 0; done < elements; done += window) {
      if (writing_.stop != nullptr && *writing_.stop) return absl::CancelledError("interrupted");
      const int64_t count = std::min(window, elements - done);
      read_.resize(count * source.type->bytes);
      MILLRACE_RETURN_IF_ERROR(stream_->Read(absl::MakeSpan(read_)));
      absl::Span<const uint8_t> bytes = read_;
      if (tensor.rotary_heads > 0) bytes = Rotated(tensor, count / head);
      const TorchType& type = TypeOf(tensor);
      if (&type != source.type) {
        cast_.resize(count * type.bytes);
        const absl::Status status = CastElements(*source.type, bytes, type, absl::MakeSpan(cast_));
        if (!status.ok()) return Annotate(status, StrCat("tensor ", source.name));
        bytes = cast_;
      }
      MILLRACE_RETURN_IF_ERROR(file->Append(bytes));
    }
    return absl::OkStatus();
  }

  // Returns the heads that were read, with their rows in halves.
  absl::Span<const uint8_t> Rotated(const FolderTensor& tensor, int64_t heads) {
    const int64_t rows = tensor.shape[0] / tensor.rotary_heads;
    rotated_.resize(read_.size());
    const size_t head_bytes = read_.size() / heads;
    for (int64_t head = 0; head < heads; ++head) {
      PairsToHalves(absl::MakeConstSpan(read_).subspan(head * head_bytes, head_bytes), rows,
                    absl::MakeSpan(rotated_).subspan(head * head_bytes, head_bytes));
    }
    return rotated_;
  }

  CheckpointFolder* checkpoint_;
  const FolderTensors& tensors_;
  const TensorWriting& writing_;
  const FolderWriter& folder_;
  std::optional<TensorStream> stream_;  // of the source whose parts are written
  size_t stream_source_ = 0;
  std::vector<uint8_t> read_, rotated_, cast_;
};

}  // namespace

absl::StatusOr<WrittenTensors> WriteTensors(CheckpointFolder* checkpoint,
                                            const FolderTensors& tensors,
                                            const TensorWriting& writing,
                                            const FolderWriter& folder) {
  return TensorWriter(checkpoint, tensors, writing, folder).Write();
}

}  // namespace millrace
