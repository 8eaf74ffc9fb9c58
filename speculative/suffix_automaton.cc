#include "speculative/suffix_automaton.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace millrace {

SuffixAutomaton::SuffixAutomaton(int32_t min_length) : min_length_(min_length) {
  AddState(0, -1, 0);
}

SuffixAutomaton::SuffixAutomaton(int32_t min_length, absl::Span<const Token> text)
    : SuffixAutomaton(min_length) {
  text_.reserve(text.size());
  for (const Token token : text) Append(token);
  states_.shrink_to_fit();
  edges_.shrink_to_fit();
}

void SuffixAutomaton::Append(Token token) {
  text_.push_back(token);
  const auto end = static_cast<int32_t>(text_.size());
  const int32_t whole = AddState(end, 0, end);
  int32_t state = last_;
  int32_t target = 0;
  while (state >= 0 && (target = Target(state, token)) == 0) {
    SetTarget(state, token, whole);
    state = states_[state].link;
  }
  if (state >= 0) {
    const int32_t length = states_[state].length + 1;
    int32_t link = target;
    if (states_[target].length != length) {
      // The target's shorter substrings now end here, too, and its longer ones do not.
      link = Clone(target, length);
      for (; state >= 0 && Target(state, token) == target; state = states_[state].link) {
        SetTarget(state, token, link);
      }
      states_[target].link = link;
    }
    states_[whole].link = link;
  }
  last_ = whole;

  const int32_t link = states_[whole].link;
  repeated_ = {link, states_[link].length};
  repeated_end_ = states_[link].end;
  int updates = 0;
  for (int32_t suffix = link; states_[suffix].length >= min_length_ && updates < kMostUpdates;
       suffix = states_[suffix].link, ++updates) {
    states_[suffix].end = end;
  }
}

void SuffixAutomaton::Follow(Token token, Match& match) const {
  int32_t target = 0;
  while ((target = Target(match.state, token)) == 0) {
    match.state = states_[match.state].link;
    if (match.state < 0) {
      match = {};
      return;
    }
    match.length = states_[match.state].length;
  }
  match = {target, match.length + 1};
}

size_t SuffixAutomaton::MemoryBytes() const {
  return text_.capacity() * sizeof(Token) + states_.capacity() * sizeof(State) +
         edges_.capacity() * sizeof(Edge) + slots_.capacity() * sizeof(int32_t);
}

int32_t SuffixAutomaton::AddState(int32_t length, int32_t link, int32_t end) {
  states_.push_back(
      {.length = length, .link = link, .end = end, .token = 0, .target = 0, .edge = -1});
  return static_cast<int32_t>(states_.size()) - 1;
}

int32_t SuffixAutomaton::Clone(int32_t state, int32_t length) {
  const State from = states_[state];
  const int32_t clone = AddState(length, from.link, from.end);
  states_[clone].token = from.token;
  states_[clone].target = from.target;
  for (int32_t edge = from.edge; edge >= 0; edge = edges_[edge].next) {
    AddEdge(clone, edges_[edge].token, edges_[edge].target);
  }
  return clone;
}

int32_t SuffixAutomaton::Target(int32_t state, Token token) const {
  const State& from = states_[state];
  if (from.target != 0 && from.token == token) return from.target;
  if (from.edge < 0) return 0;
  const int32_t edge = slots_[SlotOf(state, token)];
  return edge < 0 ? 0 : edges_[edge].target;
}

void SuffixAutomaton::SetTarget(int32_t state, Token token, int32_t target) {
  State& from = states_[state];
  if (from.target == 0 || from.token == token) {
    from.token = token;
    from.target = target;
    return;
  }
  if (from.edge >= 0) {
    const int32_t edge = slots_[SlotOf(state, token)];
    if (edge >= 0) {
      edges_[edge].target = target;
      return;
    }
  }
  AddEdge(state, token, target);
}

// Returns the slot that has the edge, or where it would go. There are free slots.
size_t SuffixAutomaton::SlotOf(int32_t state, Token token) const {
  size_t slot = absl::HashOf(state, token) & (slots_.size() - 1);
  for (int32_t edge; (edge = slots_[slot]) >= 0; slot = (slot + 1) & (slots_.size() - 1)) {
    if (edges_[edge].state == state && edges_[edge].token == token) break;
  }
  return slot;
}

void SuffixAutomaton::AddEdge(int32_t state, Token token, int32_t target) {
  if ((edges_.size() + 1) * 4 > slots_.size() * 3) GrowSlots();
  const auto edge = static_cast<int32_t>(edges_.size());
  edges_.push_back({state, token, target, states_[state].edge});
  states_[state].edge = edge;
  slots_[SlotOf(state, token)] = edge;
}

void SuffixAutomaton::GrowSlots() {
  slots_.assign(std::max<size_t>(slots_.size() * 2, 16), -1);
  for (int32_t edge = 0; edge < static_cast<int32_t>(edges_.size()); ++edge) {
    slots_[SlotOf(edges_[edge].state, edges_[edge].token)] = edge;
  }
}

}  // namespace millrace
