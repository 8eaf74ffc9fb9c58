// Charges messages of gRPC that clients do not read to the budget of all answers.
#ifndef MILLRACE_SERVER_GRPC_UNREAD_CALLS_H_
#define MILLRACE_SERVER_GRPC_UNREAD_CALLS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "server/grpc/access.h"
#include "server/guard/output_budget.h"

namespace millrace {

class UnreadCall;

// Smaller messages are not charged: gRPC keeps more than this for each call in any case.
inline constexpr size_t kChargedBytes = 16 << 10;

// Returns whom a message of a call waits for.
OutputOwner OwnerOf(const grpc::ServerContextBase& context, std::string tenant);

// Returns the error (ResourceExhausted) of a call whose message may not wait.
absl::Status NoMemoryForMessage(OutputBudget::Scope full);

// A message waits from when it is sent until gRPC has passed it on to the connection, which takes
// as much as the client's windows allow. A message that does not fit into the budget ends its call
// with RESOURCE_EXHAUSTED or, if it is not the call's last, CANCELLED. Thread-safe.
class UnreadCalls {
 public:
  // Both outlive it.
  UnreadCalls(OutputBudget& budget, const CallAccess& access) : budget_(budget), access_(access) {}
  UnreadCalls(const UnreadCalls&) = delete;
  UnreadCalls& operator=(const UnreadCalls&) = delete;

  // Cancels the calls whose messages had to give way. Called now and then.
  void CancelEvicted();

  OutputBudget& budget() { return budget_; }
  const CallAccess& access() const { return access_; }

 private:
  friend class UnreadCall;
  void Add(UnreadCall& call);
  void Remove(UnreadCall& call);

  OutputBudget& budget_;
  const CallAccess& access_;
  // It keeps a call alive while it is cancelled; a call that is may end on the same thread. gRPC
  // tells a call's reactor of it on a thread of its own, so that no lock of a call is taken under
  // it.
  std::recursive_mutex mutex_;
  std::unordered_set<UnreadCall*> calls_;  // guarded by mutex_: those with a message that waits
};

// Charges the messages of all calls but Generate's, which GenerateStream charges: it would pay for
// this with each token. `calls` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ChargeMessages(
    UnreadCalls& calls);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_UNREAD_CALLS_H_
