#include "server/node.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/help.h"
#include "config/settings_table.h"
#include "executors/factory.h"
#include "server/device_spec.h"
#include "server/model_location.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

template <typename Enum>
std::pair<std::string, std::string> Chosen(std::string_view name, Enum value) {
  return {StrCat("--", name), std::string(FindSetting(name)->choices[static_cast<size_t>(value)])};
}

template <typename Value>
std::pair<std::string, std::string> Given(std::string_view name, Value value) {
  return {StrCat("--", name), StrCat(value)};
}

// The settings that decide what a step computes, and in which order ranks meet.
NodeFacts FactsOf(const Settings& s) {
  return {Chosen("device", s.device),
          Chosen("runner", s.runner),
          Given("tensor-parallel-size", s.tensor_parallel_size),
          Given("enable-expert-parallel", s.enable_expert_parallel),
          Given("max-model-len", s.max_model_len),
          Given("max-num-seqs", s.max_num_seqs),
          Given("max-num-batched-tokens", s.max_num_batched_tokens),
          Given("block-size", s.block_size),
          Chosen("kv-cache-dtype", s.kv_cache_dtype),
          Chosen("quantization", s.quantization),
          Given("quantize-lm-head", s.quantize_lm_head),
          Chosen("load-format", s.load_format),
          Chosen("kernels", s.kernels),
          Chosen("gemm", s.gemm),
          Chosen("all-reduce", s.all_reduce),
          Given("enforce-eager", s.enforce_eager),
          Given("exact", s.exact)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeGroup>> JoinNodes(const Settings& settings, NodeEvents events,
                                                     const std::atomic<bool>& stop) {
  NodeOptions options;
  options.nnodes = settings.nnodes;
  options.node_rank = settings.node_rank;
  options.master_addr = settings.master_addr;
  options.master_port = settings.master_port;
  options.key = settings.node_key;
  options.tls_certificate = settings.node_tls_cert;
  options.tls_key = settings.node_tls_key;
  options.tls_authority = settings.node_tls_ca;
  options.timeout = settings.node_timeout;
  options.version = std::string(Version());
  options.on_leave = std::move(events.on_leave);
  options.on_end = std::move(events.on_end);
  options.on_failure = [on_failure = std::move(events.on_failure)](const absl::Status& why) {
    kLog.Error(std::string(why.message()), "; all nodes end");
    on_failure();
  };
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<NodeGroup> nodes,
                            NodeGroup::Join(std::move(options), [&stop] { return stop.load(); }));
  MILLRACE_RETURN_IF_ERROR(Agree(*nodes, FactsOf(settings)));
  return nodes;
}

absl::Status EndStart(NodeGroup& nodes, const absl::Status& why, const std::atomic<bool>& stop) {
  if (IsDisagreement(why)) {  // all nodes see it by themselves
    nodes.End();
    return why;
  }
  if (stop || absl::IsCancelled(why)) {
    nodes.End();
    return absl::CancelledError("stopped while the model was loaded");
  }
  nodes.OnFailure(nullptr);  // what has loaded is not used any more
  nodes.Fail(why);
  return why;
}

absl::Status FollowNode0(const Settings& settings, NodeEvents events,
                         const std::atomic<bool>& stop) {
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<NodeGroup> nodes,
                            JoinNodes(settings, std::move(events), stop));
  const auto load = [&]() -> absl::StatusOr<std::unique_ptr<Executor>> {
    MILLRACE_ASSIGN_OR_RETURN(const std::string path, ModelPath(settings, &stop));
    return LoadExecutor(MakeModelSpec(settings, path), MakeDeviceSpec(settings), nodes.get());
  };
  const absl::StatusOr<std::unique_ptr<Executor>> executor = load();
  if (!executor.ok()) return EndStart(*nodes, executor.status(), stop);
  kLog.Info("node ", nodes->node(), " of ", nodes->size(), ": follows node 0");
  MILLRACE_RETURN_IF_ERROR(FollowPlans(**executor, *nodes));
  kLog.Info("node 0 has ended, and so does node ", nodes->node());
  return absl::OkStatus();
}

}  // namespace millrace
