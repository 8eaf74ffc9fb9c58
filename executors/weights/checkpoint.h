// Looks weights up in a model's files, for placers of every device.
#ifndef MILLRACE_EXECUTORS_WEIGHTS_CHECKPOINT_H_
#define MILLRACE_EXECUTORS_WEIGHTS_CHECKPOINT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/ops.h"
#include "formats/tensors/packed_reader.h"
#include "formats/tensors/tensor_source.h"

namespace millrace {

// Names are GGUF's. Errors name the file and the tensor as the file spells it: NOT_FOUND for a
// missing one, INVALID_ARGUMENT for one of another shape than its use asks for or numbers that make
// no sense, UNIMPLEMENTED for what no placer takes.
class Checkpoint {
 public:
  explicit Checkpoint(const TensorSource& source) : source_(source) {}  // which outlives this

  const TensorSource& source() const { return source_; }
  bool Has(const std::string& name) const { return source_.FindTensor(name) != nullptr; }

  // Returns a tensor [size] in F32, F16 or BF16.
  absl::StatusOr<const TensorInfo*> Vector(const std::string& name) const;

  // Reads the numbers of any tensor of these three types, in one row: ones of a source without
  // data, of which only sizes are wanted.
  std::vector<float> Floats(const TensorInfo& tensor) const;

  // Returns the tensors of a fused linear: [out, in] each, at least one, with one `in`, all FP8 or
  // none of them.
  absl::StatusOr<std::vector<const TensorInfo*>> Matrices(
      const std::vector<std::string>& names) const;

  // The shard's parts: whose rows [begin, begin + rows.total) each is, or in groups its runs of
  // `run` rows, which begin `step` rows apart. Without parts each tensor is one, and the rank has
  // all of it.
  struct Part {
    const TensorInfo* tensor;
    int64_t begin;
    Share rows;
    int64_t run = 0;  // 0: all rows are together
    int64_t step = 0;

    // Returns the tensor's row that is the part's row of this number.
    int64_t Row(int64_t row) const {
      return begin + (run == 0 ? row : row / run * step + row % run);
    }
    // Returns the end of the part's rows that are neighbours in the tensor, this one among them.
    int64_t RunEnd(int64_t row) const { return run == 0 ? rows.total : (row / run + 1) * run; }
  };
  absl::StatusOr<std::vector<Part>> Parts(const std::vector<const TensorInfo*>& tensors,
                                          const Shard& shard) const;

  // Returns the reader of a packed weight; nothing for a tensor that is not made of others.
  absl::StatusOr<std::optional<PackedReader>> Packed(const TensorInfo& tensor) const;

  // Returns the tensors that hold a tensor's numbers: itself, unless it is packed.
  std::vector<const TensorInfo*> Stored(const TensorInfo& tensor) const;

  // Returns the bias "<x>.bias" beside the weight "<x>.weight", [out] in F32, F16 or BF16; nullptr
  // where there is none.
  absl::StatusOr<const TensorInfo*> Bias(const std::string& weight) const;

  // The biases beside these weights, one behind the other: zeros for a weight that has none, and
  // all zeros if the source has no data; empty where no weight has one.
  struct Biases {
    std::vector<float> values;
    std::vector<const TensorInfo*> tensors;
  };
  absl::StatusOr<Biases> BiasesOf(const std::vector<std::string>& weights) const;

  // A small table of floats, [rows, columns] in F32, F16 or BF16, and its values.
  struct Table {
    const TensorInfo* tensor;
    std::vector<float> values;
  };
  absl::StatusOr<Table> FloatTable(const std::string& name) const;
  // Returns the weights of a convolution of each channel, [channels, 1, width] or [channels,
  // width], as [channels][width]: all ones if the source has no data.
  absl::StatusOr<Table> Convolution(const std::string& name) const;

  // The scales beside the FP8 weight "<x>.weight": "<x>.weight_scale" in one row, of the size that
  // ModelConfig::quantization says, and "<x>.input_scale" where the file has it. Each is finite and
  // > 0. The source has data.
  struct Fp8Scales {
    std::vector<float> weight;
    std::optional<float> input;
  };
  absl::StatusOr<Fp8Scales> ScalesOf(const std::string& weight) const;

  // Returns the tensor of these scales, or nullptr where there is none.
  const TensorInfo* Fp8ScaleTensor(const std::string& weight) const;

  // The scales of a layer's FP8 keys and values: of each the number, or nothing where the file has
  // none. Finite and > 0. The source has data.
  struct KvScales {
    std::optional<float> k, v;
  };
  absl::StatusOr<KvScales> KvScalesOf(int layer) const;

 private:
  absl::StatusOr<const TensorInfo*> Find(const std::string& name) const;
  absl::StatusOr<std::vector<float>> Scales(const std::string& name) const;
  absl::StatusOr<std::optional<float>> OptionalScale(const std::string& name) const;

  const TensorSource& source_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_WEIGHTS_CHECKPOINT_H_
