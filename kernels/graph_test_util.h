// A captured graph and its edges, for tests and benchmarks.
#ifndef MILLRACE_KERNELS_GRAPH_TEST_UTIL_H_
#define MILLRACE_KERNELS_GRAPH_TEST_UTIL_H_

#include <cuda_runtime.h>

#include <functional>
#include <set>
#include <vector>

#include "kernels/test_util.h"

namespace millrace::kernels {

// Captures what `launch` submits to a stream.
class CapturedGraph {
 public:
  CapturedGraph(cudaStream_t stream, const std::function<void(cudaStream_t)>& launch) {
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    launch(stream);
    CheckCuda(cudaStreamEndCapture(stream, &graph_), "capture");
  }
  ~CapturedGraph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // Number of programmatic edges, and of all edges.
  struct EdgeCount {
    size_t programmatic = 0, all = 0;
  };
  EdgeCount CountEdges() const {
    const Edges edges = ReadEdges();
    EdgeCount count = {.all = edges.data.size()};
    for (size_t i = 0; i < edges.data.size(); ++i) count.programmatic += edges.IsProgrammatic(i);
    return count;
  }

  // Makes all edges plain, so that every kernel starts when its predecessor has ended. Call before
  // the first Replay.
  void MakeEdgesPlain() {
    Edges edges = ReadEdges();
    for (size_t i = 0; i < edges.data.size(); ++i) MakePlain(edges, i);
  }

  // Makes the edges behind kernels without early release plain, as decode graphs do. These are the
  // library's kernels, which no programmatic edge leads to.
  void MakeEdgesBehindOthersPlain() {
    Edges edges = ReadEdges();
    std::set<cudaGraphNode_t> early;
    for (size_t i = 0; i < edges.data.size(); ++i) {
      if (edges.IsProgrammatic(i)) early.insert(edges.to[i]);
    }
    for (size_t i = 0; i < edges.data.size(); ++i) {
      if (edges.IsProgrammatic(i) && early.count(edges.from[i]) == 0) MakePlain(edges, i);
    }
  }

  // Instantiates the graph and uploads it, which the first Replay does otherwise. Either may
  // allocate memory and wait for the device.
  void Upload(cudaStream_t stream) {
    CheckCuda(cudaGraphInstantiate(&executable_, graph_, 0), "instantiate");
    CheckCuda(cudaGraphUpload(executable_, stream), "upload");
  }

  void Replay(cudaStream_t stream) {
    if (executable_ == nullptr) {
      CheckCuda(cudaGraphInstantiate(&executable_, graph_, 0), "instantiate");
    }
    CheckCuda(cudaGraphLaunch(executable_, stream), "replay");
  }

 private:
  struct Edges {
    std::vector<cudaGraphNode_t> from, to;
    std::vector<cudaGraphEdgeData> data;

    bool IsProgrammatic(size_t i) const {
      return data[i].type == cudaGraphDependencyTypeProgrammatic;
    }
  };
  Edges ReadEdges() const {
    size_t size = 0;
    CheckCuda(cudaGraphGetEdges(graph_, nullptr, nullptr, nullptr, &size), "edges");
    Edges edges;
    edges.from.resize(size);
    edges.to.resize(size);
    edges.data.resize(size);
    CheckCuda(
        cudaGraphGetEdges(graph_, edges.from.data(), edges.to.data(), edges.data.data(), &size),
        "edges");
    return edges;
  }
  void MakePlain(Edges& edges, size_t i) {
    CheckCuda(cudaGraphRemoveDependencies(graph_, &edges.from[i], &edges.to[i], &edges.data[i], 1),
              "edges");
    CheckCuda(cudaGraphAddDependencies(graph_, &edges.from[i], &edges.to[i], nullptr, 1), "edges");
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GRAPH_TEST_UTIL_H_
