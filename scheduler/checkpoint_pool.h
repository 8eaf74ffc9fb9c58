// The checkpoints of states that lie at slots: which prefix each is the state of, and which one
// gives way to another. Not for others than the scheduler.
#ifndef MILLRACE_SCHEDULER_CHECKPOINT_POOL_H_
#define MILLRACE_SCHEDULER_CHECKPOINT_POOL_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "scheduler/block_hash.h"

namespace millrace {

using CheckpointId = int32_t;  // a place of the pool, [0, its size)

// A place is free, is being written by a step in flight, or has a published checkpoint, which is
// found by the hash of the last block of its prefix. Places are not those of blocks: a checkpoint
// holds no block, and is of use as long as the prefix cache has its prefix.
//
// Where all places are taken, that checkpoint gives way which saves the least prompt time for its
// bytes. All have the same size, and the time is counted in tokens: those from the checkpoint
// before it on the same prefix, from which one would begin without it. What was of no use for long
// gives way, too: each checkpoint is ranked by its tokens plus a clock that stands at the rank of
// the last one that gave way (GreedyDual: Young, "The k-server dual and loose
// competitiveness for paging", Algorithmica 1994), and anew by each hit. A new one that would rank
// below all is not taken.
//
// Operations take logarithmic time, but for the removal of a checkpoint that many others follow.
class CheckpointPool {
 public:
  explicit CheckpointPool(int32_t num_places);

  int32_t size() const { return static_cast<int32_t>(places_.size()); }
  int32_t num_published() const { return static_cast<int32_t>(published_.size()); }
  int64_t num_evicted() const { return num_evicted_; }  // that gave way to others

  // Returns the published checkpoint of the prefix that ends with the block of this hash.
  std::optional<CheckpointId> Find(const BlockHash& hash) const;

  // Holds a published checkpoint for a sequence that is to begin from it: its place keeps its
  // content until as many calls of Release.
  void Hold(CheckpointId id);
  void Release(CheckpointId id);

  // Takes a place for the state after `position` tokens, to which a step is about to copy it.
  // `before`: the checkpoint before it on the same prefix, none if there is none. Nothing if no
  // place can be had.
  std::optional<CheckpointId> Take(int32_t position, std::optional<CheckpointId> before);

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
    bool was_hit = false;
    int32_t holders = 0;
    int32_t position = 0;
    int64_t rank = 0;
    BlockHash hash{};
    // While it is written: the hash of the one before it.
    std::optional<BlockHash> before_hash = std::nullopt;
    // Published checkpoints of one prefix: the next shorter one, and those that have it as that.
    std::optional<CheckpointId> before = std::nullopt;
    std::vector<CheckpointId> after = {};
  };

  // Returns the tokens that a sequence computes without the checkpoint, and not with it.
  int32_t SavedTokens(int32_t position, std::optional<CheckpointId> before) const;
  void Begin(CheckpointId id, int32_t position, std::optional<CheckpointId> before);
  void Rank(CheckpointId id);
  void Unrank(CheckpointId id) { ranked_.erase({places_[id].rank, id}); }
  void Withdraw(CheckpointId id);  // a published one
  void Free(CheckpointId id);

  std::vector<Place> places_;
  std::vector<CheckpointId> free_;
  std::vector<CheckpointId> written_;
  absl::flat_hash_map<BlockHash, CheckpointId> published_;
  absl::btree_set<std::pair<int64_t, CheckpointId>> ranked_;  // published, and held by none
  int64_t clock_ = 0;
  int64_t num_evicted_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_CHECKPOINT_POOL_H_
