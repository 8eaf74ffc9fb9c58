#include "executors/nodes.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/byte_stream.h"

namespace millrace {
namespace {

// The facts as one text, in which a zero ends each name and each value.
std::vector<char> Encode(const NodeFacts& facts) {
  std::vector<char> bytes;
  for (const auto& [name, value] : facts) {
    for (const std::string& text : {name, value}) {
      bytes.insert(bytes.end(), text.c_str(), text.c_str() + text.size() + 1);
    }
  }
  return bytes;
}

std::vector<std::string_view> Decode(const std::vector<char>& bytes) {
  std::vector<std::string_view> texts;
  for (auto begin = bytes.begin(); begin != bytes.end();) {
    const auto end = std::find(begin, bytes.end(), '\0');
    texts.emplace_back(bytes.data() + (begin - bytes.begin()), end - begin);
    begin = end == bytes.end() ? end : end + 1;
  }
  return texts;
}

// Plans are sent to the other nodes whole, with the masks that they have.
ModelInfo WithoutLateMasks(ModelInfo info) {
  info.takes_late_masks = false;
  return info;
}

class NodesExecutor : public Executor {
 public:
  NodesExecutor(std::unique_ptr<Executor> executor, Nodes& nodes)
      : executor_(std::move(executor)), nodes_(nodes), info_(WithoutLateMasks(executor_->info())) {}

  const ModelInfo& info() const override { return info_; }
  void OnResult(std::function<void()> wake) override { executor_->OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    for (const WantedLogits& wanted : plan.logits) {
      if (!wanted.late_mask) continue;
      return absl::InvalidArgumentError("step plan: masks are late, which nodes do not send");
    }
    MILLRACE_RETURN_IF_ERROR(executor_->Submit(plan));
    // Where this fails, so does the step, which waits for the other nodes.
    (void)nodes_.SendPlan(plan);
    return absl::OkStatus();
  }

  std::vector<int64_t> DecodeBytes(int32_t rows, int64_t positions,
                                   absl::Span<const double> touched) const override {
    return executor_->DecodeBytes(rows, positions, touched);
  }
  absl::StatusOr<std::vector<MixtureUse>> MixtureUses() const override {
    return executor_->MixtureUses();
  }
  std::optional<double> MeasureReadRate() const override { return executor_->MeasureReadRate(); }
  std::optional<StepResult> Poll() override { return executor_->Poll(); }
  std::optional<StepResult> Wait() override { return executor_->Wait(); }

 private:
  const std::unique_ptr<Executor> executor_;
  Nodes& nodes_;
  const ModelInfo info_;
};

// Marks Agree's errors, whose code others have, too.
constexpr char kDisagreement[] = "millrace/disagreement-of-nodes";

absl::Status Disagreement(const std::string& message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kDisagreement, absl::Cord());
  return status;
}

// "none,128": the window of each group, and "slots" for one that is no pages.
std::string GroupsOf(const StateLayout& state) {
  std::vector<std::string> groups;
  for (int group = 0; group < state.num_groups(); ++group) {
    const PagedState* const pages = state.Paged(group);
    groups.push_back(pages == nullptr            ? "slots"
                     : pages->window.has_value() ? StrCat(*pages->window)
                                                 : "none");
  }
  return absl::StrJoin(groups, ",");
}

// The bytes of a block, or of a sequence's slot.
int64_t& BytesOf(StateGroup& group) {
  if (auto* const pages = std::get_if<PagedState>(&group)) return pages->block_bytes;
  return std::get<SlotState>(group).bytes;
}

NodeFacts FactsOf(const ModelInfo& info) {
  const StepLimits& limits = info.limits;
  return {{"architecture", info.architecture},
          {"digest of the weights", absl::BytesToHexString(info.digest)},
          {"end tokens", absl::StrJoin(info.end_tokens, ",")},
          {"number of ranks", StrCat(info.tensor_parallel_size)},
          {"expert parallelism", info.expert_parallel ? "on" : "off"},
          {"batch invariance", info.batch_invariant ? "on" : "off"},
          {"max_num_seqs", StrCat(limits.max_num_seqs)},
          {"max_num_batched_tokens", StrCat(limits.max_num_batched_tokens)},
          {"max_model_len", StrCat(limits.max_model_len)},
          {"block_size", StrCat(limits.block_size())},
          {"windows of the state's groups", GroupsOf(limits.state)},
          {"size of the vocabulary", StrCat(limits.vocab_size)},
          {"size of embeddings", StrCat(limits.embedding_size)},
          {"embeddings of parts", StrCat(limits.embeds_parts)},
          {"type of keys and values", info.kv_type}};
}

}  // namespace

