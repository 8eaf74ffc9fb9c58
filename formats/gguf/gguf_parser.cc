#include "formats/gguf/gguf.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/files/other_files.h"

namespace millrace {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place");

constexpr int kMaxRank = 4;
constexpr size_t kMaxNameBytes = 65535;  // the format's own limit for a key
constexpr uint64_t kMinKeyValueBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;

// Value types by their number in the file.
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;
struct ValueType {
  std::string_view name;
  int bytes;  // 0 for what has no fixed size
};
constexpr ValueType kValueTypes[] = {
    {"uint8", 1},  {"int8", 1},    {"uint16", 2},  {"int16", 2},  {"uint32", 4},
    {"int32", 4},  {"float32", 4}, {"bool", 1},    {"string", 0}, {"array", 0},
    {"uint64", 8}, {"int64", 8},   {"float64", 8},
};

// ggml's tensor types by their number in the file, to name the ones that we refuse.
constexpr std::string_view kTensorTypeNames[] = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0",
    "Q2_0"};

// The types that we read, in the order of messages.
constexpr TensorType kSupportedTypes[] = {
    TensorType::kF32,    TensorType::kF16,    TensorType::kBf16,  TensorType::kQ4_0,
    TensorType::kQ4_1,   TensorType::kQ5_0,   TensorType::kQ5_1,  TensorType::kQ8_0,
    TensorType::kQ2K,    TensorType::kQ3K,    TensorType::kQ4K,   TensorType::kQ5K,
    TensorType::kQ6K,    TensorType::kIq4Nl,  TensorType::kMxfp4, TensorType::kIq4Xs,
    TensorType::kIq3S,   TensorType::kIq3Xxs, TensorType::kIq2S,  TensorType::kIq2Xs,
    TensorType::kIq2Xxs, TensorType::kIq1S,   TensorType::kIq1M};

// Types are ours by their names.
std::optional<TensorType> SupportedType(uint32_t number) {
  if (number >= std::size(kTensorTypeNames)) return std::nullopt;
  for (const TensorType type : kSupportedTypes) {
    if (Traits(type).name == kTensorTypeNames[number]) return type;
  }
  return std::nullopt;
}

std::string SupportedTypeNames() {
  std::vector<std::string> names;
  for (const TensorType type : kSupportedTypes) names.emplace_back(Traits(type).name);
  return absl::StrJoin(names, ", ");
}

