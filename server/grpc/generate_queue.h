// The calls of Generate, on a completion queue with a thread of its own.
//
// A stream of tokens is what this server writes most. On gRPC's callback API each write wakes one
// of gRPC's threads when it is done; here the thread that writes a step's tokens to its streams
// finds their completions itself, and is woken once for all of them.
#ifndef MILLRACE_SERVER_GRPC_GENERATE_QUEUE_H_
#define MILLRACE_SERVER_GRPC_GENERATE_QUEUE_H_

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bounded_queue.h"
#include "base/tenant_budget.h"
#include "millrace/v1/inference.pb.h"
#include "server/grpc/call_service.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/read_turns.h"
#include "server/guard/output_budget.h"

namespace millrace {

class GenerateQueue;
class GenerateStream;

// Streams that have something to write, handed over from any thread.
class StreamWakes {
 public:
  // Where to find a stream; null once it is gone. Read and written on the queue's thread only.
  struct Slot {
    GenerateStream* stream = nullptr;
    std::atomic<bool> queued = false;
  };

  explicit StreamWakes(grpc::CompletionQueue& queue) : queue_(&queue) {}

  // Has OnWake called on the queue's thread. Does nothing after Close.
  void Push(const std::shared_ptr<Slot>& slot);

 private:
  friend class GenerateQueue;

  // Called on the queue's thread, when the alarm has come.
  void Deliver();
  void Close();

  std::mutex mutex_;
  grpc::CompletionQueue* queue_;  // guarded by mutex_; null: closed
  grpc::Alarm alarm_;             // guarded by mutex_; is on its way if there are slots_
  std::vector<std::shared_ptr<Slot>> slots_;  // guarded by mutex_
  std::vector<std::shared_ptr<Slot>> batch_;  // the thread's own
};

// The method, of which a call is shown when its headers have come: a unary message would be read
// before (call_service.h).
class GenerateMethod final : public grpc::Service {
 public:
  GenerateMethod();
  ~GenerateMethod() override;

 private:
  friend class GenerateStream;
};

// gRPC's end of one call of Generate. It deletes itself when the call has ended. Everything runs on
// the thread of its queue, but Prepare and what MakeWake returns.
class GenerateStream {
 public:
  GenerateStream(const GenerateStream&) = delete;
  GenerateStream& operator=(const GenerateStream&) = delete;

 protected:
  GenerateStream();
  virtual ~GenerateStream();

  const grpc::ServerContextBase& context() const { return context_; }
  void AddTrailingMetadata(const char* key, const char* value);

  // Writes a response. One write runs at a time: the next may follow OnWriteDone. Returns
  // ResourceExhausted, and writes nothing, if it is large, and so many bytes wait for their clients
  // that it must not.
  absl::Status Write(const v1::GenerateResponse& response);
  // Writes the last response, with the same exception, and ends the call with OK.
  absl::Status WriteAndEnd(const v1::GenerateResponse& response);
  // Returns whether the stream may make its next response in parts, as one stream of a queue does
  // at a time, so that the parts of one alone take memory. If not, OnWake is called later.
  bool MayAddParts();
  // Adds to the response that Write writes next, whose fields follow those of the parts, as those
  // of merged messages do. OnWake is called when other streams had their turn.
  void AddPart(const v1::GenerateResponse& part);
  // Ends the call while no write runs.
  void End(const grpc::Status& status);

  // Counts tokens of an answer, and those of the prompt, which all answers have in common.
  void CountTokens(int64_t prompt, int64_t completion);

  // Returns a function that has OnWake called, from any thread, and may outlive the stream.
  std::function<void()> MakeWake() const;

  // Called first: returns the name of the tenant that makes the call (empty: none), or why it may
  // not be made. Only then its message is read.
  virtual absl::StatusOr<std::string> Admit() = 0;
  // Called next, once: reads the request. A large one is read on another thread, so that it holds
  // up no stream; OnCancel may be called meanwhile.
  virtual void Prepare(v1::GenerateRequest request) = 0;
  // Called when Prepare has returned, or was not called since the call is refused: begins to
  // answer.
  virtual void Begin(const absl::Status& refused) = 0;
  virtual void OnWake() = 0;
  // `ok`: false if the client is gone. Not called for the write that ends the call.
  virtual void OnWriteDone(bool ok) = 0;
  // Called if the client has left, or its deadline has passed, before the call's end.
  virtual void OnCancel() = 0;

