// An answer of one choice as a list of blocks, for the protocols that have it so: Anthropic's
// messages and OpenAI's responses.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_BLOCK_ANSWER_H_
#define MILLRACE_SERVER_HTTP_OPENAI_BLOCK_ANSWER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/http/api/http_message.h"
#include "server/http/openai/custom_tools.h"
#include "server/http/openai/openai_request.h"

namespace millrace {

struct AnswerBlock {
  enum class Kind { kReasoning, kText, kCall } kind;
  size_t index;          // among the blocks
  std::string text;      // of a call its arguments
  std::string name;      // of a call
  std::string id;        // of a call
  bool is_text = false;  // of a call: `text` is not JSON
};

// Puts the protocol's name of a field in the place of the one that a chat has, by which the engine
// knows it.
void RenameField(std::string_view chat_name, std::string_view name, ApiError& error);

// Runs one request and tells the derived class what comes, in order: Begin; for each block Open,
// Delta's and Close; End. A class appends to `body` what a stream shows of it. Of an answer that is
// not streamed only Whole's result is sent.
//
// As Generation: takes events only when polled, and cancels what is unfinished when destroyed.
class BlockAnswer : public Answer {
 public:
  // `request` has one prompt, and one choice.
  BlockAnswer(ApiRequest request, std::string id, Engine& engine, const Wake& wake);
  ~BlockAnswer() override;

  State Poll(HttpResponse& response, std::string& body) override;
  bool Ping(HttpResponse& response, std::string& body) override;
  std::optional<UsedTokens> tokens() const override;

 protected:
  // Returns what the protocol's ids of calls begin with, but for those that the model itself gave.
  virtual std::string_view call_id_prefix() const = 0;
  virtual void Begin(std::string& body) = 0;
  virtual void Open(const AnswerBlock& block, std::string& body) = 0;
  virtual void Delta(const AnswerBlock& block, std::string_view text, std::string& body) = 0;
  // `complete`: the block was not cut off by the answer's end.
  virtual void Close(const AnswerBlock& block, bool complete, std::string& body) = 0;
  // `finish` is not an error.
  virtual void End(const Finish& finish, std::string& body) = 0;
  virtual std::shared_ptr<const SharedBody> Whole(const Finish& finish) = 0;
  // The request has failed: before the stream's header was sent, and after Begin.
  virtual HttpResponse Refusal(const ApiError& error) = 0;
  virtual void Break(const ApiError& error, std::string& body) = 0;

  const ApiRequest& request() const { return request_; }
  const std::string& id() const { return id_; }
  const std::string& model() const { return model_; }
  int64_t created() const { return created_; }
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  // Known from the first event on.
  int32_t prompt_tokens() const { return prompt_tokens_; }
  bool called() const;

 private:
  // Sends a stream's header and its first events, unless that is done.
  void BeginOnce(HttpResponse& response, std::string& body);
  void Take(OutputEvent event, std::string& body);
  void TakeCalls(std::vector<ToolCallDelta> calls, std::string& body);
  void Add(AnswerBlock::Kind kind, std::string_view text, std::string& body);
  void CloseLast(bool complete, std::string& body);

  ApiRequest request_;
  const std::string id_;
  const std::string model_;
  const int64_t created_;
  std::shared_ptr<ResponseStream> stream_;
  ArgumentTexts texts_;
  std::vector<AnswerBlock> blocks_;
  bool open_ = false;         // the last block
  bool header_sent_ = false;  // of a stream
  bool begun_ = false;
  bool finished_ = false;
  int32_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_BLOCK_ANSWER_H_
