#include "config/node_checks.h"

#include "base/strings.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

using Is = std::function<bool(std::string_view name)>;

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

std::optional<Contradicted> CheckNodes(const Settings& s, const Is& is_given) {
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
  return CheckTls(s);
}

}  // namespace millrace
