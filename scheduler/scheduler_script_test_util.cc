#include "scheduler/scheduler_script_test_util.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "scheduler/model_executor_test_util.h"

namespace millrace {

std::string SchedulerAuditor::Audit(const Scheduler& scheduler) {
  const StepLimits& limits = scheduler.options_.limits;
  std::vector<bool> taken(limits.max_num_seqs);
  for (size_t i = 0; i < scheduler.running_.size(); ++i) {
    const Sequence& sequence = *scheduler.running_[i];
    if (!sequence.slot || taken[*sequence.slot]) return StrCat(sequence.id, " shares its slot");
    taken[*sequence.slot] = true;
    if (i > 0 && !RunsBefore()(scheduler.running_[i - 1], &sequence)) return "running_ is unsorted";
  }
  for (const SlotId slot : scheduler.free_slots_) {
    if (taken[slot]) return StrCat("slot ", slot, " is free and held");
    taken[slot] = true;
  }
  if (scheduler.free_slots_.size() + scheduler.running_.size() != taken.size())
    return "slots are lost";
  std::string wrong = AuditTenants(scheduler);
  if (!wrong.empty()) return wrong;
  wrong = AuditGroups(scheduler);
  if (!wrong.empty()) return wrong;
  for (int i = 0; i < scheduler.pools_.size() && wrong.empty(); ++i) {
    wrong = AuditPool(scheduler, i);
  }
  return wrong.empty() ? AuditCheckpoints(scheduler) : wrong;
}

std::string SchedulerAuditor::AuditEvents(const Scheduler& scheduler,
                                          const std::set<std::pair<int, BlockHash>>& followed) {
  size_t published = 0;
  for (int i = 0; i < scheduler.pools_.size(); ++i) {
    const StatePools::Pool& pool = scheduler.pools_.pools_[i];
    for (BlockId block = 0; block < scheduler.pools_.total(i); ++block) {
      published += pool.blocks.is_published(block) ? 1 : 0;
    }
    for (const auto& [group, hash] : followed) {
      if (group == pool.group && !pool.blocks.Find(hash)) {
        return StrCat("group ", group, " lacks a block that was stored");
      }
    }
  }
  if (published == followed.size()) return "";
  return StrCat(published, " blocks are published, events say ", followed.size());
}

std::string SchedulerAuditor::AuditCheckpoints(const Scheduler& scheduler) {
  using Stage = CheckpointPool::Stage;
  const CheckpointPool& pool = scheduler.checkpoints_;
  std::vector<int32_t> holders(pool.size());
  for (const Sequence* sequence : scheduler.running_) {
    if (sequence->begins_from.has_value()) ++holders[*sequence->begins_from];
  }
  std::set<CheckpointId> written;
  for (int i = 0; i < scheduler.num_in_flight_; ++i) {
    const auto& step = scheduler.in_flight_[(scheduler.last_step_ - i) % kMaxStepsInFlight];
    for (const CheckpointId id : step.copies) {
      if (!written.insert(id).second) return StrCat("checkpoint ", id, " is written twice");
    }
  }
  int32_t num_published = 0, num_ranked = 0;
  std::set<CheckpointId> free(pool.free_.begin(), pool.free_.end());
  for (CheckpointId id = 0; id < pool.size(); ++id) {
    const CheckpointPool::Place& place = pool.places_[id];
    if (place.holders != holders[id]) {
      return StrCat("checkpoint ", id, " counts ", place.holders, " holders and has ", holders[id]);
    }
    if ((place.stage == Stage::kFree) != free.contains(id) ||
        (place.stage == Stage::kWritten) != written.contains(id)) {
      return StrCat("checkpoint ", id, " is lost");
    }
    if (place.stage == Stage::kWithdrawn && place.holders == 0) {
      return StrCat("checkpoint ", id, " is held by none, and not free");
    }
    if (place.stage != Stage::kPublished) continue;
    ++num_published;
    if (pool.Find(place.hash) != id) return StrCat("checkpoint ", id, " is not found");
    const bool is_ranked = pool.ranked_.contains({place.rank, id});
    if (is_ranked != (place.holders == 0)) return StrCat("checkpoint ", id, " has no rank");
    num_ranked += is_ranked ? 1 : 0;
    if (is_ranked && place.rank < pool.clock_) return StrCat("checkpoint ", id, " ranks too low");
    if (!place.before.has_value()) continue;
    const CheckpointPool::Place& before = pool.places_[*place.before];
    if (before.stage != Stage::kPublished || before.position >= place.position ||
        std::count(before.after.begin(), before.after.end(), id) != 1) {
      return StrCat("checkpoint ", id, " follows one that is none");
    }
  }
  if (num_published != pool.num_published() ||
      num_ranked != static_cast<int32_t>(pool.ranked_.size())) {
    return "checkpoints are lost";
  }
  return "";
}

std::string SchedulerAuditor::AuditPool(const Scheduler& scheduler, int index) {
  const StatePools::Pool& pool = scheduler.pools_.pools_[index];
  std::vector<int32_t> holders(scheduler.pools_.total(index));
  for (const Sequence* sequence : scheduler.running_) {
    const BlockTable& table = sequence->tables[index];
    for (size_t place = 0; place < table.blocks.size(); ++place) {
      const bool released = static_cast<int32_t>(place) < table.released;
      if (released != (table.blocks[place] == kNoBlock)) {
        return StrCat(sequence->id, " has block ", table.blocks[place], " at place ", place,
                      " and gave back ", table.released);
      }
      if (!released) ++holders[table.blocks[place]];
    }
  }
  int32_t num_held = 0;
  for (BlockId block = 0; block < static_cast<BlockId>(holders.size()); ++block) {
    const int32_t count = pool.blocks.num_holders(block);
    if (count != holders[block]) {
      return StrCat("block ", block, " counts ", count, " holders and has ", holders[block]);
    }
    num_held += count > 0 ? 1 : 0;
  }
  if (num_held != pool.blocks.num_held()) {
    return StrCat("the pool counts ", pool.blocks.num_held(), " held blocks, there are ", num_held);
  }
  return "";
}

std::string SchedulerAuditor::AuditTenants(const Scheduler& scheduler) {
  if (!scheduler.waiting_.is_shared()) return "";
  std::map<const TenantAccount*, int32_t> running;
  for (const Sequence* sequence : scheduler.running_) ++running[sequence->tenant];
  for (const auto& [tenant, count] : running) {
    if (count != tenant->running) {
      return StrCat("tenant ", tenant->id, " counts ", tenant->running, " running, there are ",
                    count);
    }
  }
  for (int i = 0; i < scheduler.pools_.size(); ++i) {
    const StatePools::Pool& pool = scheduler.pools_.pools_[i];
    std::map<const TenantAccount*, int32_t> held;
    for (BlockId block = 0; block < static_cast<BlockId>(pool.payers.size()); ++block) {
      if (pool.blocks.num_holders(block) > 0) ++held[pool.payers[block]];
    }
    for (const auto& [tenant, count] : held) {
      if (count != tenant->blocks[i]) {
        return StrCat("tenant ", tenant->id, " counts ", tenant->blocks[i], " blocks of pool ", i,
                      ", there are ", count);
      }
    }
  }
  return "";
}

// Who is parked waits for one of its group that runs, and every sequence is in one place.
std::string SchedulerAuditor::AuditGroups(const Scheduler& scheduler) {
  size_t num_parked = scheduler.prefix_waiters_.size();
  for (const auto& [id, group] : scheduler.groups_) {
    num_parked += group->parked.size();
    if (group->members.empty()) return StrCat("group ", id, " has no members");
    if (!group->parked.empty() && group->running.empty()) return StrCat("group ", id, " hangs");
    for (const Sequence* sequence : group->running) {
      if (!sequence->slot) return StrCat(sequence->id, " does not run");
    }
    for (const Sequence* sequence : group->parked) {
      if (!sequence->parked || sequence->slot) return StrCat(sequence->id, " is not parked");
    }
  }
  if (scheduler.running_.size() + scheduler.waiting_.size() + num_parked !=
      scheduler.sequences_.size()) {
    return "sequences are lost";
  }
  return "";
}

namespace {

class ScriptRunner {
 public:
  explicit ScriptRunner(const SchedulerOptions& options)
      : options_(options),
        scheduler_(*Scheduler::Create(options)),
        executor_(options.limits),
        names_(options.limits.max_num_seqs) {}

