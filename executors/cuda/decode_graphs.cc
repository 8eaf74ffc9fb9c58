#include "executors/cuda/decode_graphs.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/fault_points.h"
#include "base/log.h"
#include "base/status.h"
#include "executors/cuda/rank_joining.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// Makes a capture wait for its own stream, which CUDA forbids and which invalidates the capture.
FaultPoint graph_capture("cuda.graph_capture");

// Makes programmatic edges behind library kernels plain. Such an edge saves a quarter of a
// microsecond if the first kernel releases the second early, as ours do (kernels/launch.cuh), and
// costs a tenth behind a library's kernel. Our kernels are those with an incoming programmatic
// edge.
absl::Status ShapeEdges(cudaGraph_t captured, StepGraph& graph) {
  size_t size = 0;
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaGraphGetEdges(captured, nullptr, nullptr, nullptr, &size),
                                    "counting a graph's edges"));
  std::vector<cudaGraphNode_t> from(size), to(size);
  std::vector<cudaGraphEdgeData> data(size);
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaGraphGetEdges(captured, from.data(), to.data(), data.data(), &size),
               "reading a graph's edges"));
  const auto is_programmatic = [&](size_t edge) {
    return data[edge].type == cudaGraphDependencyTypeProgrammatic;
  };
  std::unordered_set<cudaGraphNode_t> others;
  for (size_t i = 0; i < size; ++i) {
    if (!is_programmatic(i)) others.insert(to[i]);
  }
  for (size_t i = 0; i < size; ++i) {
    ++graph.num_edges;
    if (!is_programmatic(i)) continue;
    if (others.count(from[i]) == 0) {
      ++graph.num_programmatic_edges;
      continue;
    }
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaGraphRemoveDependencies(captured, &from[i], &to[i], &data[i], 1),
                 "removing a graph's edge"));
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaGraphAddDependencies(captured, &from[i], &to[i], nullptr, 1),
                 "adding an edge to a graph"));
  }
  return absl::OkStatus();
}

// Returns the size of a step of `rows` rows that have one token each and request its logits.
CudaStepInput DecodeSize(int rows) {
  CudaStepInput input;
  input.rows = input.tokens = input.wanted = rows;
  return input;
}

}  // namespace

absl::StatusOr<StepGraph> CaptureStep(CudaModel& model, const CudaStepInput& input) {
  cudaStream_t const stream = model.stream.get();
  MILLRACE_RETURN_IF_ERROR(ToStatus(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture"));
  model.model->Forward(*model.ops, input);
  const absl::Status launched = model.ops->TakeStatus();
  if (graph_capture.Fires()) (void)cudaStreamSynchronize(stream);
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  const Graph graph(captured);
  MILLRACE_RETURN_IF_ERROR(launched);
  MILLRACE_RETURN_IF_ERROR(ToStatus(ended, "ending a capture"));
  StepGraph result;
  MILLRACE_RETURN_IF_ERROR(ShapeEdges(graph.get(), result));
  cudaGraphExec_t executable = nullptr;
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaGraphInstantiate(&executable, graph.get(), 0), "instantiating a graph"));
  result.graph = GraphExec(executable);
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaGraphUpload(executable, stream), "uploading a graph"));
  return result;
}

namespace {

// Lets a rank play all others (PlayPeers) for the object's lifetime.
class Alone {
 public:
  explicit Alone(CudaModel& model) : peers_(model.peers.get()) {
    if (peers_ == nullptr) return;
    communicator_ = peers_->communicator;
    was_alone_ = peers_->alone;
    PlayPeers(*peers_);
  }
  ~Alone() {
    if (peers_ == nullptr) return;
    peers_->communicator = communicator_;
    peers_->alone = was_alone_;
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  RankPeers* peers_;
  kernels::Communicator communicator_{};
  bool was_alone_ = false;
};

absl::Status RunStep(CudaModel& model, int rows, int max_row_tokens) {
  const StepLane& lane = model.lanes[0];
  cudaStream_t const stream = model.stream.get();
  StepPacker packer(model.info.limits);
  CudaStepInput size = DecodeSize(rows);
  size.max_row_tokens = max_row_tokens;
  const PackedPlan packed = packer.Pack({}, size, lane.words());
  MILLRACE_RETURN_IF_ERROR(lane.Upload(packed, model.buffers, stream));
  model.model->Forward(*model.ops, packed.input);
  MILLRACE_RETURN_IF_ERROR(model.ops->TakeStatus());
  return ToStatus(cudaStreamSynchronize(stream), "a first step");
}

}  // namespace

absl::Status RunPaddingStep(CudaModel& model, int rows, int max_row_tokens) {
  const Alone alone(model);
  return RunStep(model, rows, max_row_tokens);
}

absl::Status RunJointStep(CudaModel& model, int rows, RankGroup& group) {
  model.peers->group = &group;
  absl::Status status = RunStep(model, rows, 1);
  model.peers->group = nullptr;
  return status;
}

void DecodeGraphs::KeepCommonSizes(absl::Span<DecodeGraphs* const> ranks) {
  const auto has = [](const DecodeGraphs& graphs, int size) {
    return std::any_of(graphs.graphs_.begin(), graphs.graphs_.end(),
                       [size](const DecodeGraph& graph) { return graph.size == size; });
  };
  for (DecodeGraphs* const of_rank : ranks) {
    for (DecodeGraphs* const other : ranks) {
      const size_t removed = std::erase_if(
          other->graphs_, [&](const DecodeGraph& graph) { return !has(*of_rank, graph.size); });
      other->num_failed_ += static_cast<int>(removed);
    }
  }
}

std::vector<int32_t> DecodeSizes(int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < most; size = size < 8 ? 2 * size : size + 8) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

absl::Status DecodeGraphs::Capture(CudaModel& model) {
  for (const int32_t size : DecodeSizes(model.info.limits.max_num_seqs)) {
    MILLRACE_RETURN_IF_ERROR(RunPaddingStep(model, size, 1));
    absl::StatusOr<StepGraph> graph = CaptureStep(model, DecodeSize(size));
    if (graph.ok()) {
      graphs_.push_back({.size = size, .step = *std::move(graph)});
    } else {
      kLog.Warning("decode steps of ", size, " sequences have no graph of their own: ",
                   std::string(graph.status().message()));
      ++num_failed_;
      (void)cudaGetLastError();
    }
  }
  return absl::OkStatus();
}

std::vector<int32_t> DecodeGraphs::Sizes() const {
  std::vector<int32_t> sizes;
  for (const DecodeGraph& graph : graphs_) sizes.push_back(graph.size);
  return sizes;
}

void DecodeGraphs::KeepSizes(absl::Span<const int32_t> sizes) {
  num_failed_ += static_cast<int>(std::erase_if(graphs_, [&](const DecodeGraph& graph) {
    return std::find(sizes.begin(), sizes.end(), graph.size) == sizes.end();
  }));
}

const DecodeGraph* DecodeGraphs::Find(int rows) const {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                  [rows](const DecodeGraph& graph) { return graph.size >= rows; });
  return found == graphs_.end() ? nullptr : &*found;
}

}  // namespace millrace::cuda
