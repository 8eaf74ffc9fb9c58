#include "engine/generator.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/request/tenant.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);

void LogFinish(const std::string& id, const Finish& finish) {
  const Logger log = kLog.ForRequest(id);
  const std::string error = finish.status.ok() ? "" : absl::StrCat(": ", finish.status.ToString());
  log.Info(std::string(Name(finish.reason)), error, "; prompt_tokens=", finish.usage.prompt_tokens,
           " cached_tokens=", finish.usage.cached_tokens,
           " completion_tokens=", finish.usage.completion_tokens,
           " queue=", absl::FormatDuration(finish.timings.queue),
           " prefill=", absl::FormatDuration(finish.timings.prefill),
           " decode=", absl::FormatDuration(finish.timings.decode));
}

// Returns the size of what the text pool has to work on.
size_t TextBytes(const GenerateRequest& request) {
  size_t bytes = PromptBytes(request.prompt) + request.suffix.size() + request.prediction.size();
  if (request.allowed_token_ids.has_value()) {
    bytes += request.allowed_token_ids->size() * sizeof(Token);
  }
  for (const std::string& word : request.bad_words) bytes += word.size();
  // A grammar may take long to compile: as a long text, it leaves a thread to the short ones.
  if (request.grammar.has_value()) {
    bytes = std::max(bytes + request.grammar->TextBytes(), TextPool::kLongBytes);
  }
  return bytes;
}

bool BoundsTokens(const GenerateRequest& request) {
  return request.allowed_token_ids.has_value() || !request.bad_words.empty();
}

}  // namespace

// The caller's end of one choice.
class Generator::Stream final : public ResponseStream {
 public:
  Stream(EngineParts* parts, std::shared_ptr<LiveRequest> request)
      : parts_(parts), request_(std::move(request)) {}
  ~Stream() override {
    request_->buffer.Abandon();
    if (!request_->buffer.finished()) parts_->Cancel(request_, CancelReason::kClientGone);
  }

  std::optional<OutputEvent> Next() override { return request_->buffer.Next(); }
  void Cancel(CancelReason reason) override { parts_->Cancel(request_, reason); }

 private:
  EngineParts* const parts_;
  const std::shared_ptr<LiveRequest> request_;
};

Generator::Generator(EngineParts* parts) : parts_(*parts) {
  std::random_device entropy;
  seed_state_ = uint64_t{entropy()} << 32 | entropy();
}

// ---- On the caller's thread ----

Choices Generator::MakeChoices(GenerateRequest request, const std::function<void()>& ready) {
  // A number that is refused may be any.
  const auto n = static_cast<uint64_t>(std::clamp(request.n, 1, kMaxChoices));
  const uint64_t first_key = parts_.next_key.fetch_add(n);
  Prompt prompt = std::exchange(request.prompt, Prompt());
  auto allowed = std::exchange(request.allowed_token_ids, std::nullopt);
  auto bad_words = std::exchange(request.bad_words, {});
  std::string suffix = std::exchange(request.suffix, {});
  std::string prediction = std::exchange(request.prediction, {});
  auto grammar = std::exchange(request.grammar, std::nullopt);
  const auto text_work = std::make_shared<TextWork>(static_cast<uint32_t>(n));
  const auto prompt_counted = std::make_shared<std::atomic<bool>>(false);
  auto output = request.joint_output;
  if (output == nullptr) output = std::make_shared<std::atomic<OutputState>>(OutputState::kNone);
  Choices choices;
  for (uint64_t i = 0; i < n; ++i) {
    GenerateRequest one = request;
    one.echo = request.echo && i == 0;
    if (n > 1) absl::StrAppend(&one.id, "-", i);
    choices.push_back(std::make_shared<LiveRequest>(parts_.clock, std::move(one), ready));
    LiveRequest& live = *choices.back();
    live.buffer.ShareBudgets(parts_.unread, TenantName(request.tenant));
    live.key = first_key + i;
    live.choice = static_cast<uint32_t>(i);
    live.prompt_counted = prompt_counted;
    live.text_work = text_work;
    live.output = output;
    live.deadline = parts_.ToSteady(live.request.deadline);
  }
  GenerateRequest& first = choices.front()->request;
  first.prompt = std::move(prompt);
  first.allowed_token_ids = std::move(allowed);
  first.bad_words = std::move(bad_words);
  first.suffix = std::move(suffix);
  first.prediction = std::move(prediction);
  first.grammar = std::move(grammar);
  return choices;
}

