// RegularPool::ClipCounts: terms whose first bytes are the same become one term.
//
// Why it is exact. Say that two terms are alike if texts of up to n bytes begin texts of both or of
// neither, whatever language comes after the two.
//
// - a{m,M}, where each text of `a` but the empty one has at least w bytes. n bytes meet at most
//   c = ceil(n / w) parts that are not empty. A text of n bytes that some k parts allow is
//   therefore allowed by any other number from c up, with what comes after in reach only if k <= c.
//   So all M from c up are alike, and so are all m from c up. (A part that may be empty has m = 0.)
// - Concatenations and alternatives of alike parts are alike. Nothing is left out of them, so that
//   it does not matter whether a part is empty.
// - Intersections. Texts of up to N bytes do not tell a{m,M} from a{m,} where M * w >= N, and
//   neither does anything made of the two by concatenation, alternatives, intersection and
//   repetition. Without its ends, a term T becomes a larger one, U, and its texts of up to N bytes
//   are T's. If whatever begins a text of U can be completed by `s` bytes, then what n bytes begin
//   a text of U is completed within N = n + s bytes, and so begins a text of T, too. EndsSoon
//   proves that of U by looking at all of its derivatives; where there are too many, T stays.
// - Complements, and what is in them, stay.
#include <algorithm>
#include <utility>
#include <vector>

#include "text/grammar/regular.h"

