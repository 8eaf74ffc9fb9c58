// Hashes of the content of KV blocks: a chain of SHA-256, so that equal hashes mean equal tokens
// from the sequence's beginning, under the same model.
#ifndef MILLRACE_SCHEDULER_BLOCK_HASH_H_
#define MILLRACE_SCHEDULER_BLOCK_HASH_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/sha256.h"
#include "plan/sampling_params.h"

namespace millrace {

// A block's hash: SHA-256(parent's hash, the block's tokens as 32-bit little-endian integers). The
// first block's parent is the chain's root. All 256 bits are kept: clients choose the tokens, and
// who finds a collision reads another's cache.
using BlockHash = Sha256Digest;

// Returns the root of a chain: everything but the tokens that the keys and values depend on (the
// weights' digest, the KV type, the adapter) and what must not be shared across (a tenant's salt).
// Parts of different lengths never run into each other.
BlockHash CacheRoot(std::initializer_list<std::string_view> parts);

// A chain: `blocks` holds the hash of every full block of a sequence's tokens.
struct BlockHashes {
  BlockHash root{};
  std::vector<BlockHash> blocks;
  // Names the salt in `root` to who follows the cache from outside (BlockEvent::salt). Empty: there
  // is no salt, or nobody follows.
  std::string salt = {};
};

class BlockHasher {
 public:
  // Returns the hash of a block after its parent. `tokens` are exactly one block.
  BlockHash Hash(const BlockHash& parent, absl::Span<const Token> tokens);

 private:
  Sha256 sha256_;
};

// Returns the hashes of a prompt's full blocks. Meant for the threads that tokenize: about 0.1 µs a
// block, which the engine thread then need not spend.
BlockHashes HashPrompt(const BlockHash& root, absl::Span<const Token> prompt, int32_t block_size);

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_BLOCK_HASH_H_