  std::string Run(const std::string& command) {
    std::istringstream words(command);
    std::string verb;
    words >> verb;
    now_ += std::chrono::seconds(1);
    std::string answer = verb == "add"      ? Add(words)
                         : verb == "plan"   ? Plan()
                         : verb == "commit" ? Commit(words)
                         : verb == "step"   ? Step(words)
                         : verb == "run"    ? RunSteps(words)
                         : verb == "cancel" ? Cancel(words)
                         : verb == "stats"  ? Stats()
                                            : "no such command";
    const std::string wrong = SchedulerAuditor::Audit(*scheduler_);
    return wrong.empty() ? answer : answer + " AUDIT: " + wrong;
  }

 private:
  // The rest of the line: `key=value` or `key` each.
  static std::map<std::string, std::string> Arguments(std::istringstream& words) {
    std::map<std::string, std::string> arguments;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      arguments[word.substr(0, equals)] =
          equals == std::string::npos ? "" : word.substr(equals + 1);
    }
    return arguments;
  }

  std::string Add(std::istringstream& words) {
    std::string name;
    words >> name;
    std::map<std::string, std::string> arguments = Arguments(words);
    const auto number = [&](const char* key) {
      return arguments.contains(key) ? std::stoi(arguments[key]) : 0;
    };
    SequenceRequest request{.id = static_cast<SequenceId>(name[0])};
    const char owner = arguments.contains("of") ? arguments["of"][0] : name[0];
    for (int i = 0; i < number("prompt"); ++i) {
      request.prompt.push_back(i < number("same") ? i % 16 : 16 * (owner - 'A' + 1) + i % 16);
    }
    request.prompt_group = static_cast<unsigned char>(owner);
    request.prompt_hashes = HashPrompt({}, request.prompt, options_.limits.block_size());
    auto sampling = std::make_shared<SamplingParams>();
    if (arguments.contains("score")) sampling->top_logprobs = 0;
    if (arguments.contains("penalize")) sampling->presence_penalty = 1;
    name_of_[sampling.get()] = name;
    request.sampling = std::move(sampling);
    request.stop.max_tokens = number("max");
    if (arguments.contains("stop")) request.stop.stop_token_ids = {number("stop")};
    request.priority = number("prio");
    request.tenant.id = static_cast<uint32_t>(number("tenant"));
    request.score_prompt = arguments.contains("score");
    request.arrival = now_;
    const absl::Status status = scheduler_->Add(std::move(request));
    return status.ok() ? "ok" : std::string(status.message());
  }

