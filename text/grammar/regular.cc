#include "text/grammar/regular.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>
#include <utility>

namespace millrace {
namespace {

constexpr RegularPool::Partition kNoPartition = UINT32_MAX;

std::vector<uint32_t> Words(const ByteSet& set) {
  const auto words = std::bit_cast<std::array<uint32_t, 8>>(set);
  return {words.begin(), words.end()};
}

}  // namespace

ByteSet ByteRange(int first, int last) {
  ByteSet set;
  for (int i = first; i <= last; ++i) set.set(i);
  return set;
}

RegularPool::RegularPool() {
  terms_.push_back({Kind::kNothing, false, false});
  terms_.push_back({Kind::kEmpty, true, false});
}

Regular RegularPool::Intern(Key key, Term term) {
  const auto [it, is_new] =
      interned_.try_emplace(std::move(key), static_cast<Regular>(terms_.size()));
  if (is_new) {
    Measure(it->first, &term);
    terms_.push_back(term);
  }
  return it->second;
}

Regular RegularPool::Set(const ByteSet& bytes) {
  if (bytes.none()) return kNothing;
  const Regular term = Intern({Kind::kSet, Words(bytes)},
                              {Kind::kSet, false, false, static_cast<uint32_t>(sets_.size())});
  if (terms_[term].a == sets_.size()) sets_.push_back(bytes);
  return term;
}

Regular RegularPool::Literal(std::string_view text) {
  Regular result = kEmptyText;
  for (size_t i = text.size(); i-- > 0;) {
    const auto byte = static_cast<uint8_t>(text[i]);
    result = Concat(Set(ByteRange(byte, byte)), result);
  }
  return result;
}

Regular RegularPool::Concat(Regular a, Regular b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmptyText) return b;
  if (b == kEmptyText) return a;
  // To the right: (xy)b is x(yb), without recursion, as x may be long.
  std::vector<Regular> heads;
  while (terms_[a].kind == Kind::kConcat) {
    heads.push_back(terms_[a].a);
    a = terms_[a].b;
  }
  heads.push_back(a);
  for (size_t i = heads.size(); i-- > 0;) {
    const Regular head = heads[i];
    b = Intern({Kind::kConcat, {head, b}}, {Kind::kConcat, Nullable(head) && Nullable(b),
                                            IsBoolean(head) || IsBoolean(b), head, b});
  }
  return b;
}

Regular RegularPool::Concat(absl::Span<const Regular> parts) {
  Regular result = kEmptyText;
  for (size_t i = parts.size(); i-- > 0;) result = Concat(parts[i], result);
  return result;
}

void RegularPool::Flatten(Kind kind, absl::Span<const Regular> parts,
                          std::vector<Regular>* flat) const {
  for (const Regular part : parts) {
    if (terms_[part].kind == kind) {
      const auto operands = Operands(terms_[part]);
      flat->insert(flat->end(), operands.begin(), operands.end());
    } else {
      flat->push_back(part);
    }
  }
}

Regular RegularPool::List(Kind kind, std::vector<Regular> parts) {
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (parts.size() == 1) return parts[0];
  if (lists_.size() + parts.size() > kMostListed) {
    overflowed_ = true;
    return kNothing;
  }
  Term term{kind, kind == Kind::kAnd, kind == Kind::kAnd};
  for (const Regular part : parts) {
    const bool nullable = Nullable(part);
    term.nullable = kind == Kind::kAnd ? term.nullable && nullable : term.nullable || nullable;
    term.boolean = term.boolean || IsBoolean(part);
  }
  term.a = static_cast<uint32_t>(lists_.size());
  term.b = static_cast<uint32_t>(parts.size());
  const size_t before = terms_.size();
  const Regular result = Intern({kind, parts}, term);
  if (terms_.size() > before) lists_.insert(lists_.end(), parts.begin(), parts.end());
  return result;
}

Regular RegularPool::Alt(const std::vector<Regular>& parts) {
  std::vector<Regular> flat;
  Flatten(Kind::kAlt, parts, &flat);
  ByteSet set;
  for (const Regular part : flat) {
    if (terms_[part].kind == Kind::kSet) set |= sets_[terms_[part].a];
  }
  std::erase_if(
      flat, [this](Regular part) { return part == kNothing || terms_[part].kind == Kind::kSet; });
  if (set.any()) flat.push_back(Set(set));
  const Regular all = Not(kNothing);
  if (std::find(flat.begin(), flat.end(), all) != flat.end()) return all;
  return flat.empty() ? kNothing : List(Kind::kAlt, std::move(flat));
}

Regular RegularPool::And(const std::vector<Regular>& parts) {
  std::vector<Regular> flat;
  Flatten(Kind::kAnd, parts, &flat);
  const Regular all = Not(kNothing);
  ByteSet set;
  set.set();
  bool any_set = false;
  for (const Regular part : flat) {
    if (part == kNothing) return kNothing;
    if (terms_[part].kind != Kind::kSet) continue;
    any_set = true;
    set &= sets_[terms_[part].a];
  }
  std::erase_if(flat, [&](Regular part) { return part == all || terms_[part].kind == Kind::kSet; });
  if (any_set) {
    if (set.none()) return kNothing;
    flat.push_back(Set(set));
  }
  return flat.empty() ? all : List(Kind::kAnd, std::move(flat));
}

