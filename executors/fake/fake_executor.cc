#include "executors/fake/fake_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_points.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/draft_mailbox.h"
#include "executors/fake/block_ledger.h"
#include "executors/mask_mailbox.h"
#include "executors/plan_checker.h"
#include "executors/step_worker.h"

namespace millrace {
namespace {

FaultPoint row_error("fake.row_error");
FaultPoint device_error("fake.device_error");
FaultPoint hang("fake.hang");

constexpr std::chrono::milliseconds kHang{10};
constexpr Token kFakeEos = 257;
constexpr Token kFirstPrintable = ' ';
constexpr int kPrintable = '~' - ' ' + 1;

// The finalizer of SplitMix64 (Steele et al., OOPSLA 2014): each input bit affects each output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// The fake's distribution: logit -|token - sampled| / 32, so that the sampled token is the
// likeliest.
float Logit(Token token, Token likeliest) {
  return -static_cast<float>(std::abs(token - likeliest)) / 32;
}

// Returns the logarithm of the sum over all tokens of exp(logit).
float LogSum(Token likeliest) {
  static const std::array<float, kFakeVocabSize> sums = [] {
    std::array<float, kFakeVocabSize> of;
    for (Token best = 0; best < kFakeVocabSize; ++best) {
      double sum = 0;
      for (Token t = 0; t < kFakeVocabSize; ++t) sum += std::exp(double{Logit(t, best)});
      of[best] = static_cast<float>(std::log(sum));
    }
    return of;
  }();
  return sums[likeliest];
}

// A prompt may have a million of these, so that they take no longer than a device's would: the
// order of the alternatives is known, of two that are as likely the lower id first.
void AddLogprobs(Token likeliest, int32_t num_top, TokenResult* token, StepResult* result) {
  const float log_sum = LogSum(likeliest);
  const int32_t distance = std::abs(token->token - likeliest);
  token->logprob = Logit(token->token, likeliest) - log_sum;
  token->rank = 1;  // and one more for each that is nearer
  if (distance > 0) {
    token->rank +=
        std::min(likeliest + distance, kFakeVocabSize) - std::max(likeliest - distance + 1, 0);
  }
  std::vector<TokenLogprob>& top = result->top;
  token->top.begin = static_cast<int32_t>(top.size());
  const size_t end = top.size() + static_cast<size_t>(num_top);
  const auto add = [&](Token t) {
    if (t < 0 || t >= kFakeVocabSize || top.size() == end) return;
    top.push_back({t, Logit(t, likeliest) - log_sum});
  };
  add(likeliest);
  for (int32_t away = 1; top.size() < end && away < kFakeVocabSize; ++away) {
    add(likeliest - away);
    add(likeliest + away);
  }
  token->top.end = static_cast<int32_t>(top.size());
}

// Returns one of the tokens that a mask allows, as the token would have it.
std::optional<Token> Allowed(Token token, const SampleMask& mask) {
  std::vector<Token> allowed;
  for (Token t = 0; t < kFakeVocabSize; ++t) {
    if ((mask[t / 32] >> (t % 32) & 1) != 0) allowed.push_back(t);
  }
  if (allowed.empty()) return std::nullopt;
  return allowed[Mix(static_cast<uint64_t>(token)) % allowed.size()];
}

ModelInfo MakeInfo(const FakeSpec& device) {
  const int64_t bytes_per_block = kFakeBytesPerToken * device.block_size;
  const int32_t num_blocks = static_cast<int32_t>(
      std::min<int64_t>(device.kv_cache_memory / bytes_per_block, int64_t{1} << 30));
  return {.architecture = "fake",
          .digest = std::string(AsBytes(Sha256Of("millrace fake model"))),
          .weight_bytes = 0,
          .takes_masks = true,
          .takes_late_masks = true,
          .max_draft_tokens = kMaxDraftTokens,
          .max_step_draft_tokens = device.max_num_batched_tokens,
          .limits = {.max_num_seqs = device.max_num_seqs,
                     .max_num_batched_tokens = device.max_num_batched_tokens,
                     .max_model_len =
                         device.max_model_len > 0 ? device.max_model_len : kFakeMaxModelLen,
                     .num_blocks = {num_blocks},
                     .state = StateLayout::OnePool(device.block_size, bytes_per_block),
                     .vocab_size = kFakeVocabSize,
                     .token_tile = device.token_tile},
          .kv_type = "none"};
}

class FakeExecutor : public Executor {
 public:
  explicit FakeExecutor(const FakeSpec& device)
      : info_(MakeInfo(device)),
        spec_(device),
        checker_(info_),
        ledger_(info_.limits),
        slots_(info_.limits.max_num_seqs),
        runner_([this](StepPlan plan) { return Run(std::move(plan)); }),
        worker_(runner_) {}