std::vector<std::shared_ptr<ResponseStream>> Generator::Generate(GenerateRequest request,
                                                                 std::function<void()> ready) {
  absl::Status checked = parts_.admission.Check(request);
  if (checked.ok() && request.tenant != nullptr) {
    checked = request.tenant->CheckPriority(&request.priority);
  }
  if (!checked.ok()) {
    // As large as a message may be: too large to be copied for each choice.
    GenerateRequest refused;
    refused.id = std::move(request.id);
    refused.n = request.n;
    request = std::move(refused);
  }
  const Choices choices = MakeChoices(std::move(request), ready);
  ready = nullptr;  // the choices let it go when they end
  std::vector<std::shared_ptr<ResponseStream>> streams;
  for (const auto& live : choices) streams.push_back(std::make_shared<Stream>(&parts_, live));
  absl::Status status = parts_.admission.Enter(choices, checked);
  if (status.ok()) {
    const GenerateRequest& first = choices.front()->request;
    status = parts_.pool->Submit(
        ShareOf(first.tenant.get()), TextBytes(first), [this, choices] { Prepare(choices); },
        [choices](SteadyTime now) {
          return now >= choices.front()->deadline.value_or(SteadyTime::max()) ||
                 std::all_of(choices.begin(), choices.end(),
                             [](const auto& choice) { return choice->cancelled(); });
        });
    if (!status.ok() && first.tenant != nullptr) first.tenant->GiveBack();
    if (status.ok()) {
      const GenerateRequest& asked = choices.front()->request;
      parts_.metrics.OnAccept(asked.n, asked.max_tokens);
      return streams;
    }
  }
  parts_.admission.LeaveText(choices.size());
  Refuse(choices, status);
  return streams;
}

// ---- On the text pool, or on the watchdog's thread if it is over before it is read ----

void Generator::Prepare(const Choices& choices) {
  for (const auto& request : choices) {
    request->answer.emplace(&parts_.text->tokenizer(), &request->request);
  }
  const absl::Status status = Encode(choices);
  const SteadyTime now = parts_.clock.Now();
  Choices refused;
  for (const auto& request : choices) {
    if (request->deadline.has_value() && now >= *request->deadline) {
      request->SetCancelled(CancelReason::kDeadline);
    }
    if (status.ok()) continue;
    if (const auto reason = request->cancelled()) {
      parts_.ShardOf(*request).DeliverEnd(request, EndReason::kCancelled, CancelStatus(*reason),
                                          now);
    } else {
      refused.push_back(request);
    }
  }
  parts_.admission.LeaveText(choices.size());
  Refuse(refused, status);
}

