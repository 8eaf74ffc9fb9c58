// One model being served: a scheduler, an executor and a text set, and the threads that join them.
#ifndef MILLRACE_ENGINE_ENGINE_H_
#define MILLRACE_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/metrics/engine_status.h"
#include "engine/request/request.h"
#include "engine/request/sampling_defaults.h"
#include "engine/served_model.h"
#include "executors/executor.h"

namespace millrace {

// The answer to one request: filled by the engine's threads, one after another, read by one
// endpoint. Thread-safe.
//
// Bounded: events of more than 1 MiB beside an echoed prompt, or of 30 s without a Next(), end the
// request (kTooSlow). The engine never waits for a reader.
class ResponseStream {
 public:
  ResponseStream() = default;
  ResponseStream(const ResponseStream&) = delete;
  ResponseStream& operator=(const ResponseStream&) = delete;
  virtual ~ResponseStream() = default;

  // Returns the next event, if one is ready. None follows the one that has `finish`.
  virtual std::optional<OutputEvent> Next() = 0;

  // Ends the request early; it still gets an event with `finish`. Dropping the last reference to an
  // unfinished stream cancels it with kClientGone.
  virtual void Cancel(CancelReason reason) = 0;
};

// A tokenizer's facts for clients that render or count by themselves (/tokenizer_info).
struct TokenizerInfo {
  std::optional<std::string> bos, eos, unknown, pad;  // the texts of special tokens
  std::string chat_template;                          // empty: none, or none that is served
  std::optional<Token> bos_id, pad_id;
  // A chat's prompt begins and ends with these, also where the template lacks them.
  std::optional<Token> chat_bos, chat_eos;
  std::string path;  // what it was read from, on this host: never shown to clients
};

struct EngineInfo {
  std::string model_name;
  std::string architecture;
  absl::Time created;
  int32_t max_model_len;
  int32_t vocab_size;
  int32_t block_size;
  int32_t num_blocks;  // that hold the context: StepLimits::context_blocks
  // Tokens that a sequence can have: max_model_len, or fewer for which the KV cache has room.
  int32_t longest_sequence;
  bool has_chat_template;
  bool batch_invariant;              // the same request gives the same bits whatever else runs
  int32_t tensor_parallel_size = 1;  // which the bits depend on, as on the next
  bool expert_parallel = false;
  SamplingDefaults sampling;     // for requests that do not say it
  std::string tool_parser;       // empty: calls are not found in answers
  std::string reasoning_parser;  // empty: reasoning is not
  int32_t embedding_size = 0;    // 0: the model generates; else it makes embeddings of this size
  // Set: a cross-encoder, which scores pairs of texts; embedding_size is then 1, its logit.
  std::optional<ScoreFunction> score = {};
  EmbeddingTraits embedding = {};
  TokenizerInfo tokenizer = {};
  int32_t max_num_seqs = 0;            // that run at once
  std::vector<Token> end_tokens = {};  // which end an answer
  StateLayout state = {};              // what a sequence owns on the device
  std::vector<int32_t> blocks_by_group = {};
};

struct TokenizeRequest {
  Prompt prompt;
  std::string_view field = "prompt";  // the endpoint's name of a text, for errors
  // The model's own frame around a text, a BOS for one. Unset: for a text yes; for a conversation
  // no, since its template writes it.
  std::optional<bool> add_special_tokens;
  bool return_token_strs = false;
  std::optional<absl::Time> deadline;
  std::shared_ptr<const Tenant> tenant;  // null: of none
  std::string_view suffix;  // not empty: the prompt asks for what is between its text and this
};

struct DetokenizeRequest {
  std::vector<Token> tokens;
  std::optional<absl::Time> deadline;
  std::shared_ptr<const Tenant> tenant;  // null: of none
  std::string_view field = "tokens";     // the endpoint's name of them, for errors
};

struct TokenizeResult {
  std::vector<Token> tokens;
  std::vector<std::string> token_strs;  // when asked for
};

class Engine : public ServedModel {
 public:
  virtual const EngineInfo& info() const = 0;

  const std::string& model_name() const override { return info().model_name; }
  Engine* language() override { return this; }

  // Starts generating, and returns a stream for each of the request's choices, in their order.
  //
  // Never blocks and never fails by itself: a request that is refused (InvalidArgument: bad fields,
  // or what can never fit; ResourceExhausted: --max-waiting, or too much text that waits;
  // Unavailable: draining or failed) gets streams whose only event carries the status. Text work
  // happens on the text pool.
  //
  // `ready` is called, from any thread and perhaps before Generate returns, each time a stream goes
  // from nothing to read to something to read. It must not block. A call that had begun may still
  // be running when the streams are dropped, so it captures weak or shared pointers; it is let go
  // after the last event.
  virtual std::vector<std::shared_ptr<ResponseStream>> Generate(GenerateRequest request,
                                                                std::function<void()> ready) = 0;

  // Computes the embeddings of the inputs, all or none. The request is admitted once, as one that
  // waits: what was accepted is finished by a drain, and not refused for want of capacity, but that
  // all of it may have to make room for a tenant that holds less (kEvicted). `done` is called once:
  // from a thread of the text pool if there are embeddings and it is not full, else from any,
  // perhaps before Embed returns. Errors as Generate's, and those of an input name it;
  // ResourceExhausted is also more embeddings at once than there is memory for (EngineOptions).
  //
  // Returns what gives the request up (kClientGone), at any time, also after its end.
  virtual std::function<void()> Embed(EmbedRequest request,
                                      std::function<void(absl::StatusOr<Embeddings>)> done) = 0;

  // Asks the engine thread for its status, which `done` gets, on that thread: it must not block.
  // Returns false, and never calls it, if several others wait for theirs, as when the device hangs.
  virtual bool Report(std::function<void(EngineStatus)> /*done*/) { return false; }

  // Run on the text pool, and count as a request and a stream of the tenant's, and with their
  // tokens. `done` is called once, from any thread, perhaps before the call returns.
  // InvalidArgument: no valid prompt, no token, or too large, also as an answer.
  // ResourceExhausted: beyond the tenant's limits, or too much text waits. DeadlineExceeded: the
  // deadline passed before it was the request's turn, or while a conversation was rendered.
  //
  // Return what gives the request up (kClientGone), at any time, also after its end.
  virtual std::function<void()> Tokenize(
      TokenizeRequest request, std::function<void(absl::StatusOr<TokenizeResult>)> done) = 0;
  virtual std::function<void()> Detokenize(
      DetokenizeRequest request, std::function<void(absl::StatusOr<std::string>)> done) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ENGINE_H_
