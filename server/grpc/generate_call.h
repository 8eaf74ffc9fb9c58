// One Generate call: moves events from its ResponseStreams to the wire, one write at a time.
#ifndef MILLRACE_SERVER_GRPC_GENERATE_CALL_H_
#define MILLRACE_SERVER_GRPC_GENERATE_CALL_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "millrace/v1/inference.pb.h"
#include "server/grpc/callbacks.h"

namespace millrace {

// Keeps itself alive until gRPC is done with it. The engine's `ready` holds it weakly, so a late
// one finds nothing.
class GenerateCall : public GenerateReactor, public std::enable_shared_from_this<GenerateCall> {
 public:
  // Returns the reactor of a call that goes to `engine`.
  static GenerateCall* Begin(grpc::CallbackServerContext* context, Engine& engine,
                             GenerateRequest request);

 private:
  explicit GenerateCall(grpc::CallbackServerContext* context) : context_(context) {}

  // Writes the next event, if there is one and no write is under way.
  void Pump();
  // Returns the next event, from the streams in turns; `next_` is then the stream after it.
  std::optional<OutputEvent> NextEvent(int32_t* index);
  void CancelAll();
  void FinishWith(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  grpc::CallbackServerContext* const context_;

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<GenerateCall> self_;
  std::vector<std::shared_ptr<ResponseStream>> streams_;  // of the answers
  size_t next_ = 0;                                       // to be looked at first
  size_t unfinished_ = 0;
  std::string first_request_id_;  // goes out with the first response
  bool writing_ = false;
  bool finished_ = false;
  bool cancelled_ = false;
  v1::GenerateResponse response_;  // being written
};

// Adds the trailing metadata that tells a client when to try again, where the status calls for it.
void AddRetryHint(grpc::CallbackServerContext* context, const absl::Status& status);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_GENERATE_CALL_H_
