// Follows a context-free grammar over bytes by sets of stacks, and remembers what it has seen.
//
// A grammar's nodes are put together by GrammarBuilder. The automaton keeps, for each text so far,
// the set of its possible continuations: a regular term to go on with, and the stack of nodes that
// come after it. Stacks are shared lists, equal ones are one, and so are equal sets: a state is a
// number, and its transitions and its mask are computed once.
#ifndef MILLRACE_TEXT_GRAMMAR_AUTOMATON_H_
#define MILLRACE_TEXT_GRAMMAR_AUTOMATON_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "text/grammar/grammar.h"
#include "text/grammar/regular.h"
#include "text/grammar/vocabulary.h"

namespace millrace {

using GrammarNode = uint32_t;

// The nodes of a grammar. Whatever is regular stays one term.
class GrammarBuilder {
 public:
  explicit GrammarBuilder(const GrammarLimits& limits);

  RegularPool& regular() { return pool_; }
  const GrammarLimits& limits() const { return limits_; }

  GrammarNode Term(Regular term);
  GrammarNode Literal(std::string_view text) { return Term(pool_.Literal(text)); }
  // The text, or the special token that is written so.
  GrammarNode Marker(std::string_view text);
  GrammarNode Sequence(absl::Span<const GrammarNode> parts);
  GrammarNode Alternative(absl::Span<const GrammarNode> parts);
  GrammarNode Repeat(GrammarNode part, uint32_t min, uint32_t max = kUnbounded);
  GrammarNode Optional(GrammarNode part) { return Alternative({Term(kEmptyText), part}); }
  // A rule may be referred to before its body is set.
  uint32_t AddRule(std::string name);
  GrammarNode Rule(uint32_t rule);
  void SetRule(uint32_t rule, GrammarNode body) { rules_[rule].body = body; }

  // Returns the term if the node is regular.
  const Regular* AsTerm(GrammarNode node) const;

  // Returns InvalidArgument or Cancelled once the time or the number of nodes is exceeded. To be
  // called often.
  absl::Status Check();

  // Checks the grammar for the texts from `root`: InvalidArgument if there is none, or if a rule
  // begins with itself.
  absl::Status Finish(GrammarNode root);

 private:
  friend class GrammarAutomaton;
  enum class Kind : uint8_t { kTerm, kSequence, kAlternative, kRepeat, kRule };
  struct Node {
    Kind kind;
    uint32_t a = 0;  // the term, the part, the rule, or the begin of `parts_`
    uint32_t b = 0, c = 0;
    bool productive = false;
    bool nullable = false;
    uint8_t least = 0;  // no text has fewer bytes; at most RegularPool::kMostLeast
  };
  struct RuleBody {
    std::string name;
    GrammarNode body = 0;
  };

  GrammarNode Add(Node node) {
    nodes_.push_back(node);
    return static_cast<GrammarNode>(nodes_.size() - 1);
  }
  absl::Span<const GrammarNode> Parts(const Node& node) const {
    return absl::MakeConstSpan(parts_).subspan(node.a, node.b);
  }
  bool UpdateNode(Node& node);
  bool UpdateLeast(Node& node) const;
  absl::Status CheckLeftRecursion() const;
  void AddLeftParts(const Node& node, std::vector<GrammarNode>* left) const;

  GrammarLimits limits_;
  RegularPool::TimePoint deadline_;
  unsigned checks_ = 0;
  RegularPool pool_;
  std::vector<Node> nodes_;
  std::vector<GrammarNode> parts_;
  std::vector<RuleBody> rules_;
  absl::flat_hash_map<Regular, GrammarNode> terms_;
  GrammarNode root_ = 0;
};

// Any thread may use it: a lock guards it, held for a transition or a mask.
class GrammarAutomaton {
 public:
  using State = uint32_t;
  static constexpr State kDead = 0;

  explicit GrammarAutomaton(std::shared_ptr<const GrammarBuilder> grammar);

