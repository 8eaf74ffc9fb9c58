// Regular languages of bytes as terms, taken apart by derivatives (Brzozowski, "Derivatives of
// regular expressions", JACM 1964). Equal terms are one term, so that a state of the automaton is a
// number.
#ifndef MILLRACE_TEXT_GRAMMAR_REGULAR_H_
#define MILLRACE_TEXT_GRAMMAR_REGULAR_H_

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "base/thread_clock.h"

namespace millrace {

using ByteSet = std::bitset<256>;
using Regular = uint32_t;  // a term of a pool

inline constexpr Regular kNothing = 0;    // the empty language
inline constexpr Regular kEmptyText = 1;  // the language of the empty text
inline constexpr uint32_t kUnbounded = UINT32_MAX;

ByteSet ByteRange(int first, int last);

// Used by one thread at a time.
class RegularPool {
 public:
  RegularPool();

  Regular Set(const ByteSet& bytes);
  Regular Literal(std::string_view text);
  Regular Concat(Regular a, Regular b);
  Regular Concat(absl::Span<const Regular> parts);
  Regular Alt(const std::vector<Regular>& parts);
  Regular And(const std::vector<Regular>& parts);
  Regular Not(Regular a);
  Regular Repeat(Regular a, uint32_t min, uint32_t max = kUnbounded);
  Regular Optional(Regular a) { return Alt({kEmptyText, a}); }
  // Returns a term for one of `texts`, as a tree of their beginnings.
  Regular OneOf(std::vector<std::string_view> texts);
  // The texts of digits whose value is a multiple of `divisor`; a point among them is passed over.
  Regular MultipleOf(uint32_t divisor) { return Multiple(divisor, 0); }

  // Returns what may follow `byte` in the texts of `a`.
  Regular Derive(Regular a, uint8_t byte);
  bool Nullable(Regular a) const { return terms_[a].nullable; }
  // Returns whether a term has intersections or complements, so that it may be empty unseen.
  bool IsBoolean(Regular a) const { return terms_[a].boolean; }
  // Returns whether the language is empty. Where that takes too long, in states or beyond the
  // deadline, it says false, and sets undecided().
  bool IsEmpty(Regular a);
  bool undecided() const { return undecided_; }
  // Until it is set anew; max(): none, so that the answer depends on the term alone.
  using TimePoint = ThreadClock::time_point;
  void SetDeadline(TimePoint deadline) { deadline_ = deadline; }
  bool Matches(Regular a, std::string_view text);
  // Returns a number of bytes, at most kMostLeast, that no text of the language is shorter than.
  static constexpr uint32_t kMostLeast = 255;
  uint32_t Least(Regular a) const { return terms_[a].least; }
  // Returns how many parts that are not empty, of at least `least` bytes each, so many bytes meet.
  static uint32_t MostParts(uint32_t bytes, uint32_t least);

  // Returns a term that cannot be told from `a` by its first `bytes` bytes: whatever language comes
  // after the two, texts of up to so many bytes begin texts of both or of neither. Repetitions that
  // so many bytes cannot count to the end are without their end, so that terms that differ in how
  // far they have counted become one. At least kFewBytes bytes; only after FixClasses.
  static constexpr uint32_t kFewBytes = 32;
  Regular ClipCounts(Regular a, uint32_t bytes);

  // Sets the classes of bytes that no term tells apart. No new set may be added after it but
  // unions and intersections of those there are.
  void FixClasses();
  int num_classes() const { return num_classes_; }
  uint8_t ClassOf(uint8_t byte) const { return class_of_[byte]; }
  uint8_t ByteOf(int byte_class) const { return byte_of_[byte_class]; }

  // A partition of the classes whose blocks a term does not tell apart: for each class the first
  // one of its block. Derivatives by the bytes of a block are equal (Owens, Reppy and Turon,
  // "Regular-expression derivatives re-examined", 2009). Only after FixClasses.
  using Partition = uint32_t;
  static constexpr Partition kOneBlock = 0;
  Partition PartitionOf(Regular a);
  // Returns the coarsest partition that is finer than both.
  Partition Meet(Partition a, Partition b);
  const std::vector<uint8_t>& Blocks(Partition partition) const { return partitions_[partition]; }

  size_t size() const { return terms_.size(); }
  // Returns whether alternatives were left out, since there were more than kMostListed: terms that
  // were made since may stand for less than they should.
  bool overflowed() const { return overflowed_; }
  size_t bytes() const;

 private:
  static constexpr size_t kMostListed = 2 << 20;  // operands, of all terms

  enum class Kind : uint8_t {
    kNothing,
    kEmpty,
    kSet,
    kConcat,
    kAlt,
    kAnd,
    kNot,
    kRepeat,
    kMultiple
  };
  struct Term {
    Kind kind;
    bool nullable;
    bool boolean;
    uint32_t a = 0, b = 0, c = 0;  // operands, or a range of lists_, or the index of a set
    // Set by Measure:
    uint8_t least = 0;
    bool counts = false;  // whether ClipCounts may change the term
  };
  struct Key {
    Kind kind;
    std::vector<uint32_t> values;
    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      return H::combine(std::move(h), key.kind, key.values);
    }
  };

  Regular Intern(Key key, Term term);
  void Measure(const Key& key, Term* term) const;
  Regular List(Kind kind, std::vector<Regular> parts);
  Regular Multiple(uint32_t divisor, uint32_t remainder);
  Regular DeriveOne(Regular a, uint8_t byte);
  uint8_t KnownEmptiness(Regular a) const;
  void RememberEmptiness(Regular a, uint8_t what);
  std::vector<uint8_t> BytesOfClasses() const;
  bool IsLate() const;
  std::optional<bool> IsEmptyNearby(Regular a, absl::Span<const uint8_t> bytes);
  Regular DeriveConcat(Regular a, uint8_t byte);
  uint64_t DerivedKey(Regular a, uint8_t byte);
  Partition ComputePartition(Regular a);
  template <typename Change>
  Regular ChangeParts(Regular a, const Change& change);
  Regular WithoutEnds(Regular a, uint32_t bytes);
  bool EndsSoon(Regular a);
  Partition InternPartition(std::vector<uint8_t> blocks);
  absl::Span<const Regular> Operands(const Term& term) const {
    return absl::MakeConstSpan(lists_).subspan(term.a, term.b);
  }
  void Flatten(Kind kind, absl::Span<const Regular> parts, std::vector<Regular>* flat) const;

  std::vector<Term> terms_;
  std::vector<uint32_t> lists_;
  std::vector<ByteSet> sets_;
  absl::flat_hash_map<Key, Regular> interned_;
  absl::flat_hash_map<uint64_t, Regular> derived_;  // by DerivedKey
  std::vector<uint8_t> emptiness_;                  // by term: 0 unknown, 1 empty, 2 not
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> byte_of_;
  std::vector<std::vector<uint8_t>> partitions_;
  absl::flat_hash_map<std::vector<uint8_t>, Partition> partition_ids_;
  absl::flat_hash_map<uint64_t, Partition> meets_;  // (the smaller one, the larger one)
  std::vector<Partition> partition_of_;             // by term; kNoPartition: not yet known
  int num_classes_ = 0;
  bool undecided_ = false;
  bool overflowed_ = false;
  TimePoint deadline_ = TimePoint::max();
  absl::flat_hash_map<Regular, bool> ends_soon_;  // what EndsSoon has found
  size_t explored_in_vain_ = 0;                   // terms, by EndsSoon
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_REGULAR_H_