template <typename T>
T LoadNumber(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

// Reads the header front to back into a GgufFile.
class GgufParser {
 public:
  explicit GgufParser(GgufFile* file) : file_(file), bytes_(file->files_[0].bytes()) {}

  absl::Status Parse() {
    uint64_t tensors, pairs;
    MILLRACE_RETURN_IF_ERROR(ParsePreamble(&tensors, &pairs));
    for (uint64_t i = 0; i < pairs; ++i) MILLRACE_RETURN_IF_ERROR(ParsePair(i));
    MILLRACE_RETURN_IF_ERROR(Annotate(
        CheckGgufIsModel(Text("general.architecture"), Text("general.type")), file_->base_name()));
    uint64_t alignment = kDefaultAlignment;
    MILLRACE_RETURN_IF_ERROR(ReadAlignment(&alignment));
    tensors_.reserve(tensors);
    names_.reserve(tensors);
    for (uint64_t i = 0; i < tensors; ++i) MILLRACE_RETURN_IF_ERROR(ParseTensor(i, alignment));
    return PlaceTensors(alignment);
  }

  std::vector<TensorInfo> TakeTensors() { return std::move(tensors_); }

 private:
  // --- the cursor: false at the end of the file ---
  size_t Left() const { return bytes_.size() - position_; }

  template <typename T>
  bool Read(T* value) {
    if (Left() < sizeof(T)) return false;
    *value = LoadNumber<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return true;
  }

  bool ReadString(std::string_view* value) {
    uint64_t size;
    if (!Read(&size) || size > Left()) return false;
    *value = {reinterpret_cast<const char*>(bytes_.data() + position_), static_cast<size_t>(size)};
    position_ += size;
    return true;
  }

  // --- errors ---
  template <typename... Args>
  absl::Status Bad(const Args&... args) const {
    return absl::InvalidArgumentError(StrCat(file_->base_name(), ": ", args...));
  }
  absl::Status Truncated(std::string_view field) const {
    return Bad(field, ": the file ends inside it, after ", bytes_.size(), " bytes");
  }

  absl::Status ParsePreamble(uint64_t* tensors, uint64_t* pairs) {
    uint32_t magic, version;
    if (!Read(&magic)) return Truncated("magic");
    if (magic != 0x46554747) {
      const std::string other = DescribeOtherFile(bytes_);
      return Bad("magic: the file does not start with \"GGUF\"",
                 other.empty() ? "" : StrCat(", it is ", other));
    }
    if (!Read(&version)) return Truncated("version");
    if (version == 0x02000000 || version == 0x03000000) {
      return Bad("version: the file has big-endian numbers; take one for little-endian machines");
    }
    if (version != 2 && version != 3) return Bad("version: ", version, " is neither 2 nor 3");
    if (!Read(tensors)) return Truncated("tensor count");
    if (!Read(pairs)) return Truncated("metadata count");
    // Checked against what the file can hold, so that no count makes us take memory.
    if (*tensors > bytes_.size() / kMinTensorBytes) {
      return Bad("tensor count: ", *tensors, " tensors do not fit into ", bytes_.size(), " bytes");
    }
    if (*pairs > bytes_.size() / kMinKeyValueBytes) {
      return Bad("metadata count: ", *pairs, " entries do not fit into ", bytes_.size(), " bytes");
    }
    return absl::OkStatus();
  }

  absl::Status ParsePair(uint64_t index) {
    std::string_view key;
    if (!ReadString(&key)) return Truncated(StrCat("metadata key ", index));
    if (key.empty() || key.size() > kMaxNameBytes) {
      return Bad("metadata key ", index, ": ", key.size(), " bytes long, must be 1 to ",
                 kMaxNameBytes);
    }
    const std::string field = StrCat("key ", Printable(key));
    uint32_t type;
    if (!Read(&type)) return Truncated(field);
    GgufValue value;
    MILLRACE_RETURN_IF_ERROR(type == kArray ? ParseArray(field, &value)
                                            : ParseScalar(field, type, &value));
    if (!file_->metadata_.emplace(key, std::move(value)).second) return Bad(field, ": comes twice");
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status ParseNumber(std::string_view field, GgufValue* value) {
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double,
                                    std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    T number;
    if (!Read(&number)) return Truncated(field);
    *value = static_cast<Wide>(number);
    return absl::OkStatus();
  }

  absl::Status ParseScalar(std::string_view field, uint32_t type, GgufValue* value) {
    switch (type) {
      case 0:
        return ParseNumber<uint8_t>(field, value);
      case 1:
        return ParseNumber<int8_t>(field, value);
      case 2:
        return ParseNumber<uint16_t>(field, value);
      case 3:
        return ParseNumber<int16_t>(field, value);
      case 4:
        return ParseNumber<uint32_t>(field, value);
      case 5:
        return ParseNumber<int32_t>(field, value);
      case 6:
        return ParseNumber<float>(field, value);
      case 7: {
        uint8_t byte;
        if (!Read(&byte)) return Truncated(field);
        if (byte > 1) return Bad(field, ": a bool of ", byte, ", must be 0 or 1");
        *value = byte == 1;
        return absl::OkStatus();
      }
      case kString: {
        std::string_view text;
        if (!ReadString(&text)) return Truncated(field);
        *value = text;
        return absl::OkStatus();
      }
      case 10:
        return ParseNumber<uint64_t>(field, value);
      case 11:
        return ParseNumber<int64_t>(field, value);
      case 12:
        return ParseNumber<double>(field, value);
      default:
        return Bad(field, ": value type ", type, " is unknown");
    }
  }

  absl::Status ParseArray(std::string_view field, GgufValue* value) {
    uint32_t type;
    uint64_t count;
    if (!Read(&type) || !Read(&count)) return Truncated(field);
    if (type == kArray) {
      return absl::UnimplementedError(
          StrCat(file_->base_name(), ": ", field, ": arrays of arrays are not supported"));
    }
    if (type >= std::size(kValueTypes)) return Bad(field, ": element type ", type, " is unknown");
    const uint64_t element_bytes = type == kString ? sizeof(uint64_t) : kValueTypes[type].bytes;
    if (count > Left() / element_bytes) {
      return Bad(field, ": ", count, " elements do not fit into the ", Left(),
                 " bytes left of the file");
    }
    GgufArray array;
    array.element_type = kValueTypes[type].name;
    array.count = count;
    if (type == kString) {
      array.strings.resize(count);
      for (uint64_t i = 0; i < count; ++i) {
        if (!ReadString(&array.strings[i])) return Truncated(StrCat(field, "[", i, "]"));
      }
    } else {
      array.bytes = bytes_.subspan(position_, count * element_bytes);
      position_ += array.bytes.size();
    }
    *value = std::move(array);
    return absl::OkStatus();
  }

  // Returns the text of a key; empty where there is none.
  std::string_view Text(std::string_view key) const {
    const GgufValue* value = file_->Find(key);
    const auto* text = value == nullptr ? nullptr : std::get_if<std::string_view>(value);
    return text == nullptr ? std::string_view() : *text;
  }

  absl::Status ReadAlignment(uint64_t* alignment) const {
    constexpr std::string_view kKey = "general.alignment";
    if (file_->Find(kKey) == nullptr) return absl::OkStatus();
    MILLRACE_ASSIGN_OR_RETURN(*alignment, file_->Int(kKey, 8, kMaxAlignment));
    if ((*alignment & (*alignment - 1)) != 0) {
      return Bad("key ", kKey, ": ", *alignment, " is not a power of two");
    }
    return absl::OkStatus();
  }

  // Leaves the offset relative to the data section, whose start is known after the last tensor.
  absl::Status ParseTensor(uint64_t index, uint64_t alignment) {
    TensorInfo tensor;
    if (!ReadString(&tensor.name)) return Truncated(StrCat("tensor name ", index));
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes) {
      return Bad("tensor name ", index, ": ", tensor.name.size(), " bytes long, must be 1 to ",
                 kMaxNameBytes);
    }
    const std::string field = StrCat("tensor ", Printable(tensor.name));
    uint32_t rank;
    if (!Read(&rank)) return Truncated(field);
    if (rank < 1 || rank > kMaxRank) {
      return Bad(field, ": ", rank, " dimensions, must be 1 to ", kMaxRank);
    }
    uint64_t dimensions[kMaxRank];  // innermost first
    for (uint32_t i = 0; i < rank; ++i) {
      if (!Read(&dimensions[i])) return Truncated(field);
    }
    uint32_t type;
    if (!Read(&type) || !Read(&tensor.offset)) return Truncated(field);
    const std::optional<TensorType> supported = SupportedType(type);
    if (!supported.has_value()) {
      return absl::UnimplementedError(
          StrCat(file_->base_name(), ": ", field, ": type ",
                 type < std::size(kTensorTypeNames) ? kTensorTypeNames[type] : StrCat(type),
                 " is not supported (supported: ", SupportedTypeNames(), ")"));
    }
    tensor.type = *supported;
    MILLRACE_RETURN_IF_ERROR(SetShape(field, {dimensions, rank}, &tensor));
    if (tensor.offset % alignment != 0) {
      return Bad(field, ": offset ", tensor.offset, " is not a multiple of the alignment ",
                 alignment);
    }
    if (!names_.insert(tensor.name).second) return Bad(field, ": comes twice");
    tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status SetShape(std::string_view field, absl::Span<const uint64_t> dimensions,
                        TensorInfo* tensor) const {
    const TensorTypeTraits& traits = Traits(tensor->type);
    // Elements are more than a quarter of a byte: this bounds the count before it can overflow.
    const uint64_t most = bytes_.size() * 4;
    uint64_t elements = 1;
    for (const uint64_t size : dimensions) {
      if (size == 0) return Bad(field, ": a dimension is 0");
      if (size > most / elements) {
        return Bad(field, ": more elements than the file's ", bytes_.size(), " bytes can hold");
      }
      elements *= size;
    }
    if (dimensions[0] % traits.block_elements != 0) {
      return Bad(field, ": rows of ", dimensions[0], " elements, must be a multiple of ",
                 traits.block_elements, " for ", traits.name);
    }
    tensor->shape.assign(dimensions.rbegin(), dimensions.rend());
    tensor->bytes = elements / traits.block_elements * traits.block_bytes;
    return absl::OkStatus();
  }

  absl::Status PlaceTensors(uint64_t alignment) {
    const uint64_t data_start = (position_ + alignment - 1) / alignment * alignment;
    std::vector<const TensorInfo*> by_offset;
    for (TensorInfo& tensor : tensors_) {
      const uint64_t size = bytes_.size();
      if (data_start > size || tensor.offset > size - data_start ||
          tensor.bytes > size - data_start - tensor.offset) {
        return Bad("tensor ", Printable(tensor.name), ": data ", data_start, " + offset ",
                   tensor.offset, " + ", tensor.bytes, " bytes is beyond the file's ", size,
                   " bytes");
      }
      tensor.offset += data_start;
      by_offset.push_back(&tensor);
    }
    std::sort(by_offset.begin(), by_offset.end(),
              [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      if (by_offset[i - 1]->offset + by_offset[i - 1]->bytes > by_offset[i]->offset) {
        return Bad("tensor ", Printable(by_offset[i]->name), ": offset lies inside tensor ",
                   Printable(by_offset[i - 1]->name));
      }
    }
    return absl::OkStatus();
  }

  GgufFile* file_;
  absl::Span<const uint8_t> bytes_;
  size_t position_ = 0;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_set<std::string_view, StringHash> names_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(const std::string& path,
                                         std::vector<TensorInfo>* tensors) {
  MILLRACE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  GgufFile file(std::move(mapped));
  GgufParser parser(&file);
  MILLRACE_RETURN_IF_ERROR(parser.Parse());
  *tensors = parser.TakeTensors();
  return file;
}

}  // namespace millrace
