#include "nodes/plan_messages.h"

#include <algorithm>
#include <memory>

namespace millrace::nodes {
namespace {

template <typename Values>
void Add(const Values& values, google::protobuf::RepeatedField<int32_t>* to) {
  to->Add(values.begin(), values.end());
}

v1::Range* ToMessage(const Range& range, v1::Range* message) {
  message->set_begin(range.begin);
  message->set_end(range.end);
  return message;
}

Range FromMessage(const v1::Range& message) { return {message.begin(), message.end()}; }

// Naming all fields fails to compile where one was added: then this file needs it, too.
void ToMessage(const SamplingParams& params, v1::SamplingParams& message) {
  const auto& [temperature, top_k, top_p, min_p, typical_p, repetition_penalty, frequency_penalty,
               presence_penalty, logit_bias, seed, sample_index, top_logprobs, banned_tokens,
               banned_before] = params;
  message.set_temperature(temperature);
  message.set_top_k(top_k);
  message.set_top_p(top_p);
  message.set_min_p(min_p);
  message.set_typical_p(typical_p);
  message.set_repetition_penalty(repetition_penalty);
  message.set_frequency_penalty(frequency_penalty);
  message.set_presence_penalty(presence_penalty);
  for (const auto& [token, bias] : logit_bias) {
    message.add_biased_tokens(token);
    message.add_biases(bias);
  }
  message.set_seed(seed);
  message.set_sample_index(sample_index);
  if (top_logprobs.has_value()) message.set_top_logprobs(*top_logprobs);
  Add(banned_tokens, message.mutable_banned_tokens());
  message.set_banned_before(banned_before);
}

SamplingParams FromMessage(const v1::SamplingParams& message) {
  SamplingParams params{
      .temperature = message.temperature(),
      .top_k = message.top_k(),
      .top_p = message.top_p(),
      .min_p = message.min_p(),
      .typical_p = message.typical_p(),
      .repetition_penalty = message.repetition_penalty(),
      .frequency_penalty = message.frequency_penalty(),
      .presence_penalty = message.presence_penalty(),
      .logit_bias = {},
      .seed = message.seed(),
      .sample_index = message.sample_index(),
      .top_logprobs = std::nullopt,
      .banned_tokens = {message.banned_tokens().begin(), message.banned_tokens().end()},
      .banned_before = message.banned_before()};
  for (int i = 0; i < std::min(message.biased_tokens_size(), message.biases_size()); ++i) {
    params.logit_bias.push_back({message.biased_tokens(i), message.biases(i)});
  }
  if (message.has_top_logprobs()) params.top_logprobs = message.top_logprobs();
  return params;
}

void ToMessage(const StatePlace& place, v1::StatePlace& message) {
  message.set_block(place.block);
  message.set_on_host(place.tier == StatePlace::Tier::kHost);
}

StatePlace FromMessage(const v1::StatePlace& message) {
  return {.block = message.block(),
          .tier = message.on_host() ? StatePlace::Tier::kHost : StatePlace::Tier::kDevice};
}

void ToMessage(const StepRow& row, v1::StepRow& message) {
  const auto& [slot, start, num_tokens, tokens, sampled_by, num_draft, second_type, blocks,
               logits] = row;
  (void)num_draft;  // 0: executors on several nodes take no drafts.
  message.set_slot(slot);
  message.set_start(start);
  message.set_num_tokens(num_tokens);
  ToMessage(tokens, message.mutable_tokens());
  if (sampled_by.has_value()) message.set_sampled_by(*sampled_by);
  if (second_type.has_value()) message.set_second_type(*second_type);
  ToMessage(blocks, message.mutable_blocks());
  ToMessage(logits, message.mutable_logits());
}

StepRow FromMessage(const v1::StepRow& message) {
  StepRow row{.slot = message.slot(),
              .start = message.start(),
              .num_tokens = message.num_tokens(),
              .tokens = FromMessage(message.tokens()),
              .sampled_by = std::nullopt,
              .second_type = std::nullopt,
              .blocks = FromMessage(message.blocks()),
              .logits = FromMessage(message.logits())};
  if (message.has_sampled_by()) row.sampled_by = message.sampled_by();
  if (message.has_second_type()) row.second_type = message.second_type();
  return row;
}

}  // namespace

void ToMessage(const StepPlan& plan, v1::StepPlan& message) {
  const auto& [id, moves, starts, rows, tokens, blocks, logits, all_history] = plan;
  message.set_id(id);
  for (const auto& [group, from, to] : moves) {
    v1::StateMove& added = *message.add_moves();
    added.set_group(group);
    ToMessage(from, *added.mutable_from());
    ToMessage(to, *added.mutable_to());
  }
  for (const SlotStart& start : starts) {
    const auto& [slot, sampling, history, prompt_tokens] = start;
    v1::SlotStart& added = *message.add_starts();
    added.set_slot(slot);
    ToMessage(*sampling, *added.mutable_sampling());
    ToMessage(history, added.mutable_history());
    added.set_prompt_tokens(prompt_tokens);
  }
  for (const StepRow& row : rows) ToMessage(row, *message.add_rows());
  Add(tokens, message.mutable_tokens());
  Add(blocks, message.mutable_blocks());
  // Late masks are never sent: NodesExecutor does not take them.
  for (const auto& [offset, target, mask, late_mask] : logits) {
    v1::WantedLogits& added = *message.add_logits();
    added.set_offset(offset);
    if (target.has_value()) added.set_target(*target);
    (void)late_mask;
    if (mask != nullptr) added.mutable_mask()->Add(mask->begin(), mask->end());
  }
  Add(all_history, message.mutable_history());
}

StepPlan FromMessage(const v1::StepPlan& message) {
  StepPlan plan;
  plan.id = message.id();
  for (const v1::StateMove& move : message.moves()) {
    plan.moves.push_back(
        {.group = move.group(), .from = FromMessage(move.from()), .to = FromMessage(move.to())});
  }
  for (const v1::SlotStart& start : message.starts()) {
    plan.starts.push_back(
        {.slot = start.slot(),
         .sampling = std::make_shared<const SamplingParams>(FromMessage(start.sampling())),
         .history = FromMessage(start.history()),
         .prompt_tokens = start.prompt_tokens()});
  }
  for (const v1::StepRow& row : message.rows()) plan.rows.push_back(FromMessage(row));
  plan.tokens.assign(message.tokens().begin(), message.tokens().end());
  plan.blocks.assign(message.blocks().begin(), message.blocks().end());
  for (const v1::WantedLogits& wanted : message.logits()) {
    WantedLogits& added = plan.logits.emplace_back();
    added.offset = wanted.offset();
    if (wanted.has_target()) added.target = wanted.target();
    if (wanted.mask_size() > 0) {
      added.mask = std::make_shared<const SampleMask>(wanted.mask().begin(), wanted.mask().end());
    }
  }
  plan.history.assign(message.history().begin(), message.history().end());
  return plan;
}

}  // namespace millrace::nodes
