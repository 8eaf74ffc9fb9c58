// One request to /v1/completions or /v1/chat/completions being answered.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_GENERATION_H_
#define MILLRACE_SERVER_HTTP_OPENAI_GENERATION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http/api/http_message.h"
#include "server/http/openai/custom_tools.h"
#include "server/http/openai/logprobs_writer.h"
#include "server/http/openai/openai_request.h"
#include "server/http/openai/openai_response.h"

namespace millrace {

// Hands its prompts to the engine and turns their events into an answer: whole, or one server-sent
// event for each event that has something to show. A refusal that comes before the first chunk is
// an answer with its own status; an error after it is the last event of the stream.
//
// A stream of several prompts begins when all were taken in, so that one that is refused refuses
// the request. What the others get meanwhile is kept here, as of a whole answer.
//
// The prompt's echo comes with its first choice and is shown in each, one after another; the others
// wait for it.
//
// Takes events only when polled: an unread stream stays in the engine's bounded buffers.
// Destroying it cancels what is unfinished (kClientGone).
class Generation : public Answer {
 public:
  // `id`: "cmpl-…" or "chatcmpl-…". Of several prompts, each runs under the id with "-<index>".
  Generation(ApiRequest request, const std::string& id, Engine& engine, const Wake& wake);
  ~Generation() override;

  State Poll(HttpResponse& response, std::string& body) override;
  bool Ping(HttpResponse& response, std::string& body) override;
  std::optional<UsedTokens> tokens() const override;

 private:
  struct Choice {
    std::shared_ptr<ResponseStream> stream;
    LogprobsWriter logprobs;
    ChoicePart part;       // what has come: all of it, or what waits for the next chunk
    Usage usage;           // so far: tokens of the prompt and of what has come
    bool awaited = false;  // a first choice whose prompt was not taken in yet; see joint_output
    bool has_logprobs = false;                // it has some that no chunk has shown
    bool first = true;                        // no chunk has been sent
    bool called = false;                      // it has calls
    ArgumentTexts texts;                      // of the calls of custom tools
    std::shared_ptr<const OutputEvent> echo;  // of the prompt, until it has been shown
    size_t echo_details = 0;                  // of it, that have been taken in
    bool echoed = false;
    std::optional<Finish> finish;
  };

  // Appends what has come to the body, or answers with a response of its own.
  State Collect(HttpResponse& response, std::string& body);
  // Takes an event of a choice. Returns false if the answer has ended in an error, with `state`
  // set.
  bool Take(size_t index, OutputEvent event, HttpResponse& response, std::string& body,
            State& state);
  void TakeEcho(size_t index, OutputEvent event);
  // Returns false if there is more of it than fits one turn.
  bool ShowEcho(size_t index, std::string& body);
  bool AwaitsEcho(size_t index) const;
  void Admit(std::string& body);
  void AppendChunk(size_t index, std::string& body);
  State Fail(const Choice& choice, HttpResponse& response, std::string& body);
  State Complete(HttpResponse& response, std::string& body);
  std::vector<size_t> Best(size_t prompt) const;
  size_t candidates() const { return static_cast<size_t>(request_.options.n); }
  Usage TotalUsage() const;

  // One poll appends about this much at most, so that one fast stream does not hold up the others.
  static constexpr size_t kMaxBodyBytes = 256 << 10;

  // The log-probabilities of so many tokens of a prompt are taken in at a time. Then the other
  // connections of the thread have their turn.
  static constexpr size_t kDetailsPerTurn = 256;

  ApiRequest request_;
  const Wake wake_;
  const AnswerWriter writer_;
  std::vector<Choice> choices_;  // of each prompt, its candidates
  size_t unfinished_;
  size_t num_awaited_ = 0;  // prompts
  bool begun_ = false;      // the stream's header is out
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_GENERATION_H_
