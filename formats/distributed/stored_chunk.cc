#include "formats/distributed/stored_chunk.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "base/strings.h"
#include "formats/distributed/pickle.h"
#include "formats/distributed/stored_zip.h"

namespace millrace {
namespace {

constexpr uint64_t kMaxHeaderBytes = 64 << 20;

constexpr std::string_view kRebuildV2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildV3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

// All classes that the pickle of a chunk may have.
const std::vector<std::string_view>& Globals() {
  static const auto* const globals = [] {
    auto* all = new std::vector<std::string_view>{kRebuildV2, kRebuildV3, kRebuildParameter,
                                                  kUntyped, "collections.OrderedDict"};
    for (const TorchType& type : TorchTypes()) {
      all->push_back(type.torch);
      if (!type.storage.empty()) all->push_back(type.storage);
    }
    return all;
  }();
  return *globals;
}

absl::Status Bad(std::string_view what) { return absl::InvalidArgumentError(AbslView(what)); }

std::vector<int64_t> RowMajor(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i > 0; --i) {
    strides[i - 1] = stride;
    stride *= sizes[i - 1];
  }
  return strides;
}

// Returns whether a value is a tuple of exactly these numbers.
bool Holds(Pickle::Value tuple, const std::vector<int64_t>& numbers) {
  if (!tuple.is(PickleKind::kTuple) || tuple.size() != numbers.size()) return false;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (tuple[i].integer() != numbers[i]) return false;
  }
  return true;
}

// The strides of a dimension of one element count for nothing.
bool IsContiguous(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  const std::vector<int64_t> row_major = RowMajor(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] != row_major[i]) return false;
  }
  return true;
}

// Views `storage` from its element `first` on with these strides, if all of the chunk lies inside.
absl::StatusOr<StoredChunk> View(absl::Span<const uint8_t> storage, int64_t first,
                                 int element_bytes, const CheckpointChunk& chunk,
                                 std::vector<int64_t> strides) {
  const auto elements = static_cast<int64_t>(storage.size() / element_bytes);
  int64_t last = 0;  // the largest index of an element behind the first
  bool inside = first <= elements;
  for (size_t i = 0; inside && i < strides.size(); ++i) {
    const int64_t steps = chunk.sizes[i] - 1;
    inside = steps == 0 || strides[i] <= elements / steps;
    if (inside) last += steps * strides[i];
    inside = inside && last < elements;
  }
  if (!inside || last >= elements - first) {
    return Bad(StrCat("its storage has ", storage.size(), " bytes, which is too short for it"));
  }
  StoredChunk stored{.bytes = storage.subspan(first * element_bytes, (last + 1) * element_bytes),
                     .strides = std::move(strides)};
  stored.contiguous = IsContiguous(chunk.sizes, stored.strides);
  return stored;
}

}  // namespace

bool IsZip(absl::Span<const uint8_t> file, const CheckpointChunk& chunk) {
  constexpr std::string_view kMagic = "PK\3\4";
  return chunk.bytes >= kMagic.size() &&
         std::memcmp(file.data() + chunk.offset, kMagic.data(), kMagic.size()) == 0;
}