namespace millrace {
namespace {

constexpr uint32_t kSoon = 256;         // bytes: the `s` above
constexpr size_t kMostExplored = 1000;  // derivatives of a term that EndsSoon looks at
constexpr size_t kMostMade = 20000;     // terms, for them
constexpr size_t kMostInVain = 4000;    // and those that it looks at without success, of all terms
constexpr uint32_t kFar = UINT32_MAX;

}  // namespace

uint32_t RegularPool::MostParts(uint32_t bytes, uint32_t least) {
  const uint32_t one = std::max(least, 1U);
  return (bytes + one - 1) / one;
}

// Sets what is known of a term from its operands.
void RegularPool::Measure(const Key& key, Term* term) const {
  uint64_t least = 0;
  switch (term->kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      break;
    case Kind::kSet:
      least = 1;
      break;
    case Kind::kConcat:
      least = uint64_t{terms_[term->a].least} + terms_[term->b].least;
      term->counts = terms_[term->a].counts || terms_[term->b].counts;
      break;
    case Kind::kAlt:
      least = kMostLeast;
      for (const Regular part : key.values) {
        least = std::min<uint64_t>(least, terms_[part].least);
        term->counts = term->counts || terms_[part].counts;
      }
      break;
    case Kind::kAnd:
      for (const Regular part : key.values) {
        least = std::max<uint64_t>(least, terms_[part].least);
        term->counts = term->counts || terms_[part].counts;
      }
      break;
    case Kind::kNot:
    case Kind::kMultiple:
      least = term->nullable ? 0 : 1;
      break;
    case Kind::kRepeat: {
      const uint32_t part = terms_[term->a].least;
      const uint64_t far = term->c == kUnbounded ? term->b : term->c;
      least = uint64_t{term->b} * part;
      term->counts = far >= MostParts(kFewBytes, part);
      break;
    }
  }
  term->least = static_cast<uint8_t>(std::min<uint64_t>(least, kMostLeast));
}

// Returns the concatenation, alternative or intersection `a` with each of its parts changed.
template <typename Change>
Regular RegularPool::ChangeParts(Regular a, const Change& change) {
  const Term term = terms_[a];
  std::vector<Regular> parts;
  if (term.kind == Kind::kConcat) {
    for (; terms_[a].kind == Kind::kConcat; a = terms_[a].b) parts.push_back(terms_[a].a);
    parts.push_back(a);
  } else {
    parts.assign(Operands(term).begin(), Operands(term).end());
  }
  for (Regular& part : parts) part = change(part);
  if (term.kind == Kind::kConcat) return Concat(parts);
  return term.kind == Kind::kAlt ? Alt(parts) : And(parts);
}

Regular RegularPool::ClipCounts(Regular a, uint32_t bytes) {
  const Term term = terms_[a];
  if (!term.counts) return a;
  switch (term.kind) {
    case Kind::kConcat:
    case Kind::kAlt:
      return ChangeParts(a, [&](Regular part) { return ClipCounts(part, bytes); });
    case Kind::kAnd: {
      const Regular without = WithoutEnds(a, bytes + kSoon);
      return without != a && EndsSoon(without) ? without : a;
    }
    case Kind::kRepeat: {
      const uint32_t most = MostParts(bytes, Least(term.a));
      return Repeat(term.a, std::min(term.b, most), term.c >= most ? kUnbounded : term.c);
    }
    default:
      return a;
  }
}

// Returns a term with the texts of `a` and maybe longer ones than `bytes`.
Regular RegularPool::WithoutEnds(Regular a, uint32_t bytes) {
  const Term term = terms_[a];
  if (!term.counts) return a;
  switch (term.kind) {
    case Kind::kConcat:
    case Kind::kAlt:
    case Kind::kAnd:
      return ChangeParts(a, [&](Regular part) { return WithoutEnds(part, bytes); });
    case Kind::kRepeat:
      return Repeat(term.a, term.b,
                    term.c >= MostParts(bytes, Least(term.a)) ? kUnbounded : term.c);
    default:
      return a;
  }
}

// Returns whether whatever begins a text of `a` can be completed by at most kSoon bytes; false also
// where that takes too long to tell.
bool RegularPool::EndsSoon(Regular a) {
  if (const auto it = ends_soon_.find(a); it != ends_soon_.end()) return it->second;
  if (explored_in_vain_ >= kMostInVain) return false;
  std::vector<Regular> terms{a};
  std::vector<std::vector<size_t>> before(1);  // by term, those that lead to it
  absl::flat_hash_map<Regular, size_t> places{{a, 0}};
  const size_t most = terms_.size() + kMostMade;
  const auto too_much = [&] { return terms.size() > kMostExplored || terms_.size() > most; };
  for (size_t i = 0; i < terms.size() && !too_much(); ++i) {
    const std::vector<uint8_t> blocks = Blocks(PartitionOf(terms[i]));
    for (size_t c = 0; c < blocks.size(); ++c) {
      if (blocks[c] != c) continue;
      const Regular next = Derive(terms[i], byte_of_[c]);
      if (next == kNothing) continue;
      const auto [it, is_new] = places.try_emplace(next, terms.size());
      if (is_new) {
        terms.push_back(next);
        before.emplace_back();
      }
      before[it->second].push_back(i);
    }
  }
  bool all = !too_much();
  if (all) {
    // From the ends back; a term without a distance is empty.
    std::vector<uint32_t> distance(terms.size(), kFar);
    std::vector<size_t> reached;
    for (size_t i = 0; i < terms.size(); ++i) {
      if (!Nullable(terms[i])) continue;
      distance[i] = 0;
      reached.push_back(i);
    }
    for (size_t k = 0; k < reached.size(); ++k) {
      const uint32_t next = distance[reached[k]] + 1;
      for (const size_t i : before[reached[k]]) {
        if (distance[i] != kFar) continue;
        distance[i] = next;
        reached.push_back(i);
      }
    }
    all = reached.empty() || distance[reached.back()] <= kSoon;
    for (size_t i = 0; i < terms.size(); ++i) {
      if (IsBoolean(terms[i])) RememberEmptiness(terms[i], distance[i] == kFar ? 1 : 2);
    }
  }
  if (all) {
    for (const Regular term : terms) ends_soon_[term] = true;
  } else {
    explored_in_vain_ += terms.size();
    ends_soon_[a] = false;
  }
  return all;
}

}  // namespace millrace
