#include "executors/weights/shares.h"

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace

Share DivideUnits(int64_t total, int64_t unit, RankSpec rank) {
  const int64_t size = std::min(total, CeilDiv(CeilDiv(total, unit), rank.size) * unit);
  const int64_t begin = std::min(total, rank.rank * size);
  return {.total = total, .begin = begin, .count = std::min(size, total - begin), .size = size};
}

HeadShares DivideHeads(int heads, int kv_heads, int64_t q_unit, int64_t kv_unit, RankSpec rank) {
  const int group = heads / kv_heads;
  const int replicas = rank.size / kv_heads;  // ranks that hold the same kv head
  if (replicas > 1 && kv_unit == 1 && group % q_unit == 0) {
    const int kv_head = std::min(rank.rank / replicas, kv_heads);
    const int replica = rank.rank % replicas;
    HeadShares shares{.q = DivideUnits(group, q_unit, {replica, replicas}),
                      .kv = {.total = kv_heads, .begin = kv_head, .count = 1, .size = 1},
                      .owns_kv = replica == 0};
    shares.q.total = heads;
    shares.q.begin += int64_t{kv_head} * group;
    if (kv_head == kv_heads) {  // more ranks than replicas
      shares.q.begin = heads;
      shares.q.count = shares.kv.count = 0;
    }
    return shares;
  }
  const int64_t unit = std::lcm(kv_unit, q_unit / std::gcd(q_unit, int64_t{group}));
  const Share kv = DivideUnits(kv_heads, unit, rank);
  return {.q = Elements(kv, group), .kv = kv, .owns_kv = true};
}

int64_t UnitOf(int64_t size, int64_t block) { return block / std::gcd(block, size); }

std::vector<float> Cut(absl::Span<const float> values, int64_t first, const Share& share) {
  const auto begin = values.begin() + first + share.begin;
  std::vector<float> cut(begin, begin + share.count);
  cut.resize(share.size, 0.0f);
  return cut;
}

std::vector<float> Cut(absl::Span<const float> values, absl::Span<const Share> shares) {
  std::vector<float> all;
  int64_t first = 0;
  for (const Share& share : shares) {
    const std::vector<float> part = Cut(values, first, share);
    all.insert(all.end(), part.begin(), part.end());
    first += share.total;
  }
  return all;
}

Share Elements(const Share& heads, int64_t head_size) {
  return {.total = heads.total * head_size,
          .begin = heads.begin * head_size,
          .count = heads.count * head_size,
          .size = heads.size * head_size};
}

}  // namespace millrace
