// An engine whose answers the test writes, and a server around it.
#ifndef MILLRACE_SERVER_HTTP_SCRIPTED_ENGINE_TEST_UTIL_H_
#define MILLRACE_SERVER_HTTP_SCRIPTED_ENGINE_TEST_UTIL_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/metrics/metrics.h"
#include "server/frontend.h"

namespace millrace {

// Events as the tests write them.
OutputEvent TextEvent(std::string text, std::vector<Token> tokens = {});
OutputEvent FinishEvent(FinishReason reason = FinishReason::kStop, std::string text = "");
OutputEvent ErrorEvent(absl::Status status);

class ScriptedStream : public ResponseStream {
 public:
  explicit ScriptedStream(std::function<void()> ready) : ready_(std::move(ready)) {}

  void Push(OutputEvent event);

  std::optional<OutputEvent> Next() override;
  void Cancel(CancelReason reason) override;

  std::optional<CancelReason> cancelled() const;
  // Blocks.
  CancelReason WaitCancelled();
  size_t unread() const;

 private:
  const std::function<void()> ready_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OutputEvent> events_;         // guarded by mutex_
  std::optional<CancelReason> cancelled_;  // guarded by mutex_
};

class ScriptedEngine : public Engine {
 public:
  using Script = std::function<void(const GenerateRequest&, ScriptedStream&)>;

  ScriptedEngine();

  // Runs inside Generate, for each choice. Without one, the test pushes events itself.
  void set_script(Script script) { script_ = std::move(script); }
  // Answers Embed, inside it. Without one, requests for embeddings wait for ever.
  using EmbedScript = std::function<absl::StatusOr<Embeddings>(const EmbedRequest&)>;
  void set_embed_script(EmbedScript script) { embed_script_ = std::move(script); }
  // Sets the size that info() gives; call before requests come.
  void set_embedding_size(int32_t size) { info_.embedding_size = size; }

  // The n-th choice's of all requests, once it is there (blocks). request() counts in the same way.
  std::shared_ptr<ScriptedStream> WaitStream(size_t n = 0);
  GenerateRequest request(size_t n = 0);
  size_t num_requests();

  // The last request for embeddings: once it is there, or has been given up (both block).
  EmbedRequest WaitEmbed();
  void WaitEmbedGivenUp();

  const EngineInfo& info() const override { return info_; }
  std::vector<std::shared_ptr<ResponseStream>> Generate(GenerateRequest request,
                                                        std::function<void()> ready) override;
  std::function<void()> Embed(EmbedRequest request,
                              std::function<void(absl::StatusOr<Embeddings>)> done) override;
  // Lets calls for text wait for ever; call before they come.
  void hold_texts() { holds_texts_ = true; }
  // Block until so many calls for text are there, and were given up.
  void WaitTexts(size_t count);
  void WaitTextsGivenUp(size_t count);

  // A token a byte.
  std::function<void()> Tokenize(TokenizeRequest request,
                                 std::function<void(absl::StatusOr<TokenizeResult>)> done) override;
  std::function<void()> Detokenize(DetokenizeRequest request,
                                   std::function<void(absl::StatusOr<std::string>)> done) override;
  Health health() const override { return Health::kServing; }
  void BeginDrain() override {}
  bool WaitIdle(SteadyTime) override { return true; }
  void CancelAll() override {}

 private:
  EngineInfo info_;
  Script script_;
  EmbedScript embed_script_;
  bool holds_texts_ = false;
  std::function<void()> HoldText();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GenerateRequest> requests_;  // guarded by mutex_: once for each of its choices
  std::vector<std::shared_ptr<ScriptedStream>> streams_;  // guarded by mutex_
  std::optional<EmbedRequest> embed_;                     // guarded by mutex_
  bool embed_given_up_ = false;                           // guarded by mutex_
  size_t texts_ = 0;                                      // guarded by mutex_
  size_t texts_given_up_ = 0;                             // guarded by mutex_
};

class ScriptedFrontend : public Frontend {
 public:
  explicit ScriptedFrontend(std::string key = "") : key_(std::move(key)) {}

  ScriptedEngine engine;
  std::atomic<bool> is_ready{true};
  std::atomic<bool> is_live{true};
  std::atomic<bool> is_draining{false};
  // Set them before the first request.
  std::shared_ptr<const Tenant> tenant;                             // of all but these:
  std::map<std::string, std::shared_ptr<const Tenant>> of_headers;  // by the Authorization

  absl::StatusOr<ServedModel*> Find(std::string_view model) const override;
  std::vector<ServedModel*> models() const override;
  bool ready() const override { return is_ready && !is_draining; }
  bool live() const override { return is_live; }
  bool draining() const override { return is_draining; }
  using Frontend::Authorize;
  absl::Status Authorize(const Credentials& shown, Scope scope,
                         std::shared_ptr<const Tenant>* tenant) const override;
  Metrics& metrics() override { return metrics_; }

 private:
  const std::string key_;
  Metrics metrics_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_SCRIPTED_ENGINE_TEST_UTIL_H_