absl::StatusOr<StoredChunk> ReadZipChunk(absl::Span<const uint8_t> file,
                                         const CheckpointTensor& tensor,
                                         const CheckpointChunk& chunk) {
  MILLRACE_ASSIGN_OR_RETURN(const StoredZip zip,
                            StoredZip::Read(file.subspan(chunk.offset, chunk.bytes)));
  const StoredZip::Entry* order = zip.Find("byteorder");
  if (order != nullptr && std::string_view(reinterpret_cast<const char*>(order->bytes.data()),
                                           order->bytes.size()) != "little") {
    return absl::UnimplementedError("its byteorder is not little");
  }
  const StoredZip::Entry* entry = zip.Find("data.pkl");
  if (entry == nullptr) return Bad("its archive has no data.pkl");
  absl::StatusOr<Pickle> pickle = Pickle::Read(entry->bytes, Globals());
  if (!pickle.ok()) return Annotate(pickle.status(), "data.pkl");
  Pickle::Value made = pickle->root();
  if (made.global() == kRebuildParameter) made = made.arguments()[0];
  const Pickle::Value arguments = made.arguments();
  if ((made.global() != kRebuildV2 && made.global() != kRebuildV3) || arguments.size() < 6) {
    return Bad("data.pkl holds no tensor");
  }
  // ("storage", its class, its key, where it was, its number of elements)
  const Pickle::Value storage = arguments[0].id();
  if (!arguments[0].is(PickleKind::kPersistent) || storage.size() != 5 ||
      storage[0].text() != "storage") {
    return Bad("data.pkl holds a tensor without a storage");
  }
  const bool typed =
      made.global() == kRebuildV2
          ? !tensor.type->storage.empty() && storage[1].global() == tensor.type->storage
          : storage[1].global() == kUntyped && arguments[6].global() == tensor.type->torch;
  if (!typed) return Bad(StrCat("its storage is not of ", tensor.type->torch));
  if (!Holds(arguments[2], chunk.sizes)) return Bad("its shape is not the chunk's");
  const std::optional<int64_t> first = arguments[1].integer();
  std::vector<int64_t> strides;
  for (size_t i = 0; i < arguments[3].size(); ++i) {
    strides.push_back(arguments[3][i].integer().value_or(-1));
  }
  if (!first.has_value() || *first < 0 || strides.size() != chunk.sizes.size() ||
      std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride < 0; })) {
    return Bad("its strides are no whole numbers from 0 on");
  }
  const StoredZip::Entry* data = zip.Find(StrCat("data/", storage[2].text()));
  if (data == nullptr) return Bad("its archive does not have its storage");
  return View(data->bytes, *first, tensor.type->bytes, chunk, std::move(strides));
}

absl::StatusOr<ChunkHeader> ReadChunkHeader(absl::Span<const uint8_t> file, uint64_t offset) {
  uint64_t header_bytes;
  if (file.size() - offset < sizeof(header_bytes))
    return Bad("ends inside of a safetensors header");
  std::memcpy(&header_bytes, file.data() + offset, sizeof(header_bytes));
  const uint64_t begin = offset + sizeof(header_bytes);
  if (header_bytes > std::min<uint64_t>(kMaxHeaderBytes, file.size() - begin)) {
    return Bad("is neither a zip archive that torch.save wrote nor safetensors");
  }
  absl::StatusOr<Json> header =
      ParseJson({reinterpret_cast<const char*>(file.data()) + begin, header_bytes}, {.depth = 4});
  if (!header.ok()) return Annotate(header.status(), "safetensors header");
  if (!header->is_object()) return Bad("safetensors header: is no object");
  return ChunkHeader{*std::move(header), begin + header_bytes};
}

absl::StatusOr<StoredChunk> ReadSafetensorsChunk(absl::Span<const uint8_t> file,
                                                 const ChunkHeader& header,
                                                 const CheckpointTensor& tensor,
                                                 const CheckpointChunk& chunk) {
  const auto found = header.tensors.find(tensor.name);
  if (found == header.tensors.end()) return Bad("its safetensors do not have it");
  const Json dtype = found->is_object() ? found->value("dtype", Json()) : Json();
  const Json shape = found->is_object() ? found->value("shape", Json()) : Json();
  const Json offsets = found->is_object() ? found->value("data_offsets", Json()) : Json();
  if (dtype != std::string(tensor.type->safetensors)) {
    return Bad(StrCat("its safetensors have dtype ", Describe(dtype), ", must be ",
                      tensor.type->safetensors));
  }
  if (shape != Json(chunk.sizes)) return Bad("its shape in the safetensors is not the chunk's");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return Bad("its data_offsets must be two numbers");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  const uint64_t data = file.size() - header.data_begin;
  if (begin > end || end > data) return Bad("its data_offsets lie outside of the file");
  return View(file.subspan(header.data_begin + begin, end - begin), 0, tensor.type->bytes, chunk,
              RowMajor(chunk.sizes));
}

}  // namespace millrace
