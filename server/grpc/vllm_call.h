// One Generate call of vllm.grpc.engine: moves events from its ResponseStreams to the wire.
#ifndef MILLRACE_SERVER_GRPC_VLLM_CALL_H_
#define MILLRACE_SERVER_GRPC_VLLM_CALL_H_

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/vllm_convert.h"

namespace millrace {

// Keeps itself alive until gRPC is done with it, as GenerateCall.
class VllmCall : public ServerCall, public std::enable_shared_from_this<VllmCall> {
 public:
  // `on_done` is called once, when gRPC is done with the call.
  VllmCall(grpc::CallbackServerContext* context, VllmOutput output, std::function<void()> on_done)
      : context_(context), output_(output), on_done_(std::move(on_done)) {}

  // Sends the request to `engine`. Call once.
  void Begin(Engine& engine, GenerateRequest request);

  // Ends the choices that have not ended, with the reason "abort".
  void Abort();

 private:
  // Writes the next response, if there is one and no write is under way.
  void Pump();
  // Moves events to `pending_` until it has a response. Returns the error that ends the call.
  absl::Status Fill();
  // Takes the next event of the streams, in turns: of the first alone until it has brought the
  // prompt's log-probabilities, if they are wanted, since every choice shows them.
  std::optional<OutputEvent> NextEvent(size_t* index);
  void CancelAll();
  void FinishWith(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  grpc::CallbackServerContext* const context_;
  const VllmOutput output_;
  const std::function<void()> on_done_;

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<VllmCall> self_;
  std::vector<std::shared_ptr<ResponseStream>> streams_;
  std::vector<VllmChoice> choices_;
  std::shared_ptr<const vllm_pb::InputLogProbs> prompt_;
  size_t next_ = 0;  // stream to be looked at first
  size_t unfinished_ = 0;
  std::vector<vllm_pb::GenerateResponse> pending_;  // first to be written at `written_`
  size_t written_ = 0;
  bool writing_ = false;
  bool finished_ = false;
  bool cancelled_ = false;
  bool aborted_ = false;
  vllm_pb::GenerateResponse response_;  // being written
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_CALL_H_
