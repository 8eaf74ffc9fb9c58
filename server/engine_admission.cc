// The half of EngineImpl that takes requests in.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/engine_impl.h"
#include "server/text/detokenizer.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);

constexpr size_t kMaxTokenStrs = 1 << 20;  // some 32 bytes each, however short

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

absl::Status EngineImpl::CheckTakesWork() const {
  if (loop_->failed()) {
    return WithRetryAfter(absl::UnavailableError("the device has failed"), absl::Seconds(1));
  }
  if (!draining_) return absl::OkStatus();
  return WithRetryAfter(absl::UnavailableError("the server is draining"), absl::Seconds(1));
}

// Those that the batch has room for do not wait in the sense of --max-waiting, even while the next
// step is yet to be planned.
int64_t EngineImpl::MostAlive() const {
  return int64_t{options_.max_waiting} + defaults_.limits.max_num_seqs;
}

absl::Status EngineImpl::CheckRoom(int64_t num_alive) const {
  if (num_alive <= MostAlive()) return absl::OkStatus();
  return QueueFull(StrCat(options_.max_waiting, " are waiting, the most allowed"));
}

absl::Status EngineImpl::CheckFields(const GenerateRequest& request) const {
  if (info_.embedding_size > 0) {
    return absl::InvalidArgumentError(StrCat(
        "model is \"", info_.model_name,
        "\", which does not support the Completions API nor the Chat Completions API, but makes "
        "embeddings"));
  }
  MILLRACE_RETURN_IF_ERROR(ValidateRequest(
      request, std::min(text_->tokenizer().vocab_size(), defaults_.limits.vocab_size)));
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    MILLRACE_RETURN_IF_ERROR(text_->CheckLength(text->size(), defaults_.limits.max_model_len));
  }
  return CheckPromptBytes("prompt", request.prompt);
}

// `fields` is what CheckFields says; `num_alive` counts the request's own choices, too.
absl::Status EngineImpl::AdmitAtDoor(const GenerateRequest& request, const absl::Status& fields,
                                     int64_t num_alive) {
  MILLRACE_RETURN_IF_ERROR(CheckTakesWork());
  MILLRACE_RETURN_IF_ERROR(fields);
  const int64_t most = MostAlive();
  if (request.n > most) {
    return absl::InvalidArgumentError(
        StrCat(request.mean_logprob ? "best_of" : "n", " is ", request.n, "; allowed: 1 to ", most,
               ", as many as run (--max-num-seqs) and wait (--max-waiting)"));
  }
  return CheckRoom(num_alive);
}

// A year ahead is as good as never, and far from what the clock's numbers can hold.
std::optional<SteadyTime> EngineImpl::ToSteady(std::optional<absl::Time> time) const {
  if (!time.has_value()) return std::nullopt;
  constexpr absl::Duration kYear = absl::Hours(24 * 365);
  const absl::Duration ahead = std::clamp(*time - absl::Now(), -kYear, kYear);
  return clock_.Now() + absl::ToChronoNanoseconds(ahead);
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
    live.deadline = ToSteady(live.request.deadline);
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
  int64_t num_alive = 0;  // with these
  {
    std::lock_guard lock(live_mutex_);
    live_.insert(choices.begin(), choices.end());
    num_alive = num_alive_ += static_cast<int64_t>(choices.size());
  }
  in_text_ += static_cast<int32_t>(choices.size());
  absl::Status status = AdmitAtDoor(choices.front()->request, fields, num_alive);
  if (status.ok()) {
    const size_t bytes = PromptBytes(choices.front()->request.prompt);
    status = pool_->Submit(bytes, [this, choices] { Prepare(choices); });
    if (status.ok()) return streams;
  }
  LeaveText(choices.size());
  Refuse(choices, status);
  return streams;
}

// Says so in the metrics, too: they are told by the engine thread.
void EngineImpl::LeaveText(size_t requests) {
  in_text_ -= static_cast<int32_t>(requests);
  loop_->Wake();
}

void EngineImpl::CountRefusal(const absl::Status& why) {
  if (why.code() == absl::StatusCode::kResourceExhausted) {
    metrics_.OnReject(Rejection::kQueueFull);
  } else if (why.code() == absl::StatusCode::kUnavailable) {
    metrics_.OnReject(Rejection::kUnavailable);
  } else {
    metrics_.OnReject(Rejection::kInvalid);
  }
}

void EngineImpl::Refuse(const Choices& choices, const absl::Status& why) {
  if (choices.empty()) return;
  CountRefusal(why);
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
  LeaveText(choices.size());
  Refuse(refused, status);
}

