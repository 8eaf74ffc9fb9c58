#include "config/node_settings.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "config/setting_makers.h"

namespace millrace {
namespace {

bool IsVisible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

}  // namespace

std::vector<Setting> NodeSettings() {
  using namespace std::chrono_literals;
  using setting_makers::Path;
  using setting_makers::Text;
  using setting_makers::Time;
  using setting_makers::Whole;
  Setting key = Text(
      {"node-key", "KEY",
       "what nodes show one another, the same on all; better given by file or "
       "environment, where ps does not show it"},
      "16 to 512 visible ASCII characters", &Settings::node_key,
      [](std::string_view key) { return key.size() >= 16 && key.size() <= 512 && IsVisible(key); });
  key.secret = true;
  return {
      Whole({"nnodes", "N",
             "processes, one a host, that share the ranks of --tensor-parallel-size; the same "
             "command runs on all, but for --node-rank"},
            &Settings::nnodes, 1, kMaxRanks),
      Whole({"node-rank", "N", "which of them this is; 0 plans and serves, the others follow"},
            &Settings::node_rank, 0, kMaxRanks - 1),
      Text({"master-addr", "HOST", "name or address of node 0, which listens there for the others"},
           "a host's name or address", &Settings::master_addr,
           [](std::string_view name) { return name.size() <= 255 && IsVisible(name); }),
      Whole({"master-port", "PORT", "port of node 0 for the other nodes; the next one is, too"},
            &Settings::master_port, 1, 65534),
      std::move(key),
      Time({"node-timeout", "TIME", "how long nodes wait for one another to come"},
           &Settings::node_timeout, 100ms, 24h),
      Path({"node-tls-cert", "FILE",
            "this node's certificate (PEM): nodes then speak TLS and show one another theirs; node "
            "0's is for --master-addr. What ranks exchange stays in the clear"},
           &Settings::node_tls_cert),
      Path({"node-tls-key", "FILE", "the key of --node-tls-cert (PEM)"}, &Settings::node_tls_key),
      Path({"node-tls-ca", "FILE", "the authority that all nodes' certificates are of (PEM)"},
           &Settings::node_tls_ca),
  };
}

}  // namespace millrace
