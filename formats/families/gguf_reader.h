// Reads a GGUF file's metadata for the families of llama.cpp, which share most keys.
#ifndef MILLRACE_FORMATS_FAMILIES_GGUF_READER_H_
#define MILLRACE_FORMATS_FAMILIES_GGUF_READER_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/gguf/gguf.h"
#include "formats/model/model_config.h"

namespace millrace {

struct Family;

// The keys that a family reads itself, or otherwise than most.
struct GgufReads {
  bool scales = false;   // factors of scores, embeddings, blocks and logits; else they are refused
  bool experts = false;  // else they are refused
  bool rounds_yarn = true;  // YarnStretch::truncate
  int kv_heads = 0;         // of attention.head_count_kv, where the family has read it
  bool sizes = false;       // feed_forward_length, which layers may differ in
};

// Which layers have attention, where that is said by their heads of keys and values: none means
// that a layer has none.
struct KvHeads {
  int heads = 0;              // of the layers with attention
  std::vector<bool> attends;  // by layer; at least one does
};

// A family's keys begin with its name, which the names below leave out. Errors name the key:
// INVALID_ARGUMENT for a value out of range, UNIMPLEMENTED for one that changes the maths and is
// not built. Of numbers, 0 stands for "not set".
class GgufReader {
 public:
  // Both outlive this.
  GgufReader(const GgufFile& file, const Family& family) : file_(file), family_(family) {}

  const GgufFile& file() const { return file_; }
  std::string Key(std::string_view name) const;

  // Reads what all decoders have in common. Every layer is Llama's: norms before its blocks, full
  // attention, and a feed-forward network gated by SiLU.
  absl::StatusOr<ModelConfig> Decoder(const GgufReads& reads = {}) const;

  // An array with a number for each layer is read as the number that all of them have, and refused
  // where they differ.
  absl::StatusOr<int> Int(std::string_view name, int max, int min = 1) const;
  absl::StatusOr<int> IntOr(std::string_view name, int max, int otherwise, int min = 1) const;
  // Reads a number for each layer, 0 to `max`; a single number is that of all layers.
  absl::StatusOr<std::vector<int64_t>> IntsOfLayers(std::string_view name,
                                                    int64_t max = kMaxContext) const;
  // Reads attention.head_count_kv of layers of which some have no attention.
  absl::StatusOr<KvHeads> ReadKvHeads() const;
  absl::StatusOr<double> FloatOr(std::string_view name, double otherwise, double min,
                                 double max) const;
  absl::StatusOr<double> FactorOr(std::string_view name, double otherwise) const {
    return FloatOr(name, otherwise, 1e-6, 1e6);
  }
  // Refuses a number other than `neutral`.
  absl::Status RefuseFloat(std::string_view name, double neutral) const;

  // Sets the window of the layers that have one: of attention.sliding_window tokens, or where the
  // file has no such key of `otherwise`.
  absl::Status SetWindows(int otherwise, const std::function<bool(int layer)>& has_window,
                          ModelConfig* model) const;
  absl::Status RefuseWindows() const;

  // Errors about a whole key, and about a field by any name.
  absl::Status Unsupported(std::string_view key, std::string_view what) const;
  absl::Status Lies(std::string_view field, std::string_view what) const;

 private:
  absl::StatusOr<int64_t> NumberOfAllLayers(std::string_view name) const;
  absl::Status RefuseUnsupported(const GgufReads& reads) const;
  absl::StatusOr<SoftmaxAttention> Attention(int hidden_size, int kv_heads) const;
  absl::Status ReadVocabulary(ModelConfig* model) const;
  void FindBiases(ModelConfig* model) const;
  absl::StatusOr<double> Theta() const;
  absl::StatusOr<double> Epsilon() const;
  absl::StatusOr<std::vector<float>> RopeFactors(const char* name, int dimensions) const;
  absl::StatusOr<RopeConfig> Rope(int head_size, bool rounds_yarn, int* context_length) const;
  absl::Status ReadYarn(const YarnStretch& said, RopeConfig* rope, int* context_length) const;

  const GgufFile& file_;
  const Family& family_;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_GGUF_READER_H_
