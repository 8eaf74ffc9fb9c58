#include "engine/engine_parts.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/strings.h"
#include "text/detokenizer.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);

std::vector<std::unique_ptr<OutputShard>> StartShards(int count, ShardListener* listener) {
  std::vector<std::unique_ptr<OutputShard>> shards;
  for (int i = 0; i < count; ++i) shards.push_back(std::make_unique<OutputShard>(listener));
  return shards;
}

std::vector<EventSink*> SinksOf(const std::vector<std::unique_ptr<OutputShard>>& shards) {
  std::vector<EventSink*> sinks;
  for (const std::unique_ptr<OutputShard>& shard : shards) sinks.push_back(shard.get());
  return sinks;
}

}  // namespace

EngineParts::EngineParts(EngineOptions options_in, SequenceDefaults defaults_in, EngineInfo info_in,
                         std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
                         std::unique_ptr<const TextSet> text_in, EngineMetrics& metrics_in,
                         ShardListener* shard_listener, LoopListener* loop_listener)
    : options(std::move(options_in)),
      defaults(std::move(defaults_in)),
      info(std::move(info_in)),
      clock(*options.clock),
      text(std::move(text_in)),
      takes_masks(executor->info().takes_masks),
      drafters(options.lookup, executor->info().max_draft_tokens),
      metrics(metrics_in),
      shards(StartShards(options.output_threads + 1, shard_listener)),
      loop(std::move(scheduler), std::move(executor), clock, loop_listener, SinksOf(shards),
           options.block_events),
      admission(&options, &info, defaults.limits, text.get(), &loop, &metrics),
      pool(std::make_unique<TextPool>(
          options.text_threads,
          // One tenant alone has half.
          2 * (options.max_waiting + defaults.limits.max_num_seqs + kMaxTextCalls))) {}

void EngineParts::Cancel(const std::shared_ptr<LiveRequest>& request, CancelReason reason) {
  reason = ReasonBy(request->deadline, reason);
  if (request->SetCancelled(reason)) loop.Cancel(request->key, CancelStatus(reason));
}

CancelReason EngineParts::ReasonBy(std::optional<SteadyTime> deadline, CancelReason reason) const {
  const bool is_due =
      deadline.has_value() && *deadline - clock.Now() <= absl::ToChronoNanoseconds(kDeadlineSlack);
  return is_due && reason == CancelReason::kClientGone ? CancelReason::kDeadline : reason;
}

OutputShard& EngineParts::ShardOf(const LiveRequest& request) {
  return *shards[SinkIndex(request, shards.size())];
}

// A year ahead is as good as never, and far from what the clock's numbers can hold.
std::optional<SteadyTime> EngineParts::ToSteady(std::optional<absl::Time> time) const {
  if (!time.has_value()) return std::nullopt;
  constexpr absl::Duration kYear = absl::Hours(24 * 365);
  const absl::Duration ahead = std::clamp(*time - absl::Now(), -kYear, kYear);
  return clock.Now() + absl::ToChronoNanoseconds(ahead);
}

std::shared_ptr<const GrammarVocabulary> EngineParts::Vocabulary() {
  std::call_once(vocabulary_made_, [this] {
    const Tokenizer& tokenizer = text->tokenizer();
    std::vector<VocabularyToken> tokens(tokenizer.vocab_size());
    for (Token token = 0; token < tokenizer.vocab_size(); ++token) {
      tokens[token] = {tokenizer.TokenBytes(token), tokenizer.IsSpecial(token)};
    }
    vocabulary_ = std::make_shared<const GrammarVocabulary>(tokens, defaults.end_of_generation,
                                                            defaults.limits.vocab_size);
  });
  return vocabulary_;
}

void EngineParts::LogPrompt(const std::string& id, const std::vector<Token>& prompt) const {
  constexpr size_t kMostBytes = 1 << 16;
  kLog.ForRequest(id).Info(
      "prompt: ", Printable(Decode(text->tokenizer(), prompt, /*skip_special=*/false), kMostBytes));
}

}  // namespace millrace
