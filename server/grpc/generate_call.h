// One Generate call: moves events from its ResponseStreams to the wire, one write at a time.
#ifndef MILLRACE_SERVER_GRPC_GENERATE_CALL_H_
#define MILLRACE_SERVER_GRPC_GENERATE_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "millrace/v1/inference.pb.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/generate_queue.h"

namespace millrace {

class InferenceService;

class GenerateCall final : public GenerateStream {
 public:
  // `service` outlives it.
  explicit GenerateCall(InferenceService& service) : service_(service) {}

 private:
  ~GenerateCall() override;

  // Writes what there is, if no write is under way.
  void Pump();
  // Moves the next events into `response`: one, and those of the same answer that wait behind it.
  // Returns false if there is none. Sets `end` to the answer's status if it has ended.
  bool TakeEvents(v1::GenerateResponse& response, std::optional<absl::Status>& end);
  // Moves echo_ into `response`. Returns false if more of it is left than fits one turn.
  bool TakeEcho(v1::GenerateResponse& response);
  void CancelAll();
  // Ends the call with failed_.
  void Fail();

  absl::StatusOr<std::string> Admit() override;
  void Prepare(v1::GenerateRequest request) override;
  void Begin(const absl::Status& refused) override;
  void OnWake() override { Pump(); }
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

  InferenceService& service_;
  std::shared_ptr<const Tenant> tenant_;
  absl::StatusOr<Engine*> engine_ = nullptr;  // set, with request_, by Prepare
  GenerateRequest request_;                   // until Begin
  bool cancelled_ = false;
  std::vector<std::shared_ptr<ResponseStream>> streams_;  // of the answers
  bool awaits_echo_ = false;         // the request echoes its prompt, which has not come
  std::optional<OutputEvent> echo_;  // has come, and is not written
  size_t echo_details_ = 0;          // of it, that are in the response's parts
  size_t next_ = 0;                  // to be looked at first
  size_t unfinished_ = 0;
  std::string first_request_id_;  // goes out with the first response
  bool writing_ = false;
  bool finished_ = false;               // the call's last operation has begun
  std::optional<absl::Status> failed_;  // to end the call with, once what came before is written
};

// Returns after how many seconds clients are told to try again, in the trailing metadata
// kRetryAfter; nothing where they are not.
std::optional<std::string> RetryHint(const absl::Status& status);
inline constexpr const char* kRetryAfter = "retry-after";

// Adds that metadata where the status calls for it.
void AddRetryHint(grpc::CallbackServerContext* context, const absl::Status& status);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_GENERATE_CALL_H_
