#include "formats/distributed/checkpoint_metadata.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/distributed/pickle.h"

namespace millrace {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 62;
constexpr size_t kMaxNameBytes = 1024;

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata.Metadata";
constexpr std::string_view kTensor = "torch.distributed.checkpoint.metadata.TensorStorageMetadata";
constexpr std::string_view kObject = "torch.distributed.checkpoint.metadata.BytesStorageMetadata";
constexpr std::string_view kSize = "torch.Size";

// All classes that a `.metadata` may have. Those of `_shard` stood in their place before PyTorch
// 2.3; the types of tensors that are left out need no row in TorchTypes().
const std::vector<std::string_view>& Globals() {
  static const auto* const globals = [] {
    auto* all = new std::vector<std::string_view>{
        kMetadata,
        kTensor,
        kObject,
        kSize,
        "torch.distributed.checkpoint.metadata.TensorProperties",
        "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
        "torch.distributed.checkpoint.metadata.MetadataIndex",
        "torch.distributed.checkpoint.metadata.StorageMeta",
        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
        "torch.serialization._get_layout",
        "collections.OrderedDict",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
        "torch.uint16",
        "torch.uint32",
        "torch.uint64",
        "torch.complex64",
        "torch.complex128",
        "torch.float8_e4m3fnuz",
        "torch.float8_e5m2fnuz",
        "torch.float4_e2m1fn_x2",
    };
    for (const TorchType& type : TorchTypes()) all->push_back(type.torch);
    return all;
  }();
  return *globals;
}

absl::Status Bad(std::string_view what) { return absl::InvalidArgumentError(AbslView(what)); }

absl::Status BadTensor(std::string_view name, std::string_view what) {
  return Bad(StrCat("tensor ", Printable(name), ": ", what));
}

std::string List(absl::Span<const int64_t> numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) text += StrCat(i == 0 ? "" : ", ", numbers[i]);
  return text + "]";
}

// Reads a torch.Size, or a tuple or a list of whole numbers.
absl::StatusOr<std::vector<int64_t>> ReadSize(Pickle::Value value) {
  if (value.global() == kSize) value = value.arguments()[0];
  if (!value.is(PickleKind::kTuple) && !value.is(PickleKind::kList)) return Bad("is no torch.Size");
  if (value.size() > kMaxCheckpointRank) {
    return Bad(StrCat("has ", value.size(), " dimensions, must be at most ", kMaxCheckpointRank));
  }
  std::vector<int64_t> size;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::optional<int64_t> number = value[i].integer();
    if (!number.has_value() || *number < 0) return Bad("holds no whole number from 0 on");
    size.push_back(*number);
  }
  return size;
}

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

class MetadataReader {
 public:
  explicit MetadataReader(Pickle::Value root) : state_(root.state()) {}

  absl::StatusOr<CheckpointMetadata> Read() {
    const Pickle::Value entries = state_.Find("state_dict_metadata");
    const Pickle::Value places = state_.Find("storage_data");
    if (!entries.is(PickleKind::kDict)) return Bad("state_dict_metadata is no dict");
    if (!places.is(PickleKind::kDict)) return Bad("storage_data is no dict");
    MILLRACE_RETURN_IF_ERROR(ReadTensors(entries));
    MILLRACE_RETURN_IF_ERROR(ReadPlaces(places));
    return std::move(read_);
  }

 private:
  // A chunk, found by its tensor's name and its offsets.
  struct ChunkIndex {
    size_t tensor;
    size_t chunk;
    bool placed = false;
  };

  static std::string KeyOf(std::string_view name, absl::Span<const int64_t> offsets) {
    return StrCat(name, " ", List(offsets));
  }

