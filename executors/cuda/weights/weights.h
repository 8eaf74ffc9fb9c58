// A model's weights in the GPU's memory, and how they get there.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_WEIGHTS_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_WEIGHTS_H_

#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "executors/cuda/device/device.h"
#include "executors/cuda/device/peer_memory.h"
#include "executors/cuda/weights/expansion.h"
#include "executors/cuda/weights/weight_loader.h"
#include "executors/decoder_ops.h"
#include "executors/weights/checkpoint.h"
#include "formats/model/model_config.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/linear.h"
#include "kernels/types.h"

namespace millrace::cuda {

struct CudaNorm {
  const float* weight;  // [size]
  float epsilon;
  int size;             // of the rank
  int all = 0;          // elements of all ranks, of a norm that they divide
  bool counted = true;  // NormSpec::counted
};

struct CudaEmbedding {
  const kernels::Bf16* table;  // [rows][stride]
  int64_t stride;
  int vocab;
  int rows;  // of the rank: rank r's are [r * rows, (r + 1) * rows) of the vocabulary
  int width;
};

// A linear that runs by a plan: the vocabulary head, and a layer's linears but for the kinds below.
struct PlannedLinear {
  const kernels::LinearPlan* plan = nullptr;  // null until the plans are made
};

// A linear of a layer with weights of four bits, as the grouped linear's only group.
struct FourBitLinear {
  kernels::GroupedWeight weight;
  CudaExpansion expansion;  // of long steps
};

// The linears of a mixture's experts, one behind the other, each of the shape of
// CudaLinear::weight.
struct ExpertsLinear {
  kernels::GroupedWeight weight;
  int chosen;        // experts of a token
  int first_expert;  // that the rank has
  int all_experts;   // of the mixture, on all ranks
};

// A router of a mixture. The kernel that multiplies it also chooses the experts.
struct RouterLinear {
  const float* correction = nullptr;  // [experts], of a router that has one
};

// The kind of kernels that run a linear. It is decided once, when the linear is described.
using LinearRunner = std::variant<PlannedLinear, FourBitLinear, ExpertsLinear, RouterLinear>;

struct CudaLinear {
  // Rows are filled up to a multiple of 16 with zeros. Of a router: dense rows, BF16 or F32.
  kernels::Weight weight;
  LinearRunner runner = PlannedLinear{};
  int rows;
  int columns;
  kernels::Scaling input = kernels::Scaling::kNone;  // what it consumes
  float* input_scale = nullptr;                      // of kTensor
  // [rows], of a linear that has one; of experts [experts][weight.rows].
  const float* bias = nullptr;
  kernels::GateLayout gate = kernels::GateLayout::kHalves;

  // Returns the plan, or null where something else runs the linear.
  const kernels::LinearPlan* plan() const {
    const auto* const planned = std::get_if<PlannedLinear>(&runner);
    return planned != nullptr ? planned->plan : nullptr;
  }
  // Returns null unless the weights have four bits.
  const FourBitLinear* four_bit() const { return std::get_if<FourBitLinear>(&runner); }
  // The linear must be a mixture's experts.
  const ExpertsLinear& experts() const { return std::get<ExpertsLinear>(runner); }
};

struct CudaWeights {
  std::vector<CudaLinear> linears;
  std::vector<CudaEmbedding> embeddings;
  std::vector<CudaNorm> norms;
  std::vector<const float*> vectors;
  // The scales of each layer's FP8 keys and values; 1 where the checkpoint has none.
  std::vector<float> k_scales;
  std::vector<float> v_scales;
  bool has_kv_scales = false;
  RankSpec rank;
  // The memory that the above points into: `memory`, or where ranks divide the weights `shared`,
  // which all of them can read.
  DeviceMemory memory;
  PeerMemory shared;
  DeviceMemory expansion;  // the workspace of all linears with an expansion
  Sha256Digest digest{};

  // A rank's memory is shared only if this process has others that can reach it.
  uint8_t* data() const { return shared.data() != nullptr ? shared.data() : memory.data(); }
  size_t bytes() const { return shared.data() != nullptr ? shared.bytes() : memory.bytes(); }

