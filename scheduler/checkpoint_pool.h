// The checkpoints of states that lie at slots: which prefix each is the state of, and which one
// gives way to another. Not for others than the scheduler.
#ifndef MILLRACE_SCHEDULER_CHECKPOINT_POOL_H_
#define MILLRACE_SCHEDULER_CHECKPOINT_POOL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "scheduler/block_hash.h"

namespace millrace {

using CheckpointId = int32_t;  // a place of the pool, [0, its size)

// Where a checkpoint lies: within a prompt, where that ends, or in the answer.
enum class CheckpointKind { kWithinPrompt, kPromptEnd, kAnswer };

// A place is free, is being written by a step in flight, or has a published checkpoint, which is
// found by the hash of the last block of its prefix. Places are not those of blocks: a checkpoint
// holds no block, and is of use as long as the prefix cache has its prefix.
//
// Where all places are taken, that checkpoint gives way which is expected to save the least prompt
// time for its bytes. All have the same size, and the time is counted in tokens: those from the
// checkpoint before it on the same prefix, from which one would begin without it, times the share
// of the checkpoints of its kind, hit as often as it, that were hit once more before they gave way.
// So a chat's turns keep one each, before or behind the answer, as its template goes on from there,
// and those that they have left behind give way to them. What was of no use for long gives way,
// too: each checkpoint is ranked by what it saves plus a clock that stands at the rank of the last
// one that gave way (GreedyDual: Young, "The k-server dual and loose competitiveness for paging",
// Algorithmica 1994), and anew by each hit. A new one that would rank below all is not taken.
//
// Operations take logarithmic time, but for the removal, and at a prompt's end the hit, of a
// checkpoint that many others follow.
class CheckpointPool {
 public:
  explicit CheckpointPool(int32_t num_places);

  int32_t size() const { return static_cast<int32_t>(places_.size()); }
  int32_t num_published() const { return static_cast<int32_t>(published_.size()); }
  int64_t num_evicted() const { return num_evicted_; }  // that gave way to others

  // Returns the published checkpoint of the prefix that ends with the block of this hash.
  std::optional<CheckpointId> Find(const BlockHash& hash) const;

  // Holds a published checkpoint for a sequence that is to begin from it: its place keeps its
  // content until as many calls of Release. Unless it `tells_use`, it counts neither the
  // checkpoint as of use nor those around it as left behind: where it stands in for a later one
  // that gave way (CountMissed), or the sequence is none that a new prompt is like.
  void Hold(CheckpointId id, bool tells_use = true);
  void Release(CheckpointId id);

  // Counts the checkpoint that gave way, if there was one of this prefix not long ago, as of use to
  // a sequence that begins further back for want of it. Returns whether there was.
  bool CountMissed(const BlockHash& hash);

  // Takes a place for the state after `position` tokens, to which a step is about to copy it.
  // `before`: the checkpoint before it on the same prefix, none if there is none. Nothing if no
  // place can be had.
  std::optional<CheckpointId> Take(CheckpointKind kind, int32_t position,
                                   std::optional<CheckpointId> before);

  // Takes the place of a published checkpoint for a later state of the same sequence. False, and no
  // effect, if the place has another one by now, or others begin or have begun from it.
  bool TakeAgain(CheckpointId id, const BlockHash& hash, int32_t position,
                 std::optional<CheckpointId> before);

  // Says of which prefix the state is that is written to the place: its tokens are known, and
  // nothing went wrong with them.
  void Name(CheckpointId id, const BlockHash& hash);

  // Ends the writing, since the step was committed. Publishes the checkpoint if it is `ok`, named,
  // and the only one of its prefix; else the place is free.
  void Finish(CheckpointId id, bool ok);

  // Removes the checkpoint of the prefix, published or being written. Sequences that hold it keep
  // it.
  void Unpublish(const BlockHash& hash);

 private:
  friend class SchedulerAuditor;

  enum class Stage { kFree, kWritten, kPublished, kWithdrawn };  // the last: held, but not found
  struct Place {
    Stage stage = Stage::kFree;
    bool named = false;
    CheckpointKind kind = CheckpointKind::kWithinPrompt;
    bool was_hit = false;
    int hits = 0;  // to kMostHits; that it was left behind counts as one
    int32_t holders = 0;
    int32_t position = 0;
    int64_t ranked_at = 0;  // by the clock
    int64_t rank = 0;
    BlockHash hash{};
    // While it is written: the hash of the one before it.
    std::optional<BlockHash> before_hash = std::nullopt;
    // Published checkpoints of one prefix: the next shorter one, and those that have it as that.
    std::optional<CheckpointId> before = std::nullopt;
    std::vector<CheckpointId> after = {};
  };

  // What became of checkpoints of one kind, hit so often: whether they were hit once more, or would
  // have been, had they not given way.
  struct Fates {
    int64_t hit = 4;
    int64_t all = 4;
  };
  static constexpr int kMostHits = 2;

  struct Gone {  // one that gave way, of the last as many as there are places
    CheckpointKind kind;
    int hits;
    int64_t serial;  // how many had given way, with it
  };

  Fates& FatesOf(CheckpointKind kind, int hits) {
    return fates_[static_cast<size_t>(kind)][static_cast<size_t>(hits)];
  }
  void CountFate(CheckpointKind kind, int hits, bool hit);
  void Remember(const Place& place);  // that gives way
  // A sequence began behind the checkpoint, or beside it: unless it was hit, it counts as one of no
  // use, and as if it had been hit once.
  void LeaveBehind(CheckpointId id);
  // Returns the tokens that the checkpoint is expected to save.
  int64_t Worth(const Place& place);
  void Begin(CheckpointId id, CheckpointKind kind, int32_t position,
             std::optional<CheckpointId> before);
  void Rank(CheckpointId id, int64_t at);
  void Unrank(CheckpointId id) { ranked_.erase({places_[id].rank, id}); }
  void Withdraw(CheckpointId id);  // a published one
  void Free(CheckpointId id);

  std::vector<Place> places_;
  std::vector<CheckpointId> free_;
  std::vector<CheckpointId> written_;
  absl::flat_hash_map<BlockHash, CheckpointId> published_;
  absl::btree_set<std::pair<int64_t, CheckpointId>> ranked_;  // published, and held by none
  // [kind][hits]. At first it is supposed that one sequence alone goes on from a turn's end.
  std::array<std::array<Fates, kMostHits + 1>, 3> fates_ = {{
      {},
      {Fates{}, Fates{.hit = 0}, Fates{}},
      {Fates{}, Fates{.hit = 0}, Fates{}},
  }};
  absl::flat_hash_map<BlockHash, Gone> gone_;
  // With their serial numbers, the oldest first, those too that are no longer in gone_.
  std::deque<std::pair<BlockHash, int64_t>> gone_order_;
  int64_t clock_ = 0;
  int64_t num_evicted_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_CHECKPOINT_POOL_H_