// Tokenizes the prompt and submits the choices' sequences. On an error nothing was submitted.
absl::Status Generator::Encode(const Choices& choices) {
  LiveRequest& first = *choices.front();
  GenerateRequest& generate = first.request;
  const SequenceDefaults& defaults = parts_.defaults;
  const SteadyTime deadline = first.deadline.value_or(SteadyTime::max());
  if (parts_.clock.Now() >= deadline) return CancelStatus(CancelReason::kDeadline);
  const bool wanted = std::any_of(choices.begin(), choices.end(),
                                  [](const auto& choice) { return !choice->cancelled(); });
  if (!wanted) return CancelStatus(*first.cancelled());

  MILLRACE_ASSIGN_OR_RETURN(
      std::vector<Token> prompt,
      parts_.text->PromptTokens({.prompt = generate.prompt, .suffix = generate.suffix},
                                defaults.limits.max_model_len, deadline,
                                &first.text_work->cancelled));
  for (const auto& choice : choices) choice->prompt_tokens = static_cast<int32_t>(prompt.size());
  if (prompt.empty()) return absl::InvalidArgumentError("prompt has no tokens");
  MILLRACE_RETURN_IF_ERROR(CheckKnown("prompt", prompt, defaults.limits.vocab_size));
  for (const auto& choice : choices) {
    choice->answer->Follow(prompt);
    choice->answer->Parse(parts_.text->MakeParser(generate, prompt),
                          parts_.text->ForcedCall(generate.prompt), &parts_.text->marker_tokens(),
                          !generate.parallel_tool_calls);
  }
  MILLRACE_ASSIGN_OR_RETURN(const bool free_tokens, CompleteGrammar(prompt, first, generate));
  std::optional<ThinkingMarkers> thinking;
  // A forced call leaves no reasoning that could be too long.
  if (generate.thinking_token_budget.has_value() &&
      parts_.text->ForcedCall(generate.prompt).empty()) {
    absl::StatusOr<ThinkingMarkers> markers =
        parts_.text->Thinking(std::get_if<Chat>(&generate.prompt), prompt);
    if (!markers.ok()) return Annotate(markers.status(), generate.budget_field);
    thinking = *std::move(markers);
    // A grammar has reasoning at its beginning alone, but for channels, of which there may be more.
    thinking->once = generate.grammar.has_value() && thinking->pairs.front().forced.parts.empty();
  }
  if (parts_.options.log_prompts) parts_.LogPrompt(generate.id, prompt);
  if (!generate.seed.has_value()) generate.seed = DrawSeed();
  if (generate.echo) first.prompt = prompt;
  MILLRACE_ASSIGN_OR_RETURN(SequenceRequest sequence,
                            MakeSequence(generate, std::move(prompt), DefaultsOf(generate)));
  if (generate.grammar.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(sequence.first_mask,
                              Follow(choices, *sequence.sampling, free_tokens));
  }
  if (thinking.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(sequence.first_mask, BoundThinking(choices, *std::move(thinking),
                                                                 std::move(sequence.first_mask)));
  }
  if (BoundsTokens(generate)) {
    MILLRACE_RETURN_IF_ERROR(BoundTokens(choices, sequence));
  }
  MILLRACE_RETURN_IF_ERROR(AddDrafter(choices, sequence));
  // A text may be long, and only an echo needs it again.
  if (!generate.echo) generate.prompt.emplace<std::string>();
  sequence.prompt_group = choices.size() > 1 ? first.key : 0;
  std::vector<SequenceRequest> sequences(choices.size());
  for (size_t i = 1; i < choices.size(); ++i) {
    sequences[i] = MakeChoice(sequence, choices[i]->choice);
  }
  sequences[0] = std::move(sequence);
  Submit(choices, std::move(sequences));
  return absl::OkStatus();
}

SequenceDefaults Generator::DefaultsOf(const GenerateRequest& request) const {
  SequenceDefaults defaults = parts_.defaults;
  if (!request.suffix.empty()) {
    const absl::Span<const Token> ends = parts_.text->fill_in_ends();
    defaults.end_of_generation.insert(defaults.end_of_generation.end(), ends.begin(), ends.end());
  }
  return defaults;
}

// Puts what the model thinks, and the calls that it may make, into the grammar of the answer.
// Returns HeldAnswer::free_tokens.
absl::StatusOr<bool> Generator::CompleteGrammar(const std::vector<Token>& prompt,
                                                const LiveRequest& first,
                                                GenerateRequest& request) {
  auto whole = parts_.text->AnswerGrammar(request, prompt);
  if (!whole.ok()) return whole.status();
  const Chat* chat = std::get_if<Chat>(&request.prompt);
  if (whole->has_value() && chat != nullptr && chat->parse_tools) {
    // An error of the format is none of the tools'.
    if (request.grammar.has_value() && !chat->forced_tool.has_value() && parts_.takes_masks) {
      const auto format = Compile(first, *request.grammar);
      if (!format.ok()) return Annotate(format.status(), request.grammar_field);
    }
    for (const auto& [name, text] : chat->text_tools) {
      if (!text.has_value() || !parts_.takes_masks) continue;
      const auto grammar = Compile(first, *text);
      if (!grammar.ok()) {
        return Annotate(grammar.status(), StrCat("tools: the format of ", Printable(name)));
      }
    }
    request.grammar_field = "tools";
  }
  if (!whole->has_value()) return false;
  request.grammar = std::move((*whole)->grammar);
  return (*whole)->free_tokens;
}

