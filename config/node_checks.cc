#include "config/node_checks.h"

#include "base/strings.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

using Is = std::function<bool(std::string_view name)>;

// The settings that mean something to node 0 alone.
constexpr std::string_view kOfNode0[] = {"served-model-name",
                                         "tokenizer",
                                         "tokenizer-revision",
                                         "generation-config",
                                         "prefix-caching",
                                         "max-waiting",
                                         "host",
                                         "http-port",
                                         "grpc-port",
                                         "admin-port",
                                         "ready-file",
                                         "unknown-fields",
                                         "ssl-certfile",
                                         "ssl-keyfile",
                                         "ssl-ca-certs",
                                         "ssl-cert-reqs",
                                         "ssl-crl-file",
                                         "api-key",
                                         "insecure",
                                         "allowed-hosts",
                                         "stall-timeout",
                                         "log-prompts"};

std::optional<Contradicted> CheckAlone(const Is& is_given) {
  for (const Setting& setting : SettingsTable()) {
    if (setting.group == kNodesGroup && setting.name != "nnodes" && is_given(setting.name)) {
      return Contradicted{setting.name, "allowed only with --nnodes of 2 or more"};
    }
  }
  return std::nullopt;
}

std::optional<Contradicted> CheckTls(const Settings& s) {
  const bool all = !s.node_tls_cert.empty() && !s.node_tls_key.empty() && !s.node_tls_ca.empty();
  if (all || (s.node_tls_cert.empty() && s.node_tls_key.empty() && s.node_tls_ca.empty())) {
    return std::nullopt;
  }
  const std::string_view given = !s.node_tls_cert.empty()  ? "node-tls-cert"
                                 : !s.node_tls_key.empty() ? "node-tls-key"
                                                           : "node-tls-ca";
  return Contradicted{given, "but TLS needs all of --node-tls-cert, --node-tls-key, --node-tls-ca"};
}

}  // namespace

std::optional<Contradicted> CheckNodes(const Settings& s, const Is& is_given, const Is& is_flag) {
  if (s.nnodes == 1) return CheckAlone(is_given);
  if (s.device != Device::kCpu && s.device != Device::kCuda) {
    return Contradicted{"nnodes", "allowed only with --device cpu or cuda, or 1"};
  }
  if (s.tensor_parallel_size % s.nnodes != 0) {
    return Contradicted{"nnodes", StrCat("but --tensor-parallel-size is ", s.tensor_parallel_size,
                                         ": expected as many ranks on each node")};
  }
  if (s.virtual_ranks) {
    return Contradicted{"nnodes", "but --virtual-ranks are all on one GPU"};
  }
  if (s.node_rank >= s.nnodes) {
    return Contradicted{"node-rank",
                        StrCat("allowed with --nnodes ", s.nnodes, ": 0 to ", s.nnodes - 1)};
  }
  if (s.master_addr.empty()) {
    return Contradicted{"nnodes", "but no --master-addr says where node 0 is"};
  }
  if (s.node_key.empty()) {
    return Contradicted{"nnodes", "but there is no --node-key, which nodes show one another"};
  }
  if (auto tls = CheckTls(s)) return tls;
  for (const std::string_view name : kOfNode0) {
    if (s.node_rank > 0 && is_flag(name)) {
      return Contradicted{
          name, StrCat("which means nothing to node ", s.node_rank, ": node 0 alone serves")};
    }
  }
  return std::nullopt;
}

}  // namespace millrace
