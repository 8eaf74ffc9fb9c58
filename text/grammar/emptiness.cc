// RegularPool::IsEmpty: whether a term with intersections or complements has any text.
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "text/grammar/regular.h"

namespace millrace {
namespace {

constexpr size_t kMostStates = 50000;  // that IsEmpty looks at
constexpr size_t kNearStates = 400;    // before it goes on depth first

}  // namespace

// 0: not known, 1: empty, 2: not.
uint8_t RegularPool::KnownEmptiness(Regular a) const {
  if (a == kNothing) return 1;
  if (Nullable(a) || !IsBoolean(a)) return 2;
  return a < emptiness_.size() ? emptiness_[a] : 0;
}

void RegularPool::RememberEmptiness(Regular a, uint8_t what) {
  if (emptiness_.size() <= a) emptiness_.resize(terms_.size());
  emptiness_[a] = what;
}

// Returns a byte of each class, of the classes so far where they are not fixed.
std::vector<uint8_t> RegularPool::BytesOfClasses() const {
  if (num_classes_ > 0) return byte_of_;
  std::vector<uint8_t> bytes;
  absl::flat_hash_set<std::vector<bool>> classes;
  for (int byte = 0; byte < 256; ++byte) {
    std::vector<bool> in(sets_.size());
    for (size_t i = 0; i < sets_.size(); ++i) in[i] = sets_[i][byte];
    if (classes.insert(std::move(in)).second) bytes.push_back(static_cast<uint8_t>(byte));
  }
  return bytes;
}

bool RegularPool::IsLate() const { return ThreadClock::now() > deadline_; }

// Looks for a text of the language, breadth first, which finds short ones soon. Nothing: it is
// still not known after kNearStates, or at the deadline.
std::optional<bool> RegularPool::IsEmptyNearby(Regular a, absl::Span<const uint8_t> bytes) {
  std::vector<std::pair<Regular, size_t>> states{{a, 0}};  // and the state before
  absl::flat_hash_set<Regular> visited{a};
  for (size_t i = 0; i < states.size(); ++i) {
    if (IsLate()) return std::nullopt;
    for (const uint8_t byte : bytes) {
      const Regular next = Derive(states[i].first, byte);
      const uint8_t known = KnownEmptiness(next);
      if (known == 2) {
        for (size_t at = i;; at = states[at].second) {
          RememberEmptiness(states[at].first, 2);
          if (at == 0) return false;
        }
      }
      if (known == 1 || !visited.insert(next).second) continue;
      if (states.size() == kNearStates) return std::nullopt;
      states.emplace_back(next, i);
    }
  }
  for (const auto& [term, before] : states) RememberEmptiness(term, 1);
  return true;
}

// Looks for a text of the language, at last depth first. What leads to one is not empty; if there
// is none, all that was looked at is.
bool RegularPool::IsEmpty(Regular a) {
  if (const uint8_t known = KnownEmptiness(a); known != 0) return known == 1;
  const std::vector<uint8_t> bytes = BytesOfClasses();
  if (const auto nearby = IsEmptyNearby(a, bytes)) return *nearby;
  struct Visit {
    Regular term;
    size_t next = 0;
  };
  std::vector<Visit> path{{a}};
  std::vector<Regular> seen{a};
  absl::flat_hash_set<Regular> visited{a};
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next == bytes.size()) {
      path.pop_back();
      continue;
    }
    const Regular next = Derive(visit.term, bytes[visit.next++]);
    const uint8_t known = KnownEmptiness(next);
    if (known == 2) {
      for (const Visit& on_path : path) RememberEmptiness(on_path.term, 2);
      return false;
    }
    if (known == 1 || !visited.insert(next).second) continue;
    if (visited.size() > kMostStates || IsLate()) {
      undecided_ = true;
      return false;
    }
    seen.push_back(next);
    path.push_back({next});
  }
  for (const Regular term : seen) RememberEmptiness(term, 1);
  return true;
}

}  // namespace millrace