absl::StatusOr<std::shared_ptr<const Grammar>> Generator::Compile(const LiveRequest& request,
                                                                  const GrammarSpec& spec) {
  return parts_.grammars.Get(spec, {.cancelled = &request.text_work->cancelled},
                             TenantId(request.request.tenant));
}

// Has each choice follow the request's grammar, and returns the mask of the first token.
absl::StatusOr<std::shared_ptr<const SampleMask>> Generator::Follow(const Choices& choices,
                                                                    const SamplingParams& sampling,
                                                                    bool free_tokens) {
  const GenerateRequest& request = choices.front()->request;
  if (!parts_.takes_masks) {
    return absl::UnimplementedError(
        absl::StrCat(request.grammar_field,
                     ": structured output is not supported on this device; allowed: none"));
  }
  const auto grammar = Compile(*choices.front(), *request.grammar);
  if (!grammar.ok()) return Annotate(grammar.status(), request.grammar_field);
  // A client's wishes for single tokens take precedence over the tokenizer's choice.
  const bool forces = !free_tokens && sampling.logit_bias.empty() && !BoundsTokens(request);
  GuidedAnswer guided(GrammarMatcher(*grammar, parts_.Vocabulary()),
                      forces ? &parts_.text->tokenizer() : nullptr);
  for (const auto& choice : choices) {
    choice->guided = guided;
    choice->jumps = !sampling.penalizes() && !sampling.top_logprobs.has_value();
  }
  MILLRACE_ASSIGN_OR_RETURN(std::shared_ptr<const SampleMask> mask, guided.Mask());
  if (std::any_of(mask->begin(), mask->end(), [](uint32_t word) { return word != 0; })) return mask;
  return absl::InvalidArgumentError(
      absl::StrCat(request.grammar_field, ": no token of the model's vocabulary can begin it"));
}

// Gives each choice a budget of reasoning, and returns the mask of the first token, of those in
// `mask` if there is one.
absl::StatusOr<std::shared_ptr<const SampleMask>> Generator::BoundThinking(
    const Choices& choices, ThinkingMarkers markers, std::shared_ptr<const SampleMask> mask) {
  if (!parts_.takes_masks) {
    return absl::UnimplementedError(StrCat(choices.front()->request.budget_field,
                                           ": it is not supported on this device; allowed: none"));
  }
  MILLRACE_ASSIGN_OR_RETURN(
      ThinkingBudget budget,
      ThinkingBudget::Create(std::move(markers), *choices.front()->request.thinking_token_budget,
                             parts_.Vocabulary()));
  for (const auto& choice : choices) choice->thinking_budget.emplace(budget);
  return mask == nullptr ? budget.Mask() : budget.Narrow(std::move(mask));
}

// Gives each choice its bounds on tokens, and makes the mask of the first token narrower.
absl::Status Generator::BoundTokens(const Choices& choices, SequenceRequest& sequence) {
  const GenerateRequest& request = choices.front()->request;
  const std::string_view field =
      request.allowed_token_ids.has_value() ? "allowed_token_ids" : "bad_words";
  if (!parts_.takes_masks) {
    return absl::UnimplementedError(
        StrCat(field, ": it is not supported on this device; allowed: none"));
  }
  MILLRACE_ASSIGN_OR_RETURN(std::vector<std::vector<Token>> forbidden,
                            TokenizeBadWords(parts_.text->tokenizer(), request.bad_words));
  const TokenBounds bounds(request.allowed_token_ids.value_or(std::vector<Token>()),
                           std::move(forbidden), parts_.defaults.limits.vocab_size);
  for (const auto& choice : choices) choice->token_bounds = bounds;
  sequence.first_mask = bounds.Mask(sequence.first_mask.get());
  const std::vector<Token>& banned = sequence.sampling->banned_tokens;
  for (Token token = 0; token < parts_.defaults.limits.vocab_size; ++token) {
    if (MaskAllows(*sequence.first_mask, token) &&
        std::find(banned.begin(), banned.end(), token) == banned.end()) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      StrCat(field, ": no token is left that the answer could begin with",
             request.grammar.has_value() ? ", beside " + request.grammar_field : "",
             banned.empty() ? "" : ", beside min_tokens"));
}