Regular RegularPool::Not(Regular a) {
  if (terms_[a].kind == Kind::kNot) return terms_[a].a;
  return Intern({Kind::kNot, {a}}, {Kind::kNot, !Nullable(a), true, a});
}

Regular RegularPool::Repeat(Regular a, uint32_t min, uint32_t max) {
  if (max < min) return kNothing;
  if (max == 0 || a == kEmptyText) return kEmptyText;
  if (a == kNothing) return min == 0 ? kEmptyText : kNothing;
  if (Nullable(a)) min = 0;
  if (min == 1 && max == 1) return a;
  return Intern({Kind::kRepeat, {a, min, max}},
                {Kind::kRepeat, min == 0, IsBoolean(a), a, min, max});
}

Regular RegularPool::OneOf(std::vector<std::string_view> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  // Bottom up, without recursion: `open` has the path to the text at hand, and what branches off.
  struct Level {
    std::vector<Regular> branches;
    bool ends = false;
  };
  std::vector<Level> open(1);
  std::string path;
  const auto close_to = [&](size_t depth) {
    while (path.size() > depth) {
      Level level = std::move(open.back());
      open.pop_back();
      if (level.ends) level.branches.push_back(kEmptyText);
      const auto byte = static_cast<uint8_t>(path.back());
      path.pop_back();
      open.back().branches.push_back(Concat(Set(ByteRange(byte, byte)), Alt(level.branches)));
    }
  };
  for (const std::string_view text : texts) {
    size_t same = 0;
    while (same < path.size() && same < text.size() && path[same] == text[same]) ++same;
    close_to(same);
    for (size_t i = same; i < text.size(); ++i) {
      path += text[i];
      open.emplace_back();
    }
    open.back().ends = true;
  }
  close_to(0);
  if (open[0].ends) open[0].branches.push_back(kEmptyText);
  return Alt(open[0].branches);
}

Regular RegularPool::Multiple(uint32_t divisor, uint32_t remainder) {
  for (int digit = '0'; digit <= '9'; ++digit) Set(ByteRange(digit, digit));
  Set(ByteRange('.', '.'));
  return Intern({Kind::kMultiple, {divisor, remainder}},
                {Kind::kMultiple, remainder == 0, true, divisor, remainder});
}

Regular RegularPool::Derive(Regular a, uint8_t byte) {
  if (a <= kEmptyText || overflowed_) return kNothing;
  if (num_classes_ == 0) return DeriveOne(a, byte);
  const uint64_t key = DerivedKey(a, byte);
  if (const auto it = derived_.find(key); it != derived_.end()) return it->second;
  const Regular result = DeriveOne(a, byte_of_[key & 0xff]);
  derived_.emplace(key, result);
  return result;
}

// Returns the term and, as the last byte, the first class of the byte's block in its partition.
uint64_t RegularPool::DerivedKey(Regular a, uint8_t byte) {
  return uint64_t{a} << 8 | Blocks(PartitionOf(a))[class_of_[byte]];
}

RegularPool::Partition RegularPool::PartitionOf(Regular a) {
  if (partition_of_.size() <= a) partition_of_.resize(terms_.size(), kNoPartition);
  // A head that may be empty lets its tail begin, too. Such tails may be many.
  std::vector<Regular> links;
  while (partition_of_[a] == kNoPartition && terms_[a].kind == Kind::kConcat &&
         Nullable(terms_[a].a)) {
    links.push_back(a);
    a = terms_[a].b;
  }
  if (partition_of_[a] == kNoPartition) {
    const Partition partition = ComputePartition(a);
    partition_of_[a] = partition;
  }
  Partition partition = partition_of_[a];
  for (size_t i = links.size(); i-- > 0;) {
    partition = Meet(partition, PartitionOf(terms_[links[i]].a));
    partition_of_[links[i]] = partition;
  }
  return partition;
}

// Makes no term. A term that begins with one that may be empty is PartitionOf's.
RegularPool::Partition RegularPool::ComputePartition(Regular a) {
  Partition partition = kOneBlock;
  const Term& term = terms_[a];
  switch (term.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      return partition;
    case Kind::kConcat:
      return PartitionOf(term.a);
    case Kind::kSet: {
      std::vector<uint8_t> blocks(byte_of_.size());
      std::array<int, 2> first = {-1, -1};
      for (size_t i = 0; i < blocks.size(); ++i) {
        int& begin = first[sets_[term.a][byte_of_[i]] ? 1 : 0];
        if (begin < 0) begin = static_cast<int>(i);
        blocks[i] = static_cast<uint8_t>(begin);
      }
      return InternPartition(std::move(blocks));
    }
    case Kind::kAlt:
    case Kind::kAnd:
      for (const Regular part : Operands(term)) partition = Meet(partition, PartitionOf(part));
      return partition;
    case Kind::kNot:
    case Kind::kRepeat:
      return PartitionOf(term.a);
    case Kind::kMultiple:
      for (const char c : std::string_view("0123456789.")) {
        const auto byte = static_cast<uint8_t>(c);
        partition = Meet(partition, PartitionOf(Set(ByteRange(byte, byte))));
      }
      return partition;
  }
  return partition;
}

