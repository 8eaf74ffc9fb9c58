// The connections over which nodes gather bytes: each node has one with node 0.
#ifndef MILLRACE_NODES_EXCHANGE_H_
#define MILLRACE_NODES_EXCHANGE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nodes/sockets.h"

namespace millrace::nodes {

// The secret that a node presents when it opens its connection. Node 0 draws it and sends it over
// gRPC, where the node has presented the key.
using Token = std::array<char, 32>;
Token MakeToken();

class Exchange {
 public:
  // `nodes`: in all; `node`: this one.
  Exchange(int nodes, int node) : nodes_(nodes), node_(node), sockets_(nodes) {}

  // On node 0: takes connections that show the token of their node, until every other node has
  // one or `stop` returns true. Others are refused, with a line in the log. A client that is slow
  // to show its token holds up no other.
  void AcceptAll(const Socket& listener, const std::function<std::optional<Token>(int node)>& token,
                 const std::function<bool()>& stop);
  // On another node: opens the connection to node 0.
  absl::Status Open(const std::string& address, int port, const Token& token);

  bool complete() const { return complete_; }
  // Returns whether the node has a connection. Called by the thread of AcceptAll.
  bool connected(int node) const { return sockets_[node].open(); }

  // Nodes::AllGather. Returns Unavailable, and which node is to blame, if a connection has ended.
  absl::Status AllGather(absl::Span<const char> mine, std::vector<std::vector<char>>* all,
                         int* to_blame);

  // Ends all connections, unless they are still being made; what waits for them returns.
  void Shutdown();

 private:
  absl::Status Lead(std::vector<std::vector<char>>& all, int* to_blame);
  absl::Status Follow(absl::Span<const char> mine, std::vector<std::vector<char>>& all);

  const int nodes_;
  const int node_;
  std::vector<Socket> sockets_;  // by node; of another node than the first, only node 0's
  std::atomic<bool> complete_{false};
  std::atomic<bool> settled_{false};  // sockets_ change no more
  uint32_t sequence_ = 0;
};

}  // namespace millrace::nodes

#endif  // MILLRACE_NODES_EXCHANGE_H_
