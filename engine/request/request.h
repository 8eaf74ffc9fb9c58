// Requests and their results, as both endpoints (HTTP and gRPC) build and read them.
#ifndef MILLRACE_ENGINE_REQUEST_REQUEST_H_
#define MILLRACE_ENGINE_REQUEST_REQUEST_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request/request_fields.h"
#include "engine/request/trace.h"
#include "plan/sampling_params.h"
#include "text/grammar/grammar.h"
#include "text/tools/output_parser.h"

namespace millrace {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON
};

class Tenant;

// A turn of a conversation. Roles: system, developer, user, assistant, tool.
struct ChatMessage {
  std::string role;
  std::string content;
  std::string name;                  // may be empty
  std::vector<ToolCall> tool_calls;  // of the assistant
  std::string reasoning;             // of the assistant
  std::string tool_call_id;          // of a tool's result
  // The bytes of the parts that the content came in, if these were several; it has line feeds
  // between them.
  std::vector<size_t> part_sizes;
};

// The only argument of a tool that takes a text.
inline constexpr std::string_view kTextArgument = "input";
// The tools that take a text, by name, with the grammar that the text is held to.
using TextTools = std::map<std::string, std::optional<GrammarSpec>>;

// A conversation, and how the model's chat template renders it. The fields are vLLM's.
struct Chat {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;    // ends with the header of the answer
  bool continue_final_message = false;  // or inside the last message, which the answer goes on with
  std::string template_kwargs;          // a JSON object of the template's own variables, or empty
  std::string tools;                    // a JSON list of OpenAI's functions, or empty
  TextTools text_tools;                 // of the tools, those that take kTextArgument alone
  // The answer is split at its tool calls, as the model writes them.
  bool parse_tools = false;
  // The answer begins with a call of this tool, or of any if it is empty. The call's beginning
  // becomes a part of the prompt.
  std::optional<std::string> forced_tool;
  std::string reasoning_effort;  // empty: the template's own
};

using Prompt = std::variant<std::string,         // text, tokenized with special tokens added
                            std::vector<Token>,  // taken as it is
                            Chat>;

// An answer is evicted only as long as nothing of it has gone out.
enum class OutputState { kNone, kSent, kEvicted };

// A request to complete a prompt, with one or more choices. Its numbers and switches are those of
// RequestFields; the other fields have the names, defaults and meaning of vLLM's. ValidateRequest
// checks ranges for both endpoints.
struct GenerateRequest : RequestFields {
  std::string id;  // "cmpl-…", "chatcmpl-…": on every log line and in the answer
  Prompt prompt;

  std::optional<int32_t> max_tokens;  // unset: default_max_tokens, and at most as many as fit
  // The bound that the model's authors suggest; unset: none.
  std::optional<int32_t> default_max_tokens;
  std::vector<LogitBias> logit_bias;
  std::optional<uint64_t> seed;  // unset: drawn by the engine

  // The number of choices. Each is sampled with the request's seed and its own index, so a choice
  // is the same whatever n is. The prompt is prefilled once.
  int32_t n = 1;

  std::vector<std::string> stop;
  std::vector<Token> stop_token_ids;

  bool parse_reasoning = false;     // OutputEvent::reasoning has what the model thinks
  bool parallel_tool_calls = true;  // false: the answer ends with its first call

  std::optional<int32_t> logprobs;  // with each token its log-probability and this many likeliest
  bool mean_logprob = false;        // Finish::mean_logprob is wanted
  bool echo = false;  // the prompt comes first, with its log-probabilities if asked: once, in the
                      // first choice's stream

  // Not null where the answers to several prompts are one stream, and one of all of them: none is
  // evicted once something of another was sent, and OutputEvent::admitted is wanted.
  std::shared_ptr<std::atomic<OutputState>> joint_output;

  // The endpoint's name of thinking_token_budget.
  std::string_view budget_field = "thinking_token_budget";

  // Not empty: the answer is what is between the prompt, a text or tokens, and this text.
  std::string suffix;

  // The client expects the answer to be this text. Where it is, the answer comes faster; the answer
  // itself does not change. Empty: the client expects nothing.
  std::string prediction;

  // Only these tokens are sampled; unset: all.
  std::optional<std::vector<Token>> allowed_token_ids;
  // Texts that the answer does not write with the tokens of their own (token_bounds.h).
  std::vector<std::string> bad_words;

  // The prompt is a conversation that the client has rendered itself: what the model thinks may
  // come before the answer, as in a Chat.
  bool is_rendered_chat = false;

  // The grammar of the answer without what the model thinks before it, and the endpoint's name of
  // the field that sets it.
  std::optional<GrammarSpec> grammar;
  std::string grammar_field;

  std::optional<absl::Time> deadline;
  std::shared_ptr<const Tenant> tenant;  // null: of none
  std::optional<TraceContext> trace;     // the caller's
};

inline constexpr size_t kMaxEmbeddingInputs = 2048;  // of one request, as OpenAI has it

// The embeddings of some inputs, by a model that makes embeddings.
struct EmbedRequest {
  std::string id;                    // "embd-…"
  std::vector<Prompt> inputs;        // texts and tokens; at least one
  std::string_view field = "input";  // the endpoint's name of them, for errors

