// The half of EngineImpl that takes requests in.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/engine_impl.h"
#include "server/text/detokenizer.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);

absl::Status Draining() {
  return WithRetryAfter(absl::UnavailableError("the server is draining"), absl::Seconds(1));
}

absl::Status Full(const char* what, int64_t limit) {
  return WithRetryAfter(absl::ResourceExhaustedError(
                            absl::StrCat(what, ": ", limit, " are waiting, the most allowed")),
                        absl::Seconds(1));
}

void LogPrompt(const std::string& id, const Tokenizer& tokenizer,
               const std::vector<Token>& prompt) {
  constexpr size_t kMostBytes = 1 << 16;
  kLog.ForRequest(id).Info(
      "prompt: ", Printable(Decode(tokenizer, prompt, /*skip_special=*/false), kMostBytes));
}

// A tokenizer may have tokens that the model does not: of pictures, say.
absl::Status CheckKnown(const std::vector<Token>& prompt, int32_t vocab_size) {
  const auto unknown =
      std::find_if(prompt.begin(), prompt.end(), [&](Token token) { return token >= vocab_size; });
  if (unknown == prompt.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("prompt has the token ", *unknown,
                                                 ", which the model does not know; allowed: 0 to ",
                                                 vocab_size - 1));
}

// A year ahead is as good as never, and far from what the clock's numbers can hold.
SteadyTime ToSteady(absl::Time time, SteadyTime now) {
  constexpr absl::Duration kYear = absl::Hours(24 * 365);
  const absl::Duration ahead = std::clamp(time - absl::Now(), -kYear, kYear);
  return now + absl::ToChronoNanoseconds(ahead);
}

}  // namespace

// What a door holds of a request.
class EngineImpl::Stream final : public ResponseStream {
 public:
  Stream(EngineImpl* engine, std::shared_ptr<LiveRequest> request)
      : engine_(engine), request_(std::move(request)) {}
  ~Stream() override {
    request_->buffer.Abandon();
    if (!request_->buffer.finished()) engine_->Cancel(request_, CancelReason::kClientGone);
  }

  std::optional<OutputEvent> Next() override { return request_->buffer.Next(); }
  void Cancel(CancelReason reason) override { engine_->Cancel(request_, reason); }

 private:
  EngineImpl* const engine_;
  const std::shared_ptr<LiveRequest> request_;
};

// ---- At the door ----

int32_t EngineImpl::NumNotRunning() const {
  const LoopGauges& gauges = loop_->gauges();
  return in_text_ + gauges.in_inbox + gauges.waiting;
}

// What the model is for, and what only embeddings have.
absl::Status EngineImpl::CheckEmbed(const GenerateRequest& request) const {
  const bool embeds = info_.embedding_size > 0;
  if (request.embed != embeds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model is \"", info_.model_name, "\", which ",
        embeds ? "does not support the Completions API nor the Chat Completions API, but makes "
                 "embeddings"
               : "does not support the Embeddings API, but generates"));
  }
  if (!request.truncate_prompt_tokens.has_value()) return absl::OkStatus();
  const int32_t asked = *request.truncate_prompt_tokens;
  const int32_t least = text_->tokenizer().text_frame().size() + 1;
  if (asked == -1 || (asked >= least && asked <= info_.max_model_len)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("truncate_prompt_tokens is ", asked,
                                                 "; allowed: -1, and ", least, " to ",
                                                 info_.max_model_len));
}

absl::Status EngineImpl::CheckFields(const GenerateRequest& request) const {
  MILLRACE_RETURN_IF_ERROR(CheckEmbed(request));
  MILLRACE_RETURN_IF_ERROR(ValidateRequest(
      request, std::min(text_->tokenizer().vocab_size(), defaults_.limits.vocab_size)));
  const auto* text = std::get_if<std::string>(&request.prompt);
  // What an encoder's token stands for has no longest: a word that it does not know is one.
  if (text == nullptr || request.embed) return absl::OkStatus();
  return text_->CheckLength(text->size(), defaults_.limits.max_model_len);
}

// `fields` is what CheckFields says; `num_alive` counts the request's own choices, too.
absl::Status EngineImpl::AdmitAtDoor(const GenerateRequest& request, const absl::Status& fields,
                                     size_t num_alive) {
  if (loop_->failed()) {
    return WithRetryAfter(absl::UnavailableError("the device has failed"), absl::Seconds(1));
  }
  if (draining_) return Draining();
  MILLRACE_RETURN_IF_ERROR(fields);
  // Those that the batch has room for do not wait in this sense, even while the next step is yet to
  // be planned.
  const int64_t most = int64_t{options_.max_waiting} + defaults_.limits.max_num_seqs;
  if (request.n > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.mean_logprob ? "best_of" : "n", " is ", request.n, "; allowed: 1 to ",
                     most, ", as many as run (--max-num-seqs) and wait (--max-waiting)"));
  }
  if (static_cast<int64_t>(num_alive) > most) {
    return Full("the queue is full", options_.max_waiting);
  }
  return absl::OkStatus();
}

