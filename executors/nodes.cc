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

class NodesExecutor : public Executor {
 public:
  NodesExecutor(std::unique_ptr<Executor> executor, Nodes& nodes)
      : executor_(std::move(executor)), nodes_(nodes) {}

  const ModelInfo& info() const override { return executor_->info(); }
  void OnResult(std::function<void()> wake) override { executor_->OnResult(std::move(wake)); }

  bool TakesMasks() const override { return executor_->TakesMasks(); }

  absl::Status Submit(StepPlan plan) override {
    for (const WantedLogits& wanted : plan.logits) {
      if (wanted.late_mask == nullptr) continue;
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
};

// Marks Agree's errors, whose code others have, too.
constexpr char kDisagreement[] = "millrace/disagreement-of-nodes";

absl::Status Disagreement(const std::string& message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kDisagreement, absl::Cord());
  return status;
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
          {"block_size", StrCat(limits.block_size)},
          {"size of the vocabulary", StrCat(limits.vocab_size)},
          {"size of embeddings", StrCat(limits.embedding_size)},
          {"embeddings of parts", StrCat(limits.embeds_parts)},
          {"type of keys and values", info.kv.type}};
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
  struct Sizes {
    int64_t weight_bytes;
    int64_t bytes_per_block;
    int32_t num_blocks;
  };
  KvGroup& group = info.kv.groups[0];
  std::vector<char> mine;
  AppendValue(Sizes{info.weight_bytes, group.bytes_per_block, info.limits.num_blocks}, mine);
  std::vector<std::vector<char>> all;
  MILLRACE_RETURN_IF_ERROR(nodes.AllGather(mine, &all));
  info.weight_bytes = group.bytes_per_block = 0;
  for (const std::vector<char>& bytes : all) {
    Sizes sizes;
    if (!ByteReader(bytes).Read(sizes)) return absl::InternalError("a node did not say its sizes");
    info.weight_bytes += sizes.weight_bytes;
    group.bytes_per_block += sizes.bytes_per_block;
    info.limits.num_blocks = std::min(info.limits.num_blocks, sizes.num_blocks);
  }
  info.kv.num_blocks = info.limits.num_blocks;
  return absl::OkStatus();
}

absl::StatusOr<int32_t> LeastOfNodes(Nodes& nodes, int32_t number) {
  std::vector<char> mine;
  AppendValue(number, mine);
  std::vector<std::vector<char>> all;
  MILLRACE_RETURN_IF_ERROR(nodes.AllGather(mine, &all));
  for (const std::vector<char>& bytes : all) {
    int32_t other = 0;
    if (!ByteReader(bytes).Read(other)) return absl::InternalError("a node did not say its number");
    number = std::min(number, other);
  }
  return number;
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
