#include "formats/huggingface/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/status.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors is read in place");

// Files of models with a hundred thousand tensors stay well under it.
constexpr uint64_t kMaxHeaderBytes = 16 << 20;
constexpr size_t kMaxRank = 8;

// The numbers 0, 1, 2 …, which transformers once stored with a model's weights.
bool IsCount(std::string_view name) { return name.ends_with("position_ids"); }

std::optional<TensorType> TypeOf(std::string_view name) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kBf16, TensorType::kFp8E4m3,
        TensorType::kU8, TensorType::kI32, TensorType::kI64}) {
    if (Traits(type).name == name) return type;
  }
  return std::nullopt;
}

// Reads the header of one file.
class HeaderReader {
 public:
  explicit HeaderReader(SafetensorsFile* file) : file_(file), bytes_(file->file.bytes()) {}

  absl::Status Read() {
    uint64_t header_bytes;
    if (bytes_.size() < sizeof(header_bytes))
      return Bad("header length", "the file ends inside it");
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    if (header_bytes > std::min<uint64_t>(kMaxHeaderBytes, bytes_.size() - sizeof(header_bytes))) {
      return Bad("header length", StrCat(header_bytes, ", must be at most ", kMaxHeaderBytes,
                                         " and inside the file of ", bytes_.size(), " bytes"));
    }
    data_begin_ = sizeof(header_bytes) + header_bytes;
    const absl::StatusOr<Json> header =
        ParseJson({reinterpret_cast<const char*>(bytes_.data()) + sizeof(header_bytes),
                   static_cast<size_t>(header_bytes)},
                  JsonLimits{.depth = 4});
    if (!header.ok()) return Bad("header", std::string(header.status().message()));
    if (!header->is_object()) return Bad("header", StrCat("is ", Describe(*header)));
    file_->names.reserve(header->size());
    for (const auto& [name, entry] : header->items()) {
      // Free text about the file.
      if (name != "__metadata__") MILLRACE_RETURN_IF_ERROR(ReadTensor(name, entry));
    }
    return PlaceTensors();
  }

 private:
  absl::Status Bad(std::string_view field, std::string_view what) const {
    return absl::InvalidArgumentError(StrCat(file_->file.base_name(), ": ", field, ": ", what));
  }

  absl::Status ReadTensor(const std::string& name, const Json& entry) {
    const std::string field = StrCat("tensor ", Printable(name));
    if (name.empty()) return Bad(field, "has no name");
    if (!entry.is_object()) return Bad(field, StrCat("is ", Describe(entry)));
    TensorInfo tensor;
    for (const auto& [key, value] : entry.items()) {
      if (key == "dtype") {
        if (!value.is_string()) return Bad(field, StrCat("dtype is ", Describe(value)));
        const std::optional<TensorType> type = TypeOf(value.get_ref<const std::string&>());
        if (!type.has_value()) {
          return absl::UnimplementedError(
              StrCat(file_->file.base_name(), ": ", field, ": dtype ", Describe(value),
                     " is not supported (supported: F32, F16, BF16, F8_E4M3, U8, I32, I64)"));
        }
        tensor.type = *type;
      } else if (key != "shape" && key != "data_offsets") {
        return Bad(field, StrCat("has an unknown key \"", Printable(key), "\""));
      }
    }
    if (entry.size() != 3) return Bad(field, "must have dtype, shape and data_offsets");
    MILLRACE_RETURN_IF_ERROR(ReadShape(field, entry["shape"], &tensor));
    MILLRACE_RETURN_IF_ERROR(ReadOffsets(field, entry["data_offsets"], &tensor));
    file_->names.push_back(name);  // reserved: the names do not move
    tensor.name = file_->names.back();
    file_->tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status ReadShape(std::string_view field, const Json& shape, TensorInfo* tensor) const {
    if (!shape.is_array() || shape.size() > kMaxRank) {
      return Bad(field, StrCat("shape is ", Describe(shape), ", must be a list of at most ",
                               kMaxRank, " sizes"));
    }
    // Elements are at least a byte, so this bounds the count before it can overflow.
    uint64_t elements = 1;
    for (const Json& size : shape) {
      if (!size.is_number_unsigned() || size == 0 ||
          size.get<uint64_t>() > bytes_.size() / elements) {
        return Bad(field,
                   StrCat("shape holds ", Describe(size), ", must be from 1 to what the file's ",
                          bytes_.size(), " bytes can hold"));
      }
      elements *= size.get<uint64_t>();
      tensor->shape.push_back(size.get<int64_t>());
    }
    tensor->bytes = elements * Traits(tensor->type).block_bytes;
    return absl::OkStatus();
  }

  absl::Status ReadOffsets(std::string_view field, const Json& offsets, TensorInfo* tensor) const {
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      return Bad(field, "data_offsets must be two numbers");
    }
    const auto begin = offsets[0].get<uint64_t>();
    const auto end = offsets[1].get<uint64_t>();
    if (begin > end || end > bytes_.size() - data_begin_) {
      return Bad(field, StrCat("data_offsets ", begin, " to ", end, " are outside of the ",
                               bytes_.size() - data_begin_, " bytes of data"));
    }
    if (end - begin != tensor->bytes) {
      return Bad(field, StrCat("data_offsets hold ", end - begin, " bytes, but ",
                               Traits(tensor->type).name, " ", ShapeString(tensor->shape), " has ",
                               tensor->bytes));
    }
    tensor->offset = data_begin_ + begin;
    return absl::OkStatus();
  }

  // Sorts the tensors by offset; as the format demands, they fill the data.
  absl::Status PlaceTensors() {
    std::sort(file_->tensors.begin(), file_->tensors.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.offset < b.offset; });
    uint64_t end = data_begin_;
    for (const TensorInfo& tensor : file_->tensors) {
      if (tensor.offset != end) {
        return Bad(StrCat("tensor ", Printable(tensor.name)),
                   StrCat("data begins at ", tensor.offset - data_begin_, ", must be at ",
                          end - data_begin_, ", where the one before ends"));
      }
      end += tensor.bytes;
    }
    std::erase_if(file_->tensors, [](const TensorInfo& tensor) { return IsCount(tensor.name); });
    if (end != bytes_.size()) {
      return Bad("data", StrCat(bytes_.size() - end, " bytes belong to no tensor"));
    }
    return absl::OkStatus();
  }

  SafetensorsFile* file_;
  absl::Span<const uint8_t> bytes_;
  uint64_t data_begin_ = 0;
};

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  MILLRACE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SafetensorsFile file{.file = std::move(mapped), .names = {}, .tensors = {}};
  MILLRACE_RETURN_IF_ERROR(HeaderReader(&file).Read());
  return file;
}

}  // namespace millrace