  std::string Plan() {
    std::optional<StepPlan> plan = scheduler_->Plan(now_);
    if (!plan) return "nothing";
    std::set<SlotId> started;
    for (const SlotStart& start : plan->starts) {
      names_[start.slot] = name_of_.at(start.sampling.get());
      started.insert(start.slot);
    }
    std::vector<std::string> rows;
    for (const StepRow& row : plan->rows) {
      std::string text = StrCat(started.contains(row.slot) ? "+" : "", names_[row.slot], "[",
                                row.start, ",", row.start + row.num_tokens, ")");
      if (row.sampled_by) text += StrCat("<", *row.sampled_by);
      int scored = row.logits.size();
      const bool samples = scored > 0 && !plan->logits[row.logits.end - 1].target;
      scored -= samples ? 1 : 0;
      if (scored > 0) text += StrCat("?", scored);
      rows.push_back(text + (samples ? "*" : ""));
    }
    for (const StateMove& move : plan->moves) {
      const auto name = [&](BlockId place) {
        const int32_t slots = options_.limits.max_num_seqs;
        return options_.limits.state.Paged(move.group) != nullptr ? StrCat(place)
               : place < slots                                    ? names_[place]
                                                                  : StrCat("s", place - slots);
      };
      rows.push_back(StrCat(name(move.from.block), ">", name(move.to.block)));
    }
    names_in_flight_.push_back(names_);
    const absl::Status status = executor_.Submit(*std::move(plan));
    return status.ok() ? Join(rows) : std::string(status.message());
  }

  std::string Commit(std::istringstream& words) {
    if (executor_.num_in_flight() == 0) return "nothing in flight";
    std::map<std::string, std::string> arguments = Arguments(words);
    const std::vector<std::string> names = std::exchange(names_in_flight_.front(), {});
    names_in_flight_.erase(names_in_flight_.begin());
    const ModelExecutor::Script script{
        .fault =
            [&](const StepRow& row) {
              return arguments["fail"] == names[row.slot] ? ModelExecutor::Fault::kRow
                                                          : ModelExecutor::Fault::kNone;
            },
        .sampled = [&](const StepRow& row) -> std::optional<Token> {
          const auto it = arguments.find(names[row.slot]);
          return it == arguments.end() ? std::nullopt : std::optional<Token>(std::stoi(it->second));
        },
        .fail_step = arguments["fail"] == "step",
    };
    std::vector<TokenEvent> events;
    const absl::Status status = scheduler_->Commit(executor_.Run(script), now_, &events);
    return status.ok() ? Text(events) : std::string(status.message());
  }