EngineImpl::Choices EngineImpl::MakeChoices(GenerateRequest request,
                                            const std::function<void()>& ready) {
  // A number that is refused may be any.
  const auto n = static_cast<uint64_t>(std::clamp(request.n, 1, kMaxChoices));
  const uint64_t first_key = next_key_.fetch_add(n);
  Prompt prompt = std::exchange(request.prompt, Prompt());
  const auto prompt_counted = std::make_shared<std::atomic<bool>>(false);
  Choices choices;
  for (uint64_t i = 0; i < n; ++i) {
    GenerateRequest one = request;
    one.echo = request.echo && i == 0;
    if (n > 1) absl::StrAppend(&one.id, "-", i);
    choices.push_back(std::make_shared<LiveRequest>(clock_, std::move(one), ready));
    LiveRequest& live = *choices.back();
    live.key = first_key + i;
    live.choice = static_cast<uint32_t>(i);
    live.prompt_counted = prompt_counted;
    if (live.request.deadline.has_value()) {
      live.deadline = ToSteady(*live.request.deadline, clock_.Now());
    }
  }
  choices.front()->request.prompt = std::move(prompt);
  return choices;
}

std::vector<std::shared_ptr<ResponseStream>> EngineImpl::Generate(GenerateRequest request,
                                                                  std::function<void()> ready) {
  const absl::Status fields = CheckFields(request);
  if (!fields.ok()) {
    // As large as a message may be: too large to be copied for each choice.
    GenerateRequest refused;
    refused.id = std::move(request.id);
    refused.n = request.n;
    request = std::move(refused);
  }
  const Choices choices = MakeChoices(std::move(request), ready);
  ready = nullptr;  // the choices let it go when they end
  std::vector<std::shared_ptr<ResponseStream>> streams;
  for (const auto& live : choices) streams.push_back(std::make_shared<Stream>(this, live));
  size_t num_alive = 0;  // with these
  {
    std::lock_guard lock(live_mutex_);
    live_.insert(choices.begin(), choices.end());
    num_alive = live_.size();
  }
  in_text_ += static_cast<int32_t>(choices.size());
  absl::Status status = AdmitAtDoor(choices.front()->request, fields, num_alive);
  if (status.ok()) {
    const size_t bytes = PromptBytes(choices.front()->request.prompt);
    if (pool_->Submit(bytes, [this, choices] { Prepare(choices); })) {
      return streams;
    }
    status = Full("the queue is full", options_.max_waiting);
  }
  in_text_ -= static_cast<int32_t>(choices.size());
  Refuse(choices, status);
  return streams;
}

void EngineImpl::Refuse(const Choices& choices, const absl::Status& why) {
  if (choices.empty()) return;
  if (why.code() == absl::StatusCode::kResourceExhausted) {
    metrics_.OnReject(Rejection::kQueueFull);
  } else if (why.code() == absl::StatusCode::kUnavailable) {
    metrics_.OnReject(Rejection::kUnavailable);
  } else {
    metrics_.OnReject(Rejection::kInvalid);
  }
  for (const auto& request : choices) {
    OutputEvent last;
    last.finish.emplace();
    last.finish->reason = FinishReason::kError;
    last.finish->status = why;
    last.finish->usage.prompt_tokens = request->prompt_tokens;
    last.finish->timings.queue = absl::FromChrono(clock_.Now() - request->arrival);
    Deliver(request, std::move(last));
  }
}

void EngineImpl::Cancel(const std::shared_ptr<LiveRequest>& request, CancelReason reason) {
  if (request->SetCancelled(reason)) loop_->Cancel(request->key, CancelStatus(reason));
}

// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
uint64_t EngineImpl::DrawSeed() {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  uint64_t z = seed_state_.fetch_add(kGamma) + kGamma;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

OutputShard& EngineImpl::ShardOf(const LiveRequest& request) {
  return *shards_[request.key % shards_.size()];
}

// ---- On the text pool ----

void EngineImpl::Prepare(const Choices& choices) {
  for (const auto& request : choices) {
    request->answer.emplace(&text_->tokenizer(), &request->request);
  }
  const absl::Status status = Admit(choices);
  const SteadyTime now = clock_.Now();
  Choices refused;
  for (const auto& request : choices) {
    if (request->deadline.has_value() && now >= *request->deadline) {
      request->SetCancelled(CancelReason::kDeadline);
    }
    if (status.ok()) continue;
    if (const auto reason = request->cancelled()) {
      ShardOf(*request).DeliverEnd(request, EndReason::kCancelled, CancelStatus(*reason), now);
    } else {
      refused.push_back(request);
    }
  }
  Refuse(refused, status);
  in_text_ -= static_cast<int32_t>(choices.size());
}

// Hands the choices on. An error: nothing was done.
absl::Status EngineImpl::Admit(const Choices& choices) {
  LiveRequest& first = *choices.front();
  GenerateRequest& generate = first.request;
  const SteadyTime deadline = first.deadline.value_or(SteadyTime::max());
  if (clock_.Now() >= deadline) return CancelStatus(CancelReason::kDeadline);
  const bool wanted = std::any_of(choices.begin(), choices.end(),
                                  [](const auto& choice) { return !choice->cancelled(); });
  if (!wanted) return CancelStatus(*first.cancelled());

  const int32_t longest = defaults_.limits.max_model_len;
  MILLRACE_ASSIGN_OR_RETURN(
      std::vector<Token> prompt,
      text_->PromptTokens({.prompt = generate.prompt},
                          generate.embed ? Tokenizer::kMaxTextBytes : longest, deadline));
  if (const auto most = generate.truncate_prompt_tokens) {
    text_->Truncate(generate.prompt, *most == -1 ? longest : *most, &prompt);
  }
  for (const auto& choice : choices) choice->prompt_tokens = static_cast<int32_t>(prompt.size());
  if (prompt.empty()) return absl::InvalidArgumentError("prompt has no tokens");
  MILLRACE_RETURN_IF_ERROR(CheckKnown(prompt, defaults_.limits.vocab_size));
  if (options_.log_prompts) LogPrompt(generate.id, text_->tokenizer(), prompt);
  if (!generate.seed.has_value()) generate.seed = DrawSeed();
  if (generate.echo) first.prompt = prompt;
  MILLRACE_ASSIGN_OR_RETURN(SequenceRequest sequence,
                            MakeSequence(generate, std::move(prompt), defaults_));
  // A text may be long, and only an echo needs it again.
  if (!generate.echo) generate.prompt.emplace<std::string>();
  sequence.prompt_group = choices.size() > 1 ? first.key : 0;
  std::vector<SequenceRequest> others;
  for (size_t i = 1; i < choices.size(); ++i) {
    others.push_back(MakeChoice(sequence, choices[i]->choice));
  }
  AdmitChoice(choices.front(), std::move(sequence));
  for (size_t i = 1; i < choices.size(); ++i) AdmitChoice(choices[i], std::move(others[i - 1]));
  return absl::OkStatus();
}

void EngineImpl::AdmitChoice(const std::shared_ptr<LiveRequest>& request,
                             SequenceRequest sequence) {
  if (NeedsNoModel(sequence) && !request->request.embed) {
    ShardOf(*request).DeliverEnd(request, EndReason::kLength, absl::OkStatus(), clock_.Now());
    return;
  }
  sequence.id = request->key;
  sequence.arrival = request->arrival;
  loop_->Admit({request, std::move(sequence)});
}

void EngineImpl::Tokenize(TokenizeRequest request,
                          std::function<void(absl::StatusOr<TokenizeResult>)> done) {
  const size_t bytes = PromptBytes(request.prompt);
  auto work = [this, request = std::move(request), done] {
    absl::StatusOr<std::vector<Token>> tokens =
        text_->PromptTokens(request, Tokenizer::kMaxTextBytes, SteadyTime::max());
    if (!tokens.ok()) return done(tokens.status());
    TokenizeResult result{.tokens = *std::move(tokens)};
    if (request.return_token_strs) {
      for (Token token : result.tokens) {
        result.token_strs.emplace_back(text_->tokenizer().TokenBytes(token));
      }
    }
    done(std::move(result));
  };
  if (!pool_->Submit(bytes, std::move(work))) done(Full("too many requests", kMaxTextCalls));
}

void EngineImpl::Detokenize(std::vector<Token> tokens,
                            std::function<void(absl::StatusOr<std::string>)> done) {
  const size_t bytes = tokens.size() * sizeof(Token);
  auto work = [this, tokens = std::move(tokens), done] {
    const int32_t vocab_size = text_->tokenizer().vocab_size();
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size) {
        return done(absl::InvalidArgumentError(
            absl::StrCat("tokens[", i, "] is ", tokens[i], "; allowed: 0 to ", vocab_size - 1)));
      }
    }
    done(Decode(text_->tokenizer(), tokens, /*skip_special=*/false));
  };
  if (!pool_->Submit(bytes, std::move(work))) done(Full("too many requests", kMaxTextCalls));
}

}  // namespace millrace
