#include "nodes/exchange.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace::nodes {
namespace {

using namespace std::chrono_literals;

constexpr Logger kLog(LogComponent::kServer);

// A stranger may hold up the others for as long.
constexpr Duration kGreetingTimeout = 2s;
constexpr Duration kConnectTimeout = 5s;
// More than any step has: what claims to be longer is no message of ours.
constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
constexpr std::array<char, 8> kMagic = {'M', 'I', 'L', 'L', 'N', 'O', 'D', '1'};

struct Greeting {
  std::array<char, 8> magic;
  int32_t node;
  Token token;
};

struct Header {
  uint32_t sequence;  // counts the gatherings, so that all nodes are at the same one
  uint64_t bytes;
};

absl::Span<char> BytesOf(auto& value) { return {reinterpret_cast<char*>(&value), sizeof(value)}; }

// Returns nothing, or why the stranger is refused.
std::string WhyRefused(const Greeting& greeting, int nodes,
                       const std::function<std::optional<Token>(int node)>& token) {
  if (greeting.magic != kMagic) return "it does not begin as a node does";
  if (greeting.node < 1 || greeting.node >= nodes) return "there is no node of its number";
  const std::optional<Token> expected = token(greeting.node);
  if (!expected.has_value() ||
      CRYPTO_memcmp(expected->data(), greeting.token.data(), expected->size()) != 0) {
    return "it does not show the token of its node";
  }
  return "";
}

bool SendPart(const Socket& socket, uint32_t sequence, absl::Span<const char> bytes) {
  Header header{};
  header.sequence = sequence;
  header.bytes = bytes.size();
  return SendAll(socket, BytesOf(header)) && SendAll(socket, bytes);
}

bool ReceivePart(const Socket& socket, uint32_t sequence, std::vector<char>& bytes) {
  Header header;
  if (!ReceiveAll(socket, BytesOf(header))) return false;
  if (header.sequence != sequence || header.bytes > kMaxBytes) return false;
  bytes.resize(header.bytes);
  return ReceiveAll(socket, absl::MakeSpan(bytes));
}

}  // namespace

Token MakeToken() {
  Token token;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(token.data()), token.size()) != 1) std::abort();
  return token;
}

void Exchange::AcceptAll(const Socket& listener,
                         const std::function<std::optional<Token>(int node)>& token,
                         const std::function<bool()>& stop) {
  int missing = nodes_ - 1;
  while (missing > 0 && !stop()) {
    std::optional<Accepted> accepted = Accept(listener, 100ms);
    if (!accepted.has_value()) continue;
    Greeting greeting;
    std::string why = "it did not begin as a node does, in time";
    if (ReceiveAll(accepted->socket, BytesOf(greeting), kGreetingTimeout)) {
      why = WhyRefused(greeting, nodes_, token);
    }
    if (why.empty() && sockets_[greeting.node].open()) why = "its node is connected already";
    if (!why.empty()) {
      kLog.Warning("refused a connection of ", accepted->peer, " to the nodes' data port: ", why);
      continue;
    }
    sockets_[greeting.node] = std::move(accepted->socket);
    --missing;
  }
  complete_ = missing == 0;
}

absl::Status Exchange::Open(const std::string& address, int port, const Token& token) {
  MILLRACE_ASSIGN_OR_RETURN(Socket socket, Connect(address, port, kConnectTimeout));
  Greeting greeting{.magic = kMagic, .node = node_, .token = token};
  if (!SendAll(socket, BytesOf(greeting))) {
    return absl::UnavailableError(StrCat("cannot send to ", WithPort(address, port)));
  }
  sockets_[0] = std::move(socket);
  complete_ = true;
  return absl::OkStatus();
}

absl::Status Exchange::AllGather(absl::Span<const char> mine, std::vector<std::vector<char>>* all,
                                 int* to_blame) {
  all->resize(nodes_);
  (*all)[node_].assign(mine.begin(), mine.end());
  ++sequence_;
  *to_blame = 0;
  return node_ == 0 ? Lead(*all, to_blame) : Follow(mine, *all);
}

absl::Status Exchange::Lead(std::vector<std::vector<char>>& all, int* to_blame) {
  for (int node = 1; node < nodes_; ++node) {
    *to_blame = node;
    if (!ReceivePart(sockets_[node], sequence_, all[node])) {
      return absl::UnavailableError("its data connection has ended");
    }
  }
  for (int node = 1; node < nodes_; ++node) {
    *to_blame = node;
    for (int from = 0; from < nodes_; ++from) {
      if (from == node) continue;
      if (!SendPart(sockets_[node], sequence_, all[from])) {
        return absl::UnavailableError("its data connection has ended");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Exchange::Follow(absl::Span<const char> mine, std::vector<std::vector<char>>& all) {
  bool ok = SendPart(sockets_[0], sequence_, mine);
  for (int from = 0; from < nodes_ && ok; ++from) {
    if (from != node_) ok = ReceivePart(sockets_[0], sequence_, all[from]);
  }
  return ok ? absl::OkStatus() : absl::UnavailableError("its data connection has ended");
}

void Exchange::Shutdown() {
  if (!complete_) return;  // then nobody waits for them
  for (const Socket& socket : sockets_) socket.Shutdown();
}

}  // namespace millrace::nodes
