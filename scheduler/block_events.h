// News of the prefix cache, for who follows it from outside.
#ifndef MILLRACE_SCHEDULER_BLOCK_EVENTS_H_
#define MILLRACE_SCHEDULER_BLOCK_EVENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "plan/sampling_params.h"
#include "scheduler/block_hash.h"

namespace millrace {

// One block of one group of the state can be found by its content from now on, or no longer. Of
// each content and group, events of the two kinds take turns, the first one being that it is
// stored.
struct BlockEvent {
  int group = 0;        // of StateLayout
  bool stored = false;  // else it was evicted, or withdrawn
  BlockHash hash{};

  // Of a block that is stored:
  int32_t place = 0;   // how many blocks precede it in its sequence
  BlockHash parent{};  // the hash of the block before it; of a first block, the chain's root
  std::vector<Token> tokens = {};
  std::string salt = {};  // of a first block: BlockHashes::salt
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_BLOCK_EVENTS_H_
