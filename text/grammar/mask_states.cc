// GrammarAutomaton::MaskState: states that have the same mask, whatever they have counted.
//
// A mask only depends on what can come within the longest token. The states after one character and
// after two of [a-z]{20000} allow the same tokens, though they are different states. Masks are
// therefore made of a state in which counts that no token can use up are clipped; most states are
// such a state themselves. clipped_counts.cc says why that is exact for terms. The parts that a
// repetition of the stack still takes are clipped for the same reason, where a part is not empty.
#include <algorithm>
#include <utility>
#include <vector>

#include "text/grammar/automaton.h"

namespace millrace {

// Begins with the masks of another vocabulary.
void GrammarAutomaton::Forget(const std::shared_ptr<const GrammarVocabulary>& vocabulary) {
  masks_.clear();
  masks_owner_ = vocabulary;
  longest_token_ = std::max(RegularPool::kFewBytes, static_cast<uint32_t>(vocabulary->longest()));
  clipped_stacks_.clear();
  for (StateData& state : states_) state.mask_state = kUnknown;
}

// Returns a state with the same mask as `state`.
GrammarAutomaton::State GrammarAutomaton::MaskState(State state) {
  if (states_[state].mask_state != kUnknown) return states_[state].mask_state;
  bool same = true;
  // Clipping may add frames and terms, but no state: the reference stays.
  for (const Ready& ready : states_[state].ready) {
    const Ready clipped{pool().ClipCounts(ready.term, longest_token_), ClipStack(ready.next)};
    same = same && clipped == ready;
    ready_.push_back(clipped);
  }
  State result = state;
  if (same) {
    ready_.clear();
  } else {
    accepting_ = states_[state].accepting;
    result = Intern();
  }
  return states_[state].mask_state = result;
}

// Stacks may be as deep as an answer, so that there is no recursion. A stack is younger than the
// one beneath it.
GrammarAutomaton::Stack GrammarAutomaton::ClipStack(Stack stack) {
  if (clipped_stacks_.size() < frames_.size()) clipped_stacks_.resize(frames_.size(), kUnknown);
  clipped_stacks_[0] = 0;
  std::vector<Stack> path;
  for (; clipped_stacks_[stack] == kUnknown; stack = frames_[stack].next) path.push_back(stack);
  Stack clipped = clipped_stacks_[stack];
  for (size_t i = path.size(); i-- > 0;) {
    Frame frame = frames_[path[i]];
    frame.next = clipped;
    clipped = clipped_stacks_[path[i]] = ClipFrame(frame);
  }
  return clipped;
}

GrammarAutomaton::Stack GrammarAutomaton::ClipFrame(Frame frame) {
  const GrammarBuilder::Node& node = grammar_.nodes_[frame.node];
  if (node.kind != GrammarBuilder::Kind::kRepeat) return Push(frame);
  const GrammarBuilder::Node& part = grammar_.nodes_[node.a];
  if (part.nullable) return Push(frame);
  // A token meets at most so many parts. Of the counts that are alike the last one is taken, which
  // has the fewest parts to come.
  const uint32_t most = RegularPool::MostParts(longest_token_, part.least);
  if (uint64_t{frame.a} + most <= node.b) {
    frame.a = node.b - most;
  } else if (frame.a >= node.b && node.c != kUnbounded && uint64_t{frame.a} + most <= node.c) {
    frame.a = node.c - most;
  }
  return Push(frame);
}

}  // namespace millrace