void EngineImpl::LogPrompt(const std::string& id, const std::vector<Token>& prompt) const {
  constexpr size_t kMostBytes = 1 << 16;
  kLog.ForRequest(id).Info(
      "prompt: ",
      Printable(Decode(text_->tokenizer(), prompt, /*skip_special=*/false), kMostBytes));
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

  MILLRACE_ASSIGN_OR_RETURN(
      std::vector<Token> prompt,
      text_->PromptTokens({.prompt = generate.prompt}, defaults_.limits.max_model_len, deadline));
  for (const auto& choice : choices) choice->prompt_tokens = static_cast<int32_t>(prompt.size());
  if (prompt.empty()) return absl::InvalidArgumentError("prompt has no tokens");
  MILLRACE_RETURN_IF_ERROR(CheckKnown("prompt", prompt, defaults_.limits.vocab_size));
  if (options_.log_prompts) LogPrompt(generate.id, prompt);
  if (!generate.seed.has_value()) generate.seed = DrawSeed();
  if (generate.echo) first.prompt = prompt;
  MILLRACE_ASSIGN_OR_RETURN(SequenceRequest sequence,
                            MakeSequence(generate, std::move(prompt), defaults_));
  // A text may be long, and only an echo needs it again.
  if (!generate.echo) generate.prompt.emplace<std::string>();
  sequence.prompt_group = choices.size() > 1 ? first.key : 0;
  std::vector<SequenceRequest> sequences(choices.size());
  for (size_t i = 1; i < choices.size(); ++i) {
    sequences[i] = MakeChoice(sequence, choices[i]->choice);
  }
  sequences[0] = std::move(sequence);
  Admit(choices, std::move(sequences));
  return absl::OkStatus();
}

void EngineImpl::Admit(const Choices& choices, std::vector<SequenceRequest> sequences) {
  std::vector<Admission> admissions;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::shared_ptr<LiveRequest>& request = choices[i];
    if (NeedsNoModel(sequences[i])) {
      ShardOf(*request).DeliverEnd(request, EndReason::kLength, absl::OkStatus(), clock_.Now());
      continue;
    }
    sequences[i].id = request->key;
    sequences[i].arrival = request->arrival;
    admissions.push_back({request, std::move(sequences[i])});
  }
  if (!admissions.empty()) loop_->Admit(std::move(admissions));
}

void EngineImpl::Tokenize(TokenizeRequest request,
                          std::function<void(absl::StatusOr<TokenizeResult>)> done) {
  if (absl::Status status = CheckPromptBytes(request.field, request.prompt); !status.ok())
    return done(status);
  const size_t bytes = PromptBytes(request.prompt);
  auto work = [this, request = std::move(request), done] {
    absl::StatusOr<std::vector<Token>> tokens =
        text_->PromptTokens(request, Tokenizer::kMaxTextBytes, SteadyTime::max());
    if (!tokens.ok()) return done(tokens.status());
    TokenizeResult result{.tokens = *std::move(tokens)};
    if (request.return_token_strs && result.tokens.size() > kMaxTokenStrs) {
      return done(
          absl::InvalidArgumentError(StrCat("return_token_strs is true for ", result.tokens.size(),
                                            " tokens; allowed: at most ", kMaxTokenStrs)));
    }
    if (request.return_token_strs) {
      for (Token token : result.tokens) {
        result.token_strs.emplace_back(text_->tokenizer().TokenBytes(token));
      }
    }
    done(std::move(result));
  };
  if (absl::Status status = pool_->Submit(bytes, std::move(work)); !status.ok()) done(status);
}

void EngineImpl::Detokenize(DetokenizeRequest request,
                            std::function<void(absl::StatusOr<std::string>)> done) {
  const size_t bytes = request.tokens.size() * sizeof(Token);
  auto work = [this, request = std::move(request), done] {
    const Tokenizer& tokenizer = text_->tokenizer();
    if (absl::Status status = ValidateTokens(request.field, request.tokens, tokenizer.vocab_size());
        !status.ok()) {
      return done(status);
    }
    size_t text_bytes = 0;
    for (const Token token : request.tokens) text_bytes += tokenizer.TokenBytes(token).size();
    if (text_bytes > Tokenizer::kMaxTextBytes) {
      return done(absl::InvalidArgumentError(StrCat(request.field, " has ", text_bytes,
                                                    " bytes of text; allowed: at most ",
                                                    Tokenizer::kMaxTextBytes)));
    }
    done(Decode(tokenizer, request.tokens, /*skip_special=*/false));
  };
  if (absl::Status status = pool_->Submit(bytes, std::move(work)); !status.ok()) done(status);
}

}  // namespace millrace