 private:
  friend class GenerateQueue;
  friend class StreamWakes;

  enum class Event { kCall, kRead, kWritten, kEnded, kDone };
  struct Tag {
    GenerateStream* stream;
    Event event;
  };

  void Accept(GenerateQueue& queue);
  void OnEvent(Event event, bool ok);
  void OnCall(bool ok);
  void Read();
  void OnRead(bool ok);
  void ReadRequest();
  void OnSlot();
  void BeginOnce();
  void NoteEnd(const grpc::Status& status);
  absl::Status ChargeUnread(const grpc::ByteBuffer& message);
  // Returns the message of the parts and this last one.
  grpc::ByteBuffer TakeMessage(const v1::GenerateResponse& response);
  void EndParts();

  GenerateQueue* queue_ = nullptr;
  std::shared_ptr<StreamWakes::Slot> slot_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> call_{&context_};
  grpc::ByteBuffer request_;
  std::string payer_;                           // the tenant's name
  std::optional<TenantBudget::Share> message_;  // of the request, until the call has begun
  std::optional<OutputBudget::Share> unread_;   // of a large response that is being written
  std::vector<grpc::Slice> parts_;              // of the response that is being made
  Tag called_{this, Event::kCall};
  Tag read_{this, Event::kRead};
  Tag written_{this, Event::kWritten};
  Tag ended_{this, Event::kEnded};
  Tag done_{this, Event::kDone};
  std::chrono::steady_clock::time_point began_;
  std::optional<Caller> caller_;  // if the call's end is logged
  CallTokens tokens_;
  size_t large_bytes_ = 0;  // of the request, if it waits for the reader
  absl::Status refused_;    // what the request is refused with, for what it is
  std::atomic<bool> is_read_ = false;
  bool awaits_parts_ = false;  // is among the queue's that do
  bool has_begun_ = false;
  bool ending_ = false;                // its last operation has begun
  bool has_ended_ = false;             // and is complete
  std::atomic<bool> is_done_ = false;  // gRPC has said so
};

class GenerateQueue {
 public:
  using NewStream = std::function<GenerateStream*()>;

  // `method`, `log` and the budgets, of requests and of responses that are not read, outlive it.
  GenerateQueue(GenerateMethod& method, const CallLog& log,
                std::unique_ptr<grpc::ServerCompletionQueue> queue, TenantBudget& budget,
                OutputBudget& outputs, NewStream new_stream);
  GenerateQueue(const GenerateQueue&) = delete;
  GenerateQueue& operator=(const GenerateQueue&) = delete;
  ~GenerateQueue();

  // Begins to take calls. Call once the server has started.
  void Start();
  // Returns when nothing is on the queue. Call once the server has shut down, or before it started.
  void Stop();

 private:
  friend class GenerateStream;

  void Run();
  void ReadLargeRequests();
  void AcceptNext();
  // Begins to read the requests whose turn it is.
  void ReadWaiting();

  GenerateMethod& method_;
  const CallLog& log_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  TenantBudget& budget_;
  OutputBudget& outputs_;
  const MessageBounds bounds_;
  const NewStream new_stream_;
  const std::shared_ptr<StreamWakes> wakes_;
  std::unordered_set<GenerateStream*> streams_;  // the thread's
  BoundedQueue<GenerateStream*> large_;          // whose requests reader_ is to read
  ReadTurns<GenerateStream> turns_;              // the thread's: holds the requests in large_
  GenerateStream* adds_parts_ = nullptr;         // the thread's: the one stream that does
  std::vector<std::shared_ptr<StreamWakes::Slot>> await_parts_;  // the thread's: those that want to
  bool stops_ = false;                                           // Stop was called
  bool stopped_ = false;  // the thread's: nothing more may go on the queue
  grpc::Alarm stop_;
  std::thread reader_;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_GENERATE_QUEUE_H_