RegularPool::Partition RegularPool::Meet(Partition a, Partition b) {
  if (a == b || b == kOneBlock) return a;
  if (a == kOneBlock) return b;
  const uint64_t key = uint64_t{std::min(a, b)} << 32 | std::max(a, b);
  if (const auto it = meets_.find(key); it != meets_.end()) return it->second;
  std::vector<uint8_t> blocks(byte_of_.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    size_t first = 0;
    while (Blocks(a)[first] != Blocks(a)[i] || Blocks(b)[first] != Blocks(b)[i]) ++first;
    blocks[i] = static_cast<uint8_t>(first);
  }
  const Partition met = InternPartition(std::move(blocks));
  meets_.emplace(key, met);
  return met;
}

RegularPool::Partition RegularPool::InternPartition(std::vector<uint8_t> blocks) {
  const auto [it, is_new] =
      partition_ids_.try_emplace(blocks, static_cast<Partition>(partitions_.size()));
  if (is_new) partitions_.push_back(std::move(blocks));
  return it->second;
}

Regular RegularPool::DeriveConcat(Regular a, uint8_t byte) {
  std::vector<Regular> parts;
  for (const Regular whole = a;;) {
    if (terms_[a].kind != Kind::kConcat) {
      parts.push_back(Derive(a, byte));
      break;
    }
    // Where the tails of one another are many, each goes on with the one that was derived before.
    if (a != whole && num_classes_ > 0) {
      if (const auto it = derived_.find(DerivedKey(a, byte)); it != derived_.end()) {
        parts.push_back(it->second);
        break;
      }
    }
    const Regular head = terms_[a].a, tail = terms_[a].b;
    parts.push_back(Concat(Derive(head, byte), tail));
    if (!Nullable(head)) break;
    a = tail;
  }
  return parts.size() == 1 ? parts[0] : Alt(parts);
}

Regular RegularPool::DeriveOne(Regular a, uint8_t byte) {
  const Term term = terms_[a];
  switch (term.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      return kNothing;
    case Kind::kSet:
      return sets_[term.a][byte] ? kEmptyText : kNothing;
    case Kind::kConcat:
      return DeriveConcat(a, byte);
    case Kind::kAlt:
    case Kind::kAnd: {
      std::vector<Regular> parts(Operands(term).begin(), Operands(term).end());
      for (Regular& part : parts) {
        part = Derive(part, byte);
        if (part == kNothing && term.kind == Kind::kAnd) return kNothing;
      }
      return term.kind == Kind::kAlt ? Alt(parts) : And(parts);
    }
    case Kind::kNot:
      return Not(Derive(term.a, byte));
    case Kind::kRepeat:
      return Concat(Derive(term.a, byte), Repeat(term.a, term.b == 0 ? 0 : term.b - 1,
                                                 term.c == kUnbounded ? kUnbounded : term.c - 1));
    case Kind::kMultiple:
      if (byte == '.') return a;
      if (byte < '0' || byte > '9') return kNothing;
      return Multiple(term.a, static_cast<uint32_t>((uint64_t{term.b} * 10 + byte - '0') % term.a));
  }
  return kNothing;
}

bool RegularPool::Matches(Regular a, std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    a = Derive(a, static_cast<uint8_t>(text[i]));
    if (a == kNothing) return false;
    if (i % 16 == 15 && IsLate()) {
      undecided_ = true;
      return false;
    }
  }
  return Nullable(a);
}

void RegularPool::FixClasses() {
  std::map<std::vector<bool>, int> classes;
  byte_of_.clear();
  for (int byte = 0; byte < 256; ++byte) {
    std::vector<bool> in(sets_.size());
    for (size_t i = 0; i < sets_.size(); ++i) in[i] = sets_[i][byte];
    const auto [it, is_new] = classes.try_emplace(std::move(in), static_cast<int>(classes.size()));
    if (is_new) byte_of_.push_back(static_cast<uint8_t>(byte));
    class_of_[byte] = static_cast<uint8_t>(it->second);
  }
  num_classes_ = static_cast<int>(classes.size());
  InternPartition(std::vector<uint8_t>(byte_of_.size(), 0));  // kOneBlock
}

size_t RegularPool::bytes() const {
  return terms_.size() * (sizeof(Term) + sizeof(Key) + 48) + lists_.size() * 12 +
         derived_.size() * 24 + partitions_.size() * 2 * (byte_of_.size() + 32) +
         meets_.size() * 24 + partition_of_.size() * sizeof(Partition);
}

}  // namespace millrace