  std::string Step(std::istringstream& words) {
    const std::string plan = Plan();
    return plan + " -> " + Commit(words);
  }

  std::string RunSteps(std::istringstream& words) {
    int steps = 0;
    words >> steps;
    std::string last;
    std::istringstream as_it_comes;
    for (; steps > 0; --steps) last = Step(as_it_comes);
    return last;
  }

  std::string Cancel(std::istringstream& words) {
    std::string name;
    words >> name;
    std::vector<TokenEvent> events;
    const bool found = scheduler_->Cancel(static_cast<SequenceId>(name[0]),
                                          absl::CancelledError("left"), now_, &events);
    return found ? Text(events) : "no such sequence";
  }

  std::string Stats() {
    const SchedulerStats s = scheduler_->stats();
    return StrCat("running ", s.num_running, " waiting ", s.num_waiting, ", blocks held ",
                  s.blocks_held, " cached ", s.blocks_cached, " free ", s.blocks_free, ", hits ",
                  s.prefix_hits, "/", s.prefix_queries, ", preempted ", s.preemptions, ", prefill ",
                  s.prefill_tokens, " decode ", s.decode_tokens,
                  s.checkpoints_held + s.checkpoints_free == 0
                      ? ""
                      : StrCat(", checkpoints ", s.checkpoints_held, " of ",
                               s.checkpoints_held + s.checkpoints_free, ", began ",
                               s.checkpoint_hits, ", replayed ", s.replayed_tokens));
  }

  static std::string Text(const std::vector<TokenEvent>& events) {
    std::vector<std::string> texts;
    for (const TokenEvent& event : events) {
      std::string text(1, static_cast<char>(event.id));
      if (event.scored.size() > 0) text += StrCat(" scored ", event.scored.size());
      if (event.sampled.size() > 0) text += StrCat(" +", event.sampled.size());
      if (event.end) {
        const char* const reasons[] = {"stop", "length", "complete", "cancelled", "failed"};
        text += StrCat(" ", reasons[static_cast<int>(event.end->reason)]);
        if (event.end->stop_token) text += StrCat(" ", *event.end->stop_token);
        text += StrCat(" (", event.end->prompt_tokens, " in, ", event.end->cached_tokens,
                       " cached, ", event.end->generated_tokens, " out)");
      }
      texts.push_back(text);
    }
    return texts.empty() ? "no events" : Join(texts);
  }

  static std::string Join(const std::vector<std::string>& parts) {
    std::string joined;
    for (const std::string& part : parts) joined += (joined.empty() ? "" : ", ") + part;
    return joined;
  }

  const SchedulerOptions options_;
  const std::unique_ptr<Scheduler> scheduler_;
  ModelExecutor executor_;
  std::map<const SamplingParams*, std::string> name_of_;
  std::vector<std::string> names_;  // of the slots, as planned
  std::vector<std::vector<std::string>> names_in_flight_;
  SteadyTime now_ = SteadyTime(std::chrono::hours(1));
};

}  // namespace

SchedulerOptions SmallOptions(int32_t slots, int32_t budget, int32_t blocks, bool prefix_caching) {
  return {.limits = {.max_num_seqs = slots,
                     .max_num_batched_tokens = budget,
                     .max_model_len = 64,
                     .num_blocks = {blocks},
                     .state = StateLayout::OnePool(4),
                     .vocab_size = 1000},
          .prefix_caching = prefix_caching};
}

std::string RunScript(const SchedulerOptions& options, std::string_view script) {
  ScriptRunner runner(options);
  std::istringstream lines{std::string(script)};
  std::string transcript;
  for (std::string line; std::getline(lines, line);) {
    const size_t bar = line.find('|');
    if (bar == std::string::npos) {
      transcript += line + "\n";
    } else {
      transcript += line.substr(0, bar) + "| " + runner.Run(line.substr(0, bar)) + "\n";
    }
  }
  return transcript;
}

}  // namespace millrace
