#include "server/http/scripted_engine_test_util.h"

#include <utility>

#include "base/strings.h"

namespace millrace {

OutputEvent TextEvent(std::string text, std::vector<Token> tokens) {
  if (tokens.empty()) tokens.assign(text.begin(), text.end());
  return {.text = std::move(text), .tokens = {tokens.begin(), tokens.end()}};
}

OutputEvent FinishEvent(FinishReason reason, std::string text) {
  OutputEvent event = TextEvent(std::move(text));
  event.finish = Finish{.reason = reason,
                        .usage = {.prompt_tokens = 7, .completion_tokens = 3, .cached_tokens = 4}};
  return event;
}

OutputEvent ErrorEvent(absl::Status status) {
  OutputEvent event;
  event.finish = Finish{.reason = FinishReason::kError, .status = std::move(status)};
  return event;
}

void ScriptedStream::Push(OutputEvent event) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = events_.empty();
    events_.push_back(std::move(event));
  }
  if (was_empty) ready_();
}

std::optional<OutputEvent> ScriptedStream::Next() {
  std::lock_guard lock(mutex_);
  if (events_.empty()) return std::nullopt;
  OutputEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void ScriptedStream::Cancel(CancelReason reason) {
  std::lock_guard lock(mutex_);
  cancelled_ = reason;
  changed_.notify_all();
}

std::optional<CancelReason> ScriptedStream::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

CancelReason ScriptedStream::WaitCancelled() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return cancelled_.has_value(); });
  return *cancelled_;
}

size_t ScriptedStream::unread() const {
  std::lock_guard lock(mutex_);
  return events_.size();
}

ScriptedEngine::ScriptedEngine()
    : info_{.model_name = "scripted",
            .architecture = "llama",
            .created = absl::FromUnixSeconds(1700000000),
            .max_model_len = 2048,
            .vocab_size = 256,
            .block_size = 16,
            .num_blocks = 100,
            .has_chat_template = true,
            .batch_invariant = true,
            .state = {.block_size = 16,
                      .groups = {PagedState{.block_bytes = 4096},
                                 PagedState{.block_bytes = 2048, .window = 128}}},
            .blocks_by_group = {100, 20}} {}

std::shared_ptr<ScriptedStream> ScriptedEngine::WaitStream(size_t n) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, n] { return streams_.size() > n; });
  return streams_[n];
}

GenerateRequest ScriptedEngine::request(size_t n) {
  WaitStream(n);
  std::lock_guard lock(mutex_);
  return requests_[n];
}

size_t ScriptedEngine::num_requests() {
  std::lock_guard lock(mutex_);
  return requests_.size();
}

std::vector<std::shared_ptr<ResponseStream>> ScriptedEngine::Generate(GenerateRequest request,
                                                                      std::function<void()> ready) {
  std::vector<std::shared_ptr<ResponseStream>> streams;
  const absl::Status status = ValidateRequest(request, info_.vocab_size);
  const int32_t n = request.n;
  for (int32_t i = 0; i < n; ++i) {
    auto stream = std::make_shared<ScriptedStream>(ready);
    if (!status.ok()) {
      stream->Push(ErrorEvent(status));
    } else if (script_) {
      script_(request, *stream);
    }
    std::lock_guard lock(mutex_);
    requests_.push_back(request);
    request.echo =
        false;  // The first choice's stream alone brings the prompt, as the engine's does.
    streams_.push_back(stream);
    changed_.notify_all();
    streams.push_back(std::move(stream));
  }
  return streams;
}

std::function<void()> ScriptedEngine::Embed(EmbedRequest request,
                                            std::function<void(absl::StatusOr<Embeddings>)> done) {
  {
    std::lock_guard lock(mutex_);
    embed_ = request;
    changed_.notify_all();
  }
  if (embed_script_) done(embed_script_(request));
  return [this] {
    std::lock_guard lock(mutex_);
    embed_given_up_ = true;
    changed_.notify_all();
  };
}

EmbedRequest ScriptedEngine::WaitEmbed() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return embed_.has_value(); });
  return *embed_;
}

void ScriptedEngine::WaitEmbedGivenUp() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return embed_given_up_; });
}

std::function<void()> ScriptedEngine::HoldText() {
  const std::lock_guard lock(mutex_);
  ++texts_;
  changed_.notify_all();
  return [this] {
    const std::lock_guard lock(mutex_);
    ++texts_given_up_;
    changed_.notify_all();
  };
}

void ScriptedEngine::WaitTexts(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return texts_ >= count; });
}

void ScriptedEngine::WaitTextsGivenUp(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return texts_given_up_ >= count; });
}

std::function<void()> ScriptedEngine::Tokenize(
    TokenizeRequest request, std::function<void(absl::StatusOr<TokenizeResult>)> done) {
  if (holds_texts_) return HoldText();
  const auto* text = std::get_if<std::string>(&request.prompt);
  if (text == nullptr) {
    done(absl::InvalidArgumentError("messages is not for this test"));
    return [] {};
  }
  TokenizeResult result;
  for (unsigned char c : *text) {
    result.tokens.push_back(c);
    if (request.return_token_strs) result.token_strs.emplace_back(1, static_cast<char>(c));
  }
  done(std::move(result));
  return [] {};
}

std::function<void()> ScriptedEngine::Detokenize(
    DetokenizeRequest request, std::function<void(absl::StatusOr<std::string>)> done) {
  if (holds_texts_) return HoldText();
  done(std::string(request.tokens.begin(), request.tokens.end()));
  return [] {};
}

absl::StatusOr<ServedModel*> ScriptedFrontend::Find(std::string_view model) const {
  if (!model.empty() && model != engine.info().model_name) {
    return absl::NotFoundError(StrCat("the model \"", model, "\" does not exist"));
  }
  return models().front();
}

std::vector<ServedModel*> ScriptedFrontend::models() const {
  return {const_cast<ScriptedEngine*>(&engine)};
}

absl::Status ScriptedFrontend::Authorize(const Credentials& shown, Scope,
                                         std::shared_ptr<const Tenant>* of) const {
  if (of != nullptr) {
    const auto found = of_headers.find(std::string(shown.authorization));
    *of = found == of_headers.end() ? tenant : found->second;
  }
  if (key_.empty() || shown.authorization == StrCat("Bearer ", key_)) return absl::OkStatus();
  return absl::UnauthenticatedError("a valid API key is needed");
}

}  // namespace millrace