bool IsDisagreement(const absl::Status& status) {
  return status.GetPayload(kDisagreement).has_value();
}

absl::Status Agree(Nodes& nodes, const NodeFacts& facts) {
  std::vector<std::vector<char>> all;
  MILLRACE_RETURN_IF_ERROR(nodes.AllGather(Encode(facts), &all));
  const std::vector<std::string_view> expected = Decode(all[0]);
  for (size_t node = 1; node < all.size(); ++node) {
    const std::vector<std::string_view> given = Decode(all[node]);
    if (given.size() != expected.size()) {
      return Disagreement(StrCat("node ", node, " is of another version than node 0"));
    }
    for (size_t i = 0; i + 1 < given.size(); i += 2) {
      if (given[i] == expected[i] && given[i + 1] == expected[i + 1]) continue;
      return Disagreement(StrCat("node ", node, ": ", Printable(given[i]), " is \"",
                                 Printable(given[i + 1]), "\", and that of node 0 is \"",
                                 Printable(expected[i + 1]), "\"; allowed: the same on all nodes"));
    }
  }
  return absl::OkStatus();
}

absl::Status JoinInfos(Nodes& nodes, const NodeFacts& facts, ModelInfo& info) {
  NodeFacts all_facts = FactsOf(info);
  all_facts.insert(all_facts.end(), facts.begin(), facts.end());
  MILLRACE_RETURN_IF_ERROR(Agree(nodes, all_facts));
  // All nodes have as many groups: Agree.
  std::vector<StateGroup>& groups = info.limits.state.groups;
  std::vector<char> mine;
  AppendValue(info.weight_bytes, mine);
  for (size_t group = 0; group < groups.size(); ++group) {
    AppendValue(BytesOf(groups[group]), mine);
    AppendValue(info.limits.num_blocks[group], mine);
    BytesOf(groups[group]) = 0;
  }
  info.weight_bytes = 0;
  std::vector<std::vector<char>> all;
  MILLRACE_RETURN_IF_ERROR(nodes.AllGather(mine, &all));
  for (const std::vector<char>& bytes : all) {
    ByteReader reader(bytes);
    int64_t weight_bytes = 0;
    bool whole = reader.Read(weight_bytes);
    info.weight_bytes += weight_bytes;
    for (size_t group = 0; group < groups.size(); ++group) {
      int64_t state_bytes = 0;
      int32_t num_blocks = 0;
      whole = whole && reader.Read(state_bytes) && reader.Read(num_blocks);
      BytesOf(groups[group]) += state_bytes;
      info.limits.num_blocks[group] = std::min(info.limits.num_blocks[group], num_blocks);
    }
    if (!whole) return absl::InternalError("a node did not say its sizes");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LeastOfNodes(Nodes& nodes, std::vector<int32_t> numbers) {
  std::vector<char> mine;
  for (const int32_t number : numbers) AppendValue(number, mine);
  std::vector<std::vector<char>> all;
  MILLRACE_RETURN_IF_ERROR(nodes.AllGather(mine, &all));
  for (const std::vector<char>& bytes : all) {
    ByteReader reader(bytes);
    for (int32_t& number : numbers) {
      int32_t other = 0;
      if (reader.Read(other)) number = std::min(number, other);
    }
  }
  return numbers;
}

std::unique_ptr<Executor> MakeNodesExecutor(std::unique_ptr<Executor> executor, Nodes& nodes) {
  return std::make_unique<NodesExecutor>(std::move(executor), nodes);
}

absl::Status FollowPlans(Executor& executor, Nodes& nodes) {
  for (;;) {
    absl::StatusOr<std::optional<StepPlan>> plan = nodes.NextPlan();
    MILLRACE_RETURN_IF_ERROR(plan.status());
    if (!plan->has_value()) return absl::OkStatus();
    absl::Status submitted = executor.Submit(**plan);
    while (absl::IsResourceExhausted(submitted)) {
      const std::optional<StepResult> result = executor.Wait();
      if (result.has_value() && !result->status.ok()) return result->status;
      submitted = executor.Submit(**plan);
    }
    if (!submitted.ok()) {
      nodes.Fail(submitted);
      return submitted;
    }
    while (const std::optional<StepResult> result = executor.Poll()) {
      if (!result->status.ok()) return result->status;
    }
  }
}

}  // namespace millrace