  // Empty, or for each input, a text, the text before it: a cross-encoder scores such pairs.
  // Consecutive pairs may share a text, which is then encoded once.
  std::vector<std::shared_ptr<const std::string>> first_texts;
  // The first `num_before` inputs are named `field_before` in errors, and counted apart.
  size_t num_before = 0;
  std::string_view field_before;

  // Cuts an input of more tokens to its first ones; the closing part of a text's frame stays. -1:
  // to as many as the model takes. Unset: an input that does not fit is refused.
  std::optional<int32_t> truncate_prompt_tokens;

  // The numbers of each embedding, the first ones of the model's. Unset: all.
  std::optional<int32_t> dimensions;

  int32_t priority = 0;  // lower first
  std::optional<absl::Time> deadline;
  std::shared_ptr<const Tenant> tenant;  // null: of none
  std::optional<TraceContext> trace;     // the caller's

  // Returns "input[3]", or "input" if it is the only one.
  std::string Name(size_t input) const;
};

struct Embeddings {
  int32_t size = 0;           // of each
  std::vector<float> values;  // [inputs, size], in the order of the inputs
  int64_t prompt_tokens = 0;  // of all inputs
};

inline constexpr int64_t kMaxTimeoutMs = int64_t{24} * 60 * 60 * 1000;
inline constexpr int32_t kMaxChoices = 128;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr size_t kMaxBadWords = 1024;
inline constexpr size_t kMaxBadWordBytes = 1024;

// Return InvalidArgument naming the field, what came and what is allowed. Whether the prompt fits
// is checked later, once its tokens are known.
absl::Status ValidateTokens(std::string_view field, const std::vector<Token>& tokens,
                            int32_t vocab_size);
absl::Status ValidatePrompt(std::string_view field, const Prompt& prompt, int32_t vocab_size);
absl::Status ValidateRequest(const GenerateRequest& request, int32_t vocab_size);

// Adds when to try again, which HTTP sends as Retry-After and gRPC as retry-after in the trailing
// metadata, both in RetrySeconds.
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);
std::optional<absl::Duration> RetryAfter(const absl::Status& status);
// Returns the delay in whole seconds, rounded up, at least one.
int64_t RetrySeconds(absl::Duration delay);

// Returns ResourceExhausted, "the queue is full: <why>"; clients may retry after a second.
absl::Status QueueFull(std::string_view why);

struct TokenAlternative {
  Token token;
  std::string bytes;  // the token's own bytes, which may be part of a character
  float logprob;
};

struct TokenDetail {
  Token token;
  std::string bytes;
  bool shown = true;  // false: the bytes are left out of the text, as a special token's may be
  std::optional<float> logprob;  // unset for the first token of an echoed prompt
  int32_t rank = 0;
  std::vector<TokenAlternative> top;  // likeliest first
};

// The tokens of GenerateRequest::prediction that the answer has, and the others.
struct PredictedTokens {
  int32_t accepted = 0;
  int32_t rejected = 0;
};

struct Usage {
  int32_t prompt_tokens = 0;  // every choice says so, although the prompt was worked through once
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;     // of the prompt's, found in the prefix cache by the first choice
  int32_t reasoning_tokens = 0;  // of completion_tokens; 0 if reasoning is not parsed
  std::optional<PredictedTokens> predicted = {};  // set where there was a prediction
};

struct Timings {
  absl::Duration queue;    // from arrival to the first step that ran some of it
  absl::Duration prefill;  // from there to the first token
  absl::Duration decode;   // from there to the last token
};

enum class FinishReason { kStop, kLength, kCancelled, kError };
std::string_view Name(FinishReason reason);  // "stop", "length", "cancelled", "error"

struct Finish {
  FinishReason reason = FinishReason::kStop;
  absl::Status status;  // not OK exactly for kCancelled and kError; fit to be shown to the client
  std::variant<std::monostate, Token, std::string> stopped_by;  // the stop token or stop string
  std::optional<double> mean_logprob;  // of the tokens that were generated, if there are any
  Usage usage;
  Timings timings;
};

// The text and tokens that one step added to the answer, or its end. `text` is whole characters;
// all texts together are the answer. `tokens` has every token that the client pays for, also those
// whose text is held back for now (half a character, the beginning of a stop string).
struct OutputEvent {
  bool admitted = false;             // it is the sequence's turn or waits for it, and no more: the
                                     // first choice's first event, if asked
  bool echo = false;                 // this is the prompt, not the answer; at most one, the first
  std::string text;                  // without what the next two have
  std::string reasoning;             // comes before this event's text
  std::vector<ToolCallDelta> calls;  // come after it
  absl::InlinedVector<Token, 4> tokens;
  int32_t prompt_tokens = 0;         // length of the prompt; in every event that has tokens
  std::vector<TokenDetail> details;  // one for each of `tokens`, when logprobs are asked for
  std::optional<Finish> finish;      // set in the last event, and only there
};

// Why a request was ended by other means than its own.
enum class CancelReason {
  kClientGone,
  kTooSlow,
  kDeadline,
  kDrain,
  kEvicted,      // to make room for a tenant that holds less of the queue
  kBatchFailed,  // another input of the same request has failed
};

// gRPC counts a call's deadline in whole milliseconds, on both sides: a client may go, or a call
// end, so much before the deadline is reached here.
inline constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(10);

// Returns the status of a request that was ended so, fit to be shown to the client.
absl::Status CancelStatus(CancelReason reason);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_REQUEST_H_
