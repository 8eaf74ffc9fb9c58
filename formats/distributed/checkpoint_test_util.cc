#include "formats/distributed/checkpoint_test_util.h"

#include "base/strings.h"

namespace millrace {
namespace {

// The bytes of a little-endian number; those behind the eighth are zeros.
std::string Number(uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    text += static_cast<char>(number & 0xff);
    number >>= 8;
  }
  return text;
}

constexpr std::string_view kClasses = "torch.distributed.checkpoint.metadata";

std::string Joined(const std::vector<std::string>& values) {
  std::string joined;
  for (const std::string& value : values) joined += value;
  return joined;
}

std::string PickledInts(const std::vector<int64_t>& numbers) {
  std::vector<std::string> values;
  for (const int64_t number : numbers) values.push_back(pickled::Int(number));
  return pickled::Tuple(values);
}

}  // namespace

namespace pickled {

std::string Int(int64_t number) { return StrCat("\x8a\x08", Number(number, 8)); }
std::string Text(std::string_view text) { return StrCat("X", Number(text.size(), 4), text); }
std::string Tuple(const std::vector<std::string>& values) {
  return StrCat("(", Joined(values), "t");
}
std::string List(const std::vector<std::string>& values) {
  return StrCat("](", Joined(values), "e");
}
std::string Dict(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string dict = "}(";
  for (const auto& [key, value] : values) dict += Text(key) + value;
  return dict + "u";
}
std::string Global(std::string_view module, std::string_view name) {
  return StrCat("c", module, "\n", name, "\n");
}
std::string Call(const std::string& global, const std::vector<std::string>& arguments) {
  return StrCat(global, Tuple(arguments), "R");
}
std::string Object(const std::string& global, const std::string& state) {
  return StrCat(global, ")\x81", state, "b");
}
std::string Size(const std::vector<int64_t>& sizes) {
  return Call(Global("torch", "Size"), {PickledInts(sizes)});
}
std::string Whole(const std::string& value) { return StrCat("\x80\x02", value, "."); }

}  // namespace pickled

std::string ZipOf(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string zip;
  std::string directory;
  for (const auto& [name, data] : entries) {
    const std::string sizes = Number(data.size(), 4) + Number(data.size(), 4);
    const std::string name_size = Number(name.size(), 2);
    directory += StrCat("PK\1\2", Number(0, 16), sizes, name_size, Number(0, 12),
                        Number(zip.size(), 4), name);
    zip += StrCat("PK\3\4", Number(0, 14), sizes, name_size, Number(0, 2), name, data);
  }
  return StrCat(zip, directory, "PK\5\6", Number(0, 4), Number(entries.size(), 2),
                Number(entries.size(), 2), Number(directory.size(), 4), Number(zip.size(), 4),
                Number(0, 2));
}

std::string SavedTensor(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                        const std::vector<float>& data) {
  using namespace pickled;
  const std::string storage = Tuple({Text("storage"), Global("torch", "FloatStorage"), Text("0"),
                                     Text("cpu"), Int(static_cast<int64_t>(data.size()))}) +
                              "Q";
  const std::string hooks = Call(Global("collections", "OrderedDict"), {});
  const std::string tensor =
      Call(Global("torch._utils", "_rebuild_tensor_v2"),
           {storage, Int(0), PickledInts(shape), PickledInts(strides), "\x89", hooks});
  const std::string bytes(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
  return ZipOf({{"archive/data.pkl", Whole(tensor)},
                {"archive/byteorder", "little"},
                {"archive/data/0", bytes}});
}

std::string MetadataOf(const std::vector<TestTensor>& tensors) {
  using namespace pickled;
  std::vector<std::pair<std::string, std::string>> entries;
  std::string places = "}(";
  for (const TestTensor& tensor : tensors) {
    std::vector<std::string> chunks;
    for (const TestChunk& chunk : tensor.chunks) {
      chunks.push_back(
          Object(Global(kClasses, "ChunkStorageMetadata"),
                 Dict({{"offsets", Size(chunk.offsets)}, {"sizes", Size(chunk.sizes)}})));
      places += Object(Global(kClasses, "MetadataIndex"),
                       Dict({{"fqn", Text(tensor.name)}, {"offset", Size(chunk.offsets)}}));
      std::vector<std::pair<std::string, std::string>> place = {{"relative_path", Text(chunk.file)},
                                                                {"offset", Int(chunk.offset)},
                                                                {"length", Int(chunk.length)}};
      if (!chunk.transform.empty()) {
        place.emplace_back("transform_descriptors", List({Text(chunk.transform)}));
      }
      places +=
          Object(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), Dict(place));
    }
    const std::string properties = Object(Global(kClasses, "TensorProperties"),
                                          Tuple({Global("torch", tensor.type), "N", "\x89"}));
    entries.emplace_back(tensor.name, Object(Global(kClasses, "TensorStorageMetadata"),
                                             Dict({{"properties", properties},
                                                   {"size", Size(tensor.shape)},
                                                   {"chunks", List(chunks)}})));
  }
  return Whole(Object(Global(kClasses, "Metadata"), Dict({{"state_dict_metadata", Dict(entries)},
                                                          {"planner_data", "N"},
                                                          {"storage_data", places + "u"}})));
}

}  // namespace millrace