  const ModelInfo& info() const override { return info_; }
  void OnResult(std::function<void()> wake) override { worker_.OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    MILLRACE_RETURN_IF_ERROR(worker_.Ready());
    MILLRACE_RETURN_IF_ERROR(checker_.Check(plan));
    MILLRACE_RETURN_IF_ERROR(ledger_.Apply(plan));
    return worker_.Submit(std::move(plan));
  }

  absl::Status SetMasks(std::vector<LateMask> masks) override {
    MILLRACE_RETURN_IF_ERROR(checker_.CheckMasks(masks));
    masks_.Put(std::move(masks));
    return absl::OkStatus();
  }

  absl::Status SetDrafts(std::vector<LateDraft> drafts) override {
    MILLRACE_RETURN_IF_ERROR(checker_.CheckDrafts(drafts));
    drafts_.Put(std::move(drafts));
    return absl::OkStatus();
  }

  std::optional<StepResult> Poll() override { return worker_.Poll(); }
  std::optional<StepResult> Wait() override { return worker_.Wait(); }

 private:
  struct Slot {
    std::shared_ptr<const SamplingParams> sampling;
    Token last_token = 0;
    int32_t end = 0;                      // positions with the tokens before last_token
    std::optional<int32_t> answer_begin;  // position of the first sampled token
    bool failed = false;
  };

  StepResult Run(StepPlan plan) {
    drafts_.FillAll(plan);
    due_ = std::max(due_, Clock::Real().Now()) + FakeStepTime(spec_, plan);
    std::this_thread::sleep_until(due_);
    while (hang.Fires()) std::this_thread::sleep_for(kHang);
    StepResult result;
    if (device_error.Fires()) {
      result.status =
          absl::UnavailableError("the fake device failed (fault point fake.device_error)");
      return result;
    }
    masks_.FillAll(plan);
    result.moves_completed = moves_ += static_cast<int64_t>(plan.moves.size());
    for (const SlotStart& start : plan.starts) slots_[start.slot] = {.sampling = start.sampling};
    for (const StepRow& row : plan.rows) RunRow(plan, row, &result);
    return result;
  }

