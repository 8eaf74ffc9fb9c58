#include "nodes/exchange.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <list>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace::nodes {
namespace {

using namespace std::chrono_literals;

constexpr Logger kLog(LogComponent::kServer);

constexpr Duration kGreetingTimeout = 2s;
// Each has a file descriptor.
constexpr size_t kMaxStrangers = 64;
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

// Who has connected and not said yet which node it is.
struct Stranger {
  // Takes what has come. Returns nothing: wait for more; false: it ended, or is too late.
  std::optional<bool> Greet() {
    const absl::Span<char> rest = BytesOf(greeting).subspan(received);
    const std::optional<size_t> more = ReceiveSome(from.socket, rest);
    if (!more.has_value()) return false;
    received += *more;
    if (received == sizeof(greeting)) return true;
    if (Clock::Real().Now() > deadline) return false;
    return std::nullopt;
  }

  Accepted from;
  SteadyTime deadline = Clock::Real().Now() + kGreetingTimeout;
  Greeting greeting{};
  size_t received = 0;
};

void WaitForAny(const Socket& listener, const std::list<Stranger>& strangers, Duration wait) {
  std::vector<const Socket*> sockets = {&listener};
  for (const Stranger& stranger : strangers) sockets.push_back(&stranger.from.socket);
  WaitReadable(sockets, wait);
}

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
  std::list<Stranger> strangers;
  const auto refuse = [](const Stranger& stranger, std::string_view why) {
    kLog.Warning("refused a connection of ", stranger.from.peer, " to the nodes' data port: ", why);
  };
  int missing = nodes_ - 1;
  while (missing > 0 && !stop()) {
    WaitForAny(listener, strangers, 100ms);
    if (std::optional<Accepted> accepted = Accept(listener, Duration::zero())) {
      strangers.push_back({.from = *std::move(accepted)});
      if (strangers.size() > kMaxStrangers) {
        refuse(strangers.front(), "too many others wait");
        strangers.pop_front();
      }
    }
    for (auto stranger = strangers.begin(); stranger != strangers.end();) {
      const std::optional<bool> greeted = stranger->Greet();
      if (!greeted.has_value()) {
        ++stranger;
        continue;
      }
      const Greeting& greeting = stranger->greeting;
      std::string why = *greeted ? WhyRefused(greeting, nodes_, token)
                                 : "it did not begin as a node does, in time";
      if (why.empty() && sockets_[greeting.node].open()) why = "its node is connected already";
      if (why.empty()) {
        sockets_[greeting.node] = std::move(stranger->from.socket);
        --missing;
      } else {
        refuse(*stranger, why);
      }
      stranger = strangers.erase(stranger);
    }
  }
  complete_ = missing == 0;
  settled_ = true;
}

absl::Status Exchange::Open(const std::string& address, int port, const Token& token) {
  MILLRACE_ASSIGN_OR_RETURN(Socket socket, Connect(address, port, kConnectTimeout));
  Greeting greeting{.magic = kMagic, .node = node_, .token = token};
  if (!SendAll(socket, BytesOf(greeting))) {
    return absl::UnavailableError(StrCat("cannot send to ", WithPort(address, port)));
  }
  sockets_[0] = std::move(socket);
  complete_ = settled_ = true;
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
  if (!settled_) return;
  for (const Socket& socket : sockets_) socket.Shutdown();
}

}  // namespace millrace::nodes
