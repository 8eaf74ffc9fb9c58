#include "scheduler/block_hash.h"

#include <bit>

namespace millrace {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as they lie in memory");

BlockHash CacheRoot(std::initializer_list<std::string_view> parts) {
  Sha256 sha256;
  for (const std::string_view part : parts) {
    const uint64_t size = part.size();
    sha256.Update(&size, sizeof(size));
    sha256.Update(part);
  }
  return sha256.Finish();
}

BlockHash BlockHasher::Hash(const BlockHash& parent, absl::Span<const Token> tokens) {
  sha256_.Update(parent.data(), parent.size());
  sha256_.Update(tokens.data(), tokens.size() * sizeof(Token));
  return sha256_.Finish();
}

BlockHashes HashPrompt(const BlockHash& root, absl::Span<const Token> prompt, int32_t block_size) {
  BlockHashes hashes{.root = root, .blocks = {}};
  hashes.blocks.reserve(prompt.size() / block_size);
  BlockHasher hasher;
  BlockHash parent = root;
  for (; prompt.size() >= static_cast<size_t>(block_size); prompt.remove_prefix(block_size)) {
    parent = hasher.Hash(parent, prompt.first(block_size));
    hashes.blocks.push_back(parent);
  }
  return hashes;
}

}  // namespace millrace