  void RunRow(const StepPlan& plan, const StepRow& row, StepResult* result) {
    Slot& slot = slots_[row.slot];
    RowResult& out = result->rows.emplace_back();
    out.slot = row.slot;
    slot.failed = slot.failed || row_error.Fires();
    if (slot.failed) {
      out.status = absl::InternalError("the fake row failed (fault point fake.row_error)");
      return;
    }
    out.tokens.begin = static_cast<int32_t>(result->tokens.size());
    const int32_t start = row.sampled_by.has_value() ? slot.end : row.start;
    const Token first = slot.last_token;
    const auto input = [&](int32_t offset) {
      if (!row.sampled_by.has_value()) return plan.tokens[row.tokens.begin + offset];
      return offset == 0 ? first : plan.tokens[row.tokens.begin + offset - 1];
    };
    slot.end = start + row.num_tokens - row.num_draft;
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at) {
      const WantedLogits& wanted = plan.logits[at];
      if (start + wanted.offset >= slot.end) {  // Behind a draft's token.
        if (input(wanted.offset) != slot.last_token) break;
        ++slot.end;
      }
      const Token previous = input(wanted.offset);
      Token sampled = spec_.answer.empty() || wanted.target.has_value()
                          ? FakeToken(*slot.sampling, start + wanted.offset + 1, previous)
                          : OfAnswer(&slot, start + wanted.offset + 1);
      const SampleMask* const mask = wanted.mask.get();
      const bool told = !spec_.answer.empty() && mask != nullptr &&
                        ((*mask)[sampled / 32] >> (sampled % 32) & 1) != 0;
      if (mask != nullptr && !told) {
        const std::optional<Token> allowed = Allowed(sampled, *mask);
        if (!allowed.has_value()) {
          out.status = absl::InternalError("the mask allows no token");
          slot.failed = true;
          result->tokens.resize(out.tokens.begin);
          out.tokens.end = out.tokens.begin;
          return;
        }
        sampled = *allowed;
      }
      TokenResult token{.token = wanted.target.value_or(sampled)};
      const std::optional<int32_t> top = slot.sampling->top_logprobs;
      if (top.has_value()) AddLogprobs(sampled, *top, &token, result);
      if (!wanted.target.has_value()) slot.last_token = sampled;
      result->tokens.push_back(token);
    }
    out.tokens.end = static_cast<int32_t>(result->tokens.size());
  }

  Token OfAnswer(Slot* slot, int32_t position) const {
    if (!slot->answer_begin.has_value()) slot->answer_begin = position;
    const auto index = static_cast<size_t>(position - *slot->answer_begin);
    return index < spec_.answer.size() ? static_cast<unsigned char>(spec_.answer[index]) : kFakeEos;
  }

  const ModelInfo info_;
  const FakeSpec spec_;
  PlanChecker checker_;
  BlockLedger ledger_;
  MaskMailbox masks_;
  DraftMailbox drafts_;
  // The worker's:
  std::vector<Slot> slots_;
  int64_t moves_ = 0;  // of all plans
  SteadyTime due_{};
  SerialStepRunner runner_;
  StepWorker worker_;  // last, since its thread uses the members above
};

}  // namespace

Duration FakeStepTime(const FakeSpec& device, const StepPlan& plan) {
  int64_t tokens = 0;
  bool has_prompt = false;
  for (const StepRow& row : plan.rows) {
    tokens += row.num_tokens;
    has_prompt |= row.num_tokens > 1;
  }
  int64_t micros = device.step_us;
  if (has_prompt) {
    micros += device.prompt_us;
    tokens = (tokens + device.token_tile - 1) / device.token_tile * device.token_tile;
  }
  return std::chrono::microseconds(micros + device.token_us * tokens);
}

Token FakeToken(const SamplingParams& sampling, int32_t position, Token previous) {
  uint64_t state = Mix(static_cast<uint64_t>(position) << 32 | static_cast<uint32_t>(previous));
  if (sampling.temperature > 0) state = Mix(state ^ Mix(sampling.seed + sampling.sample_index));
  Token token = kFirstPrintable + static_cast<Token>(state % kPrintable);
  const auto banned = [&](Token t) {
    return position < sampling.banned_before &&
           std::find(sampling.banned_tokens.begin(), sampling.banned_tokens.end(), t) !=
               sampling.banned_tokens.end();
  };
  for (int i = 0; i < kPrintable && banned(token); ++i) {
    token = token + 1 < kFirstPrintable + kPrintable ? token + 1 : kFirstPrintable;
  }
  return token;
}

absl::StatusOr<std::unique_ptr<Executor>> LoadFakeExecutor(const FakeSpec& device) {
  const int64_t block_bytes = kFakeBytesPerToken * device.block_size;
  if (device.kv_cache_memory < block_bytes) {
    return absl::InvalidArgumentError(StrCat("kv_cache_memory is ", device.kv_cache_memory,
                                             " bytes, allowed: at least one block's ",
                                             block_bytes));
  }
  return std::make_unique<FakeExecutor>(device);
}

}  // namespace millrace