  const CudaLinear& Linear(LinearId id) const { return linears[static_cast<size_t>(id)]; }
  const CudaNorm& Norm(NormId id) const { return norms[static_cast<size_t>(id)]; }
  const float* Vector(VectorId id) const { return vectors[static_cast<size_t>(id)]; }
  const CudaEmbedding& Embedding(EmbeddingId id) const {
    return embeddings[static_cast<size_t>(id)];
  }
};

struct WeightOptions {
  bool quantize_fp8 = false;    // layers' linears to FP8, a scale an output channel, on the way
  bool quantize_int4 = false;   // layers' linears of floats to four bits, by groups of 32
  bool four_bit = true;         // linears may have a four-bit form: the grouped linear runs
  bool quantize_head = false;   // the vocabulary head to FP8, a scale a 128x128 block, on the way
  bool dummy = false;           // weights are drawn on the device, nothing is read
  bool skewed_routers = false;  // drawn routers load some experts more than others
};

// Only notes what is asked for, until Finish has threads read each tensor once, into pinned memory;
// the rank's share goes to the device, where kernels bring it into its place and form. A matrix
// that is asked for twice (a tied head) is placed once.
class CudaWeightPlacer : public DecoderPlacer {
 public:
  CudaWeightPlacer(const TensorSource& source, const ModelConfig& config,
                   const WeightOptions& options, RankSpec rank = {})
      : checkpoint_(source), config_(config), options_(options), rank_(rank) {}