// Has each choice count what it has of the prediction, if there is one, and gives the first one's
// sequence a drafter.
absl::Status Generator::AddDrafter(const Choices& choices, SequenceRequest& sequence) {
  GenerateRequest& request = choices.front()->request;
  const std::string tenant = TenantName(request.tenant);
  std::shared_ptr<const SuffixAutomaton> prediction;
  if (!request.prediction.empty()) {
    const std::string text = std::exchange(request.prediction, {});
    absl::StatusOr<std::vector<Token>> tokens = parts_.text->tokenizer().Encode(
        text, {.add_special = false, .cancelled = &choices.front()->text_work->cancelled});
    if (!tokens.ok()) return Annotate(tokens.status(), "prediction");
    const auto unknown = std::find_if(tokens->begin(), tokens->end(), [this](Token token) {
      return token >= parts_.defaults.limits.vocab_size;
    });
    tokens->erase(unknown, tokens->end());
    prediction = parts_.drafters.IndexPrediction(*tokens, tenant);
  }
  if (prediction != nullptr) {
    for (const auto& choice : choices) {
      choice->prediction.emplace(prediction, parts_.drafters.min_match());
    }
  }
  if (request.speculative && sequence.first_mask == nullptr) {  // masked ones check no drafts
    sequence.drafter = parts_.drafters.Make(sequence, std::move(prediction), tenant);
  }
  return absl::OkStatus();
}

void Generator::Submit(const Choices& choices, std::vector<SequenceRequest> sequences) {
  std::vector<Admission> admissions;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::shared_ptr<LiveRequest>& request = choices[i];
    if (NeedsNoModel(sequences[i])) {
      parts_.ShardOf(*request).DeliverEnd(request, EndReason::kLength, absl::OkStatus(),
                                          parts_.clock.Now());
      continue;
    }
    sequences[i].id = request->key;
    sequences[i].arrival = request->arrival;
    admissions.push_back({request, std::move(sequences[i])});
  }
  if (!admissions.empty()) parts_.loop.Admit(std::move(admissions));
}

// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
uint64_t Generator::DrawSeed() {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  uint64_t z = seed_state_.fetch_add(kGamma) + kGamma;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// ---- The end, on any thread ----

void Generator::Refuse(const Choices& choices, const absl::Status& why) {
  if (choices.empty()) return;
  parts_.admission.CountRefusal(why);
  for (const auto& request : choices) {
    OutputEvent last;
    last.finish.emplace();
    last.finish->reason = FinishReason::kError;
    last.finish->status = why;
    last.finish->usage.prompt_tokens = request->prompt_tokens;
    last.finish->timings.queue = absl::FromChrono(parts_.clock.Now() - request->arrival);
    Finish(request, std::move(last));
  }
}

void Generator::Finish(const std::shared_ptr<LiveRequest>& request, OutputEvent last) {
  LogFinish(request->request.id, *last.finish);
  // A request without a step costs nothing; a prompt costs once for all of its choices.
  const Timings& timings = last.finish->timings;
  const bool ran = timings.prefill + timings.decode > absl::ZeroDuration();
  const Usage& usage = last.finish->usage;
  parts_.admission.Leave(request, ran && request->choice == 0 ? usage.prompt_tokens : 0,
                         ran ? usage.completion_tokens : 0);
  request->buffer.Finish(std::move(last));
}

}  // namespace millrace