  State start() const { return start_; }
  State Move(State state, std::string_view bytes);
  bool Accepting(State state);
  bool Finished(State state);
  std::string Forced(State state);
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask(
      State state, const std::shared_ptr<const GrammarVocabulary>& vocabulary);
  // Returns whether its memory has grown so large that another automaton should go on.
  bool Full() const;
  size_t bytes() const;
  const std::shared_ptr<const GrammarBuilder>& grammar() const { return original_; }

 private:
  using Stack = uint32_t;  // 0: empty
  // A stack's top: a node, the remainder of a sequence or a repetition.
  struct Frame {
    uint32_t node = 0;  // of the builder
    uint32_t a = 0;     // the next part of a sequence; the parts of a repetition that were taken
    Stack next = 0;
    bool operator==(const Frame&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Frame& f) {
      return H::combine(std::move(h), f.node, f.a, f.next);
    }
  };
  // A term to go on with and the stack behind it.
  struct Ready {
    Regular term;
    Stack next;
    auto operator<=>(const Ready&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Ready& r) {
      return H::combine(std::move(h), r.term, r.next);
    }
  };
  struct StateData {
    std::vector<Ready> ready;
    std::vector<State> next;                                    // by class of byte; kUnknown
    RegularPool::Partition partition = RegularPool::kOneBlock;  // of classes that lead alike
    bool accepting = false;
    State plain = kUnknown;       // where every character of plain text leads; kMixed if to several
    State mask_state = kUnknown;  // what MaskState returns
    int32_t loops = -1;           // the kinds of bytes that all lead back; -1: not yet known
  };
  static constexpr State kUnknown = UINT32_MAX;
  static constexpr State kMixed = UINT32_MAX - 1;

  Stack Push(Frame frame);
  Stack PushNode(GrammarNode node, Stack next) { return Push({.node = node, .next = next}); }
  void Expand(Stack stack);
  void ExpandTop(const Frame& frame);
  void AddReady(Regular term, Stack next);
  State Intern();
  State Step(State state, uint8_t byte) {
    const State next = states_[state].next[pool().ClassOf(byte)];
    return next != kUnknown ? next : ComputeStep(state, byte);
  }
  State ComputeStep(State state, uint8_t byte);
  State PlainStep(State state);
  State CharacterStep(State state, absl::Span<const std::pair<uint8_t, uint8_t>> bytes);
  uint32_t Loops(State state);
  State MaskState(State state);
  Stack ClipStack(Stack stack);
  Stack ClipFrame(Frame frame);
  void Forget(const std::shared_ptr<const GrammarVocabulary>& vocabulary);
  void Walk(const GrammarVocabulary::Trie& trie, State state, TokenMask* mask);
  absl::Status FillMask(State state, const GrammarVocabulary& vocabulary, TokenMask* mask);
  RegularPool& pool() { return grammar_.pool_; }
  size_t pool_bytes() const { return grammar_.pool_.bytes(); }

  const std::shared_ptr<const GrammarBuilder> original_;  // what another automaton begins with
  mutable std::mutex mutex_;
  // All below is guarded by mutex_.
  GrammarBuilder grammar_;
  std::vector<Frame> frames_;
  absl::flat_hash_map<Frame, Stack> frame_ids_;
  std::vector<StateData> states_;
  absl::flat_hash_map<std::vector<uint32_t>, State> state_ids_;
  std::vector<uint32_t> class_kinds_;  // by class, a bit for each kind that a byte of it has
  State start_ = kDead;
  size_t state_bytes_ = 0;
  bool too_ambiguous_ = false;

  // The state in the making.
  std::vector<Stack> work_;
  absl::flat_hash_map<Stack, bool> visited_;
  std::vector<Ready> ready_;
  bool accepting_ = false;

  std::shared_ptr<const GrammarVocabulary> masks_owner_;
  uint32_t longest_token_ = 0;         // of masks_owner_, in bytes; at least kFewBytes
  std::vector<Stack> clipped_stacks_;  // by stack, what ClipStack returns; kUnknown
  absl::flat_hash_map<State, std::shared_ptr<const TokenMask>> masks_;  // by MaskState
  std::vector<State> path_ = std::vector<State>(257);
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_AUTOMATON_H_