  bool Has(const std::string& name) const override { return checkpoint_.Has(name); }
  RankSpec rank() const override { return rank_; }
  absl::StatusOr<ScaleBlock> BlockOf(const std::string& name) const override;
  absl::StatusOr<EmbeddingId> Embedding(const std::string& name) override;
  absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) override;
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names,
                                  const Shard& shard) override;
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names,
                                       const Share& share) override;
  absl::StatusOr<VectorId> Vector(const std::string& name, const Share& share) override;
  absl::StatusOr<ConvolutionSpec> Convolution(const std::string& module, bool bias,
                                              absl::Span<const Share> channels) override;
  absl::StatusOr<LinearId> Router(const RouterNames& names) override;
  absl::StatusOr<LinearId> GatedExperts(const ExpertNames& names, const Share& experts,
                                        const Share& share) override;
  absl::StatusOr<LinearId> Experts(const ExpertNames& names, const Share& experts,
                                   const Shard& shard) override;
  absl::StatusOr<LinearId> Head(const std::string& name) override;

  // Returns the weights that were asked for so far, without data and plans: for a dry run. Touches
  // no device.
  CudaWeights Shapes() const { return Describe(nullptr); }
  // The bytes that the weights asked for so far take on the device.
  size_t bytes() const { return bytes_; }

  // Loads all weights that were asked for onto the calling thread's device. Called once, at the
  // end.
  absl::StatusOr<CudaWeights> Finish(kernels::LinearPlanner& planner);

  // A rank's placer and planner, and its GPU.
  struct RankTarget {
    CudaWeightPlacer* placer;
    kernels::LinearPlanner* planner;
    int device;
  };
  // Does what Finish does for all ranks of a model, in their order: reads each tensor once and
  // deals it to them. Leaves the last rank's device as the calling thread's. `progress` is told of
  // each piece; may be null.
  static absl::StatusOr<std::vector<CudaWeights>> FinishRanks(absl::Span<const RankTarget> ranks,
                                                              LoadProgress* progress);

 private:
  enum class Role : uint8_t { kTable, kLinear, kGated, kExpert, kGatedExpert, kRouter };
  struct PendingLinear;

  // Describes the matrix, but for its place.
  absl::StatusOr<PendingMatrix> Describe(const std::vector<std::string>& names, const Shard& shard,
                                         Role role, kernels::WeightScaling quantized);
  absl::StatusOr<size_t> Place(const std::vector<std::string>& names, const Shard& shard, Role role,
                               kernels::WeightScaling quantized);
  absl::StatusOr<LinearId> PlaceExperts(const ExpertNames& names, const Share& experts,
                                        const Shard& shard, Role role);
  // Describes one expert's matrix, and adds its bias to the linear's.
  absl::StatusOr<PendingMatrix> DescribeExpert(const std::vector<std::string>& names, bool present,
                                               const Shard& shard, Role role,
                                               PendingLinear& linear);
  // Takes memory on `device`, which `devices`, those of all ranks of this process, may read where
  // they can reach one another.
  absl::Status TakeMemory(int device, absl::Span<const int> devices, CudaWeights& weights) const;
  absl::Status ChooseFourBits(Role role, bool quantizes, PendingMatrix& matrix);
  // Returns the four-bit form of a packed weight, or nothing where it is to be dequantized: where
  // no form holds it, and where its columns stand in another order than its inputs.
  static std::optional<kernels::FourBitFormat> PackedFormat(
      absl::Span<const PackedReader* const> parts, const Share& columns);
  // The same for dummy weights, of which there are shapes alone.
  std::optional<kernels::FourBitFormat> DrawnFormat(int64_t columns) const;
  void UniteFormats(std::vector<PendingMatrix>& experts) const;
  int ChosenExperts() const;
  // Gives a drawn router's rows their factors, by a seed of its own.
  void SkewRouter(PendingMatrix& matrix);
  absl::StatusOr<size_t> PlaceTable(const std::string& name, kernels::WeightScaling quantized);
  absl::StatusOr<LinearId> LayerLinear(const std::vector<std::string>& names, const Shard& shard,
                                       Role role);
  absl::Status ReadScales(Role role, PendingMatrix& matrix);
  absl::Status ExpandFewRows(PendingMatrix& matrix);
  // Returns the scales of a tensor of FP8 codes in the file, or ones that a dummy has.
  absl::StatusOr<Checkpoint::Fp8Scales> Fp8ScalesOf(const std::string& name, int64_t rows,
                                                    int64_t columns) const;
  size_t Reserve(size_t bytes);
  absl::Status DrawNorms(const CudaWeights& weights) const;
  absl::Status UploadSmall(CudaWeights& weights) const;
  // Returns the weights' addresses in `arena`, without plans.
  CudaWeights Describe(uint8_t* arena) const;
  absl::Status MakePlans(CudaWeights& weights, kernels::LinearPlanner& planner) const;
  absl::Status ReadKvScales(CudaWeights& weights) const;
  Sha256Digest Digest(const CudaWeights& weights, const std::vector<WeightPiece>& pieces,
                      const std::vector<Sha256Digest>& digests) const;

  Checkpoint checkpoint_;
  ModelConfig config_;
  WeightOptions options_;
  RankSpec rank_;
  std::deque<PackedReader> readers_;  // pointed into
  std::vector<PendingMatrix> matrices_;
  struct PendingNorm {
    const TensorInfo* tensor;
    int64_t size;  // of the rank's share
    size_t offset;
    NormSpec spec;
  };
  std::vector<PendingNorm> norms_;
  // A vector, or a table of the file, [elements][columns], that is placed by columns.
  struct PendingVector {
    const TensorInfo* tensor;
    std::vector<Share> shares;  // of consecutive elements
    int64_t columns;
    size_t offset;
  };
  VectorId Place(const TensorInfo* tensor, absl::Span<const Share> shares, int64_t columns);
  // Returns the rank's [columns][elements], as they are or drawn.
  std::vector<float> ValuesOf(const PendingVector& vector) const;
  std::vector<PendingVector> vectors_;
  enum class Kind : uint8_t {
    kPlanned,
    kHead,  // its product is float32 logits
    kExperts,
    kRouter,
  };
  struct PendingLinear {
    size_t matrix;  // of experts the first one's; the others' follow
    Kind kind = Kind::kPlanned;
    int experts = 0;
    int first_expert = 0;
    int all_experts = 0;
    std::vector<float> file_bias = {};  // of all ranks, or nothing
    std::vector<float> bias = {};       // or nothing
    size_t bias_offset = 0;
    std::vector<float> correction = {};  // or nothing
    size_t correction_offset = 0;
  };
  // Returns the linear's address in `arena`, without a plan.
  CudaLinear Describe(const PendingLinear& pending, uint8_t* arena) const;
  // Reserves a place for the numbers, if there are any.
  size_t Reserve(const std::vector<float>& values);

  std::vector<PendingLinear> linears_;
  std::vector<size_t> embeddings_;  // matrices
  size_t bytes_ = 0;                // of the arena so far
  absl::flat_hash_map<std::string, size_t> placed_;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_WEIGHTS_H_