  absl::Status ReadTensors(Pickle::Value entries) {
    absl::flat_hash_map<std::string_view, int, StringHash> seen;
    for (size_t i = 0; i + 1 < entries.size(); i += 2) {
      const Pickle::Value entry = entries[i + 1];
      if (!entries[i].is(PickleKind::kText))
        return Bad("state_dict_metadata has a key that is no text");
      const std::string_view name = entries[i].text();
      if (entry.global() == kObject || IsTrainingState(name)) {
        ++read_.left_out;
        continue;
      }
      if (entry.global() != kTensor) return BadTensor(name, "is no TensorStorageMetadata");
      if (!IsName(name)) {
        return BadTensor(name, StrCat("the name must be 1 to ", kMaxNameBytes,
                                      " printable characters of ASCII without a space"));
      }
      if (!seen.emplace(name, 0).second) return BadTensor(name, "comes twice");
      MILLRACE_RETURN_IF_ERROR(ReadTensor(name, entry.state()));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensor(std::string_view name, Pickle::Value state) {
    CheckpointTensor tensor;
    tensor.name = name;
    // The state of TensorProperties is a tuple that begins with the type.
    const std::string_view type = state.Find("properties").state()[0].global();
    tensor.type = FindTorchType(type);
    if (tensor.type == nullptr) {
      if (type.empty()) return BadTensor(name, "has no dtype");
      return absl::UnimplementedError(
          StrCat("tensor ", name, ": dtype ", type, " is not supported"));
    }
    absl::StatusOr<std::vector<int64_t>> shape = ReadSize(state.Find("size"));
    if (!shape.ok()) return BadTensor(name, StrCat("size ", shape.status().message()));
    tensor.shape = *std::move(shape);
    const int64_t elements = ElementsOf(tensor.shape);
    if (elements < 0 || elements > kMaxElements / 8) return BadTensor(name, "is too large");
    const Pickle::Value chunks = state.Find("chunks");
    if (!chunks.is(PickleKind::kList)) return BadTensor(name, "chunks is no list");
    for (size_t i = 0; i < chunks.size(); ++i) {
      MILLRACE_RETURN_IF_ERROR(ReadChunk(chunks[i].state(), &tensor));
    }
    int64_t stored = 0;
    for (const CheckpointChunk& chunk : tensor.chunks) stored += ElementsOf(chunk.sizes);
    if (stored != elements) {
      return BadTensor(
          name, StrCat("its ", tensor.chunks.size(), " chunks hold ", stored, " elements, but ",
                       List(tensor.shape), " has ", elements,
                       stored < elements ? ": chunks are missing" : ": chunks overlap"));
    }
    read_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status ReadChunk(Pickle::Value state, CheckpointTensor* tensor) {
    CheckpointChunk chunk;
    const struct {
      std::string_view name;
      std::vector<int64_t>* numbers;
    } fields[] = {{"offsets", &chunk.offsets}, {"sizes", &chunk.sizes}};
    for (const auto& field : fields) {
      absl::StatusOr<std::vector<int64_t>> numbers = ReadSize(state.Find(field.name));
      if (!numbers.ok()) {
        return BadTensor(tensor->name,
                         StrCat("a chunk's ", field.name, " ", numbers.status().message()));
      }
      *field.numbers = *std::move(numbers);
    }
    const size_t rank = tensor->shape.size();
    bool inside = chunk.offsets.size() == rank && chunk.sizes.size() == rank;
    for (size_t i = 0; inside && i < rank; ++i) {
      inside = chunk.offsets[i] <= tensor->shape[i] &&
               chunk.sizes[i] <= tensor->shape[i] - chunk.offsets[i];
    }
    if (!inside) {
      return BadTensor(tensor->name,
                       StrCat("its chunk at ", List(chunk.offsets), " of ", List(chunk.sizes),
                              " lies outside of ", List(tensor->shape)));
    }
    // A rank whose share of a short dimension is empty has such a chunk.
    if (ElementsOf(chunk.sizes) == 0) return absl::OkStatus();
    if (tensor->chunks.size() >= static_cast<size_t>(ElementsOf(tensor->shape))) {
      return BadTensor(tensor->name, "has more chunks than elements: chunks overlap");
    }
    tensor->chunks.push_back(std::move(chunk));
    return absl::OkStatus();
  }

  absl::Status ReadPlaces(Pickle::Value places) {
    for (size_t t = 0; t < read_.tensors.size(); ++t) {
      const CheckpointTensor& tensor = read_.tensors[t];
      for (size_t c = 0; c < tensor.chunks.size(); ++c) {
        const bool is_new =
            chunks_.emplace(KeyOf(tensor.name, tensor.chunks[c].offsets), ChunkIndex{t, c}).second;
        if (!is_new) {
          return BadTensor(tensor.name, StrCat("two chunks begin at ",
                                               List(tensor.chunks[c].offsets), ": chunks overlap"));
        }
      }
    }
    for (size_t i = 0; i + 1 < places.size(); i += 2) {
      const Pickle::Value key = places[i].state();
      const std::string_view name = key.Find("fqn").text();
      const absl::StatusOr<std::vector<int64_t>> offsets = ReadSize(key.Find("offset"));
      if (!offsets.ok()) continue;  // an object, or no place of a tensor at all
      const auto found = chunks_.find(KeyOf(name, *offsets));
      if (found == chunks_.end()) continue;
      ChunkIndex& index = found->second;
      CheckpointTensor& tensor = read_.tensors[index.tensor];
      MILLRACE_RETURN_IF_ERROR(
          ReadPlace(tensor.name, places[i + 1].state(), &tensor.chunks[index.chunk]));
      index.placed = true;
    }
    for (const auto& [key, index] : chunks_) {
      if (!index.placed) {
        const CheckpointTensor& tensor = read_.tensors[index.tensor];
        return BadTensor(tensor.name, StrCat("storage_data does not say where its chunk at ",
                                             List(tensor.chunks[index.chunk].offsets), " is"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadPlace(std::string_view name, Pickle::Value state, CheckpointChunk* chunk) {
    const Pickle::Value transforms = state.Find("transform_descriptors");
    if (transforms.size() > 0) {
      return absl::UnimplementedError(StrCat("tensor ", name, ": transform_descriptors name \"",
                                             Printable(transforms[0].text()),
                                             "\"; supported: chunks that were not transformed"));
    }
    const std::string_view file = state.Find("relative_path").text();
    // A name and no path: what lies elsewhere is none of the checkpoint's.
    if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos ||
        file.find('\0') != file.npos) {
      return BadTensor(name, StrCat("relative_path is \"", Printable(file),
                                    "\", must be the name of a file of the folder"));
    }
    const std::optional<int64_t> offset = state.Find("offset").integer();
    const std::optional<int64_t> length = state.Find("length").integer();
    if (!offset.has_value() || !length.has_value() || *offset < 0 || *length < 0) {
      return BadTensor(name,
                       "the offset and the length of a chunk must be whole numbers from 0 on");
    }
    chunk->offset = static_cast<uint64_t>(*offset);
    chunk->bytes = static_cast<uint64_t>(*length);
    const auto [found, is_new] = files_.emplace(file, static_cast<int>(read_.files.size()));
    if (is_new) read_.files.emplace_back(file);
    chunk->file = found->second;
    return absl::OkStatus();
  }

  const Pickle::Value state_;
  CheckpointMetadata read_;
  absl::flat_hash_map<std::string, ChunkIndex> chunks_;
  absl::flat_hash_map<std::string, int> files_;
};

}  // namespace

int64_t ElementsOf(absl::Span<const int64_t> sizes) {
  int64_t elements = 1;
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  for (const int64_t size : sizes) {
    if (size > kMaxElements / elements) return -1;
    elements *= size;
  }
  return elements;
}

bool IsTrainingState(std::string_view name) {
  constexpr std::string_view kNest = "app.";
  if (name.starts_with(kNest)) name.remove_prefix(kNest.size());
  const std::string_view first = name.substr(0, name.find('.'));
  constexpr std::string_view kWords[] = {
      "optim",         "optimizer", "optimizers", "optim_state", "optimizer_state", "lr_scheduler",
      "lr_schedulers", "scheduler", "dataloader", "train_state", "rng_state",       "grad_scaler"};
  return std::find(std::begin(kWords), std::end(kWords), first) != std::end(kWords);
}

absl::StatusOr<CheckpointMetadata> ReadCheckpointMetadata(absl::Span<const uint8_t> bytes) {
  MILLRACE_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::Read(bytes, Globals()));
  if (pickle.root().global() != kMetadata) return Bad(StrCat("is no ", kMetadata));
  return MetadataReader(pickle.root()).Read();
}

}  // namespace millrace
