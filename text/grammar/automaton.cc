#include "text/grammar/automaton.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// Bounds on one state: beyond them a grammar is too ambiguous to be followed.
constexpr size_t kMostReady = 20000;
constexpr size_t kMostExpanded = 100000;
constexpr size_t kFullBytes = 48 << 20;
constexpr size_t kMostMaskBytes = 32 << 20;
constexpr uint32_t kSmallSubtree = 24;  // nodes: walking it is as quick as looking for loops

using BytePair = std::pair<uint8_t, uint8_t>;
// The well-formed UTF-8 byte sequences (The Unicode Standard, table 3-7).
const std::vector<std::vector<BytePair>>& Characters() {
  static const auto& characters = *new std::vector<std::vector<BytePair>>{
      {{0xc2, 0xdf}, {0x80, 0xbf}},
      {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
      {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
      {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}},
  };
  return characters;
}

}  // namespace

GrammarAutomaton::GrammarAutomaton(std::shared_ptr<const GrammarBuilder> grammar)
    : original_(std::move(grammar)), grammar_(*original_), frames_(1), states_(1) {
  states_[kDead].next.assign(pool().num_classes(), kDead);
  states_[kDead].plain = kDead;
  class_kinds_.resize(static_cast<size_t>(pool().num_classes()));
  for (int byte = 0; byte < 256; ++byte) {
    const auto one = static_cast<uint8_t>(byte);
    class_kinds_[pool().ClassOf(one)] |= 1U << GrammarVocabulary::ByteKind(one);
  }
  Expand(PushNode(grammar_.root_, 0));
  start_ = Intern();
}

GrammarAutomaton::Stack GrammarAutomaton::Push(Frame frame) {
  const auto [it, is_new] = frame_ids_.try_emplace(frame, static_cast<Stack>(frames_.size()));
  if (is_new) frames_.push_back(frame);
  return it->second;
}

// Adds what a stack goes on with to the state in the making.
void GrammarAutomaton::Expand(Stack stack) {
  work_.push_back(stack);
  while (!work_.empty()) {
    const Stack top = work_.back();
    work_.pop_back();
    if (!visited_.emplace(top, true).second) continue;
    if (visited_.size() > kMostExpanded || ready_.size() > kMostReady) {
      too_ambiguous_ = true;
      work_.clear();
      return;
    }
    if (top == 0) {
      accepting_ = true;
    } else {
      ExpandTop(Frame(frames_[top]));
    }
  }
}

void GrammarAutomaton::AddReady(Regular term, Stack next) {
  ready_.push_back({term, next});
  if (pool().Nullable(term)) work_.push_back(next);
}

void GrammarAutomaton::ExpandTop(const Frame& frame) {
  using Kind = GrammarBuilder::Kind;
  const GrammarBuilder::Node& node = grammar_.nodes_[frame.node];
  // A repetition that may be left out has a place even if its part has none.
  if (!node.productive) return;
  switch (node.kind) {
    case Kind::kTerm:
      AddReady(node.a, frame.next);
      break;
    case Kind::kSequence: {
      const uint32_t at = frame.a;
      const Stack next = at + 1 == node.b
                             ? frame.next
                             : Push({.node = frame.node, .a = at + 1, .next = frame.next});
      work_.push_back(PushNode(grammar_.Parts(node)[at], next));
      break;
    }
    case Kind::kAlternative:
      for (const GrammarNode part : grammar_.Parts(node)) {
        work_.push_back(PushNode(part, frame.next));
      }
      break;
    case Kind::kRepeat: {
      // A frame's `a` and `b` count what has been taken, so that a fresh one has zeros.
      const uint32_t least = node.b - std::min(node.b, frame.a);
      if (least == 0) work_.push_back(frame.next);
      if (!grammar_.nodes_[node.a].productive) break;
      if (node.c != kUnbounded && frame.a == node.c) break;
      // Beyond the least, an unbounded one no longer counts.
      const uint32_t taken = node.c == kUnbounded ? std::min(frame.a + 1, node.b) : frame.a + 1;
      const Stack again = Push({.node = frame.node, .a = taken, .next = frame.next});
      work_.push_back(PushNode(node.a, again));
      break;
    }
    case Kind::kRule:
      work_.push_back(PushNode(grammar_.rules_[node.a].body, frame.next));
      break;
  }
}

// Makes a state of what Expand has added. Terms before the same stack become one.
GrammarAutomaton::State GrammarAutomaton::Intern() {
  std::sort(ready_.begin(), ready_.end(), [](const Ready& a, const Ready& b) {
    return a.next != b.next ? a.next < b.next : a.term < b.term;
  });
  std::vector<Ready> merged;
  for (size_t i = 0; i < ready_.size();) {
    std::vector<Regular> terms;
    const Stack next = ready_[i].next;
    for (; i < ready_.size() && ready_[i].next == next; ++i) terms.push_back(ready_[i].term);
    merged.push_back({terms.size() == 1 ? terms[0] : pool().Alt(terms), next});
  }
  // A term that accepts the empty text alone has nothing to go on with.
  std::erase_if(merged, [](const Ready& ready) { return ready.term <= kEmptyText; });
  std::vector<uint32_t> key{accepting_ ? 1U : 0U};
  for (const Ready& ready : merged) {
    key.push_back(ready.term);
    key.push_back(ready.next);
  }
  const bool accepting = std::exchange(accepting_, false);
  ready_.clear();
  visited_.clear();
  if (merged.empty() && !accepting) return kDead;
  const auto [it, is_new] =
      state_ids_.try_emplace(std::move(key), static_cast<State>(states_.size()));
  if (is_new) {
    StateData& data = states_.emplace_back();
    data.ready = std::move(merged);
    data.next.assign(pool().num_classes(), kUnknown);
    for (const Ready& ready : data.ready) {
      data.partition = pool().Meet(data.partition, pool().PartitionOf(ready.term));
    }
    data.accepting = accepting;
    state_bytes_ += sizeof(StateData) + data.next.size() * 4 + data.ready.size() * 24 + 64;
  }
  return it->second;
}

GrammarAutomaton::State GrammarAutomaton::ComputeStep(State state, uint8_t byte) {
  // Expanding may add frames and terms, but no state: the references stay.
  for (const Ready& ready : states_[state].ready) {
    const Regular term = pool().Derive(ready.term, byte);
    if (term == kNothing || pool().IsEmpty(term)) continue;
    ready_.push_back({term, ready.next});
    if (pool().Nullable(term)) Expand(ready.next);
  }
  too_ambiguous_ = too_ambiguous_ || pool().overflowed();
  if (too_ambiguous_) {
    ready_.clear();
    visited_.clear();
    accepting_ = false;
    return kDead;
  }
  const State next = Intern();
  const std::vector<uint8_t>& blocks = pool().Blocks(states_[state].partition);
  const uint8_t first = blocks[pool().ClassOf(byte)];
  for (size_t i = first; i < blocks.size(); ++i) {
    if (blocks[i] == first) states_[state].next[i] = next;
  }
  return next;
}

GrammarAutomaton::State GrammarAutomaton::Move(State state, std::string_view bytes) {
  std::lock_guard lock(mutex_);
  for (const char c : bytes) {
    if (state == kDead) break;
    state = Step(state, static_cast<uint8_t>(c));
  }
  return state;
}

bool GrammarAutomaton::Accepting(State state) {
  std::lock_guard lock(mutex_);
  return states_[state].accepting;
}

bool GrammarAutomaton::Finished(State state) {
  std::lock_guard lock(mutex_);
  if (!states_[state].accepting) return false;
  for (int i = 0; i < pool().num_classes(); ++i) {
    if (Step(state, pool().ByteOf(i)) != kDead) return false;
  }
  return true;
}

std::string GrammarAutomaton::Forced(State state) {
  constexpr size_t kMost = 4096;
  std::lock_guard lock(mutex_);
  std::string forced;
  while (forced.size() < kMost && !states_[state].accepting) {
    int only = -1;
    for (int byte = 0; byte < 256 && only != 256; ++byte) {
      if (Step(state, static_cast<uint8_t>(byte)) != kDead) only = only < 0 ? byte : 256;
    }
    if (only < 0 || only == 256) break;
    forced += static_cast<char>(only);
    state = Step(state, static_cast<uint8_t>(only));
  }
  return forced;
}

// Returns where the sequences of bytes in these ranges lead, if it is the same state for all.
GrammarAutomaton::State GrammarAutomaton::CharacterStep(State state,
                                                        absl::Span<const BytePair> bytes) {
  State to = kUnknown;
  std::bitset<256> seen;
  for (int byte = bytes[0].first; byte <= bytes[0].second; ++byte) {
    const uint8_t byte_class = pool().ClassOf(static_cast<uint8_t>(byte));
    if (seen[byte_class]) continue;
    seen.set(byte_class);
    State next = Step(state, static_cast<uint8_t>(byte));
    if (next != kDead && bytes.size() > 1) next = CharacterStep(next, bytes.subspan(1));
    if (to == kUnknown) to = next;
    if (next != to || next == kMixed) return kMixed;
  }
  return to;
}

GrammarAutomaton::State GrammarAutomaton::PlainStep(State state) {
  if (states_[state].plain != kUnknown) return states_[state].plain;
  const BytePair ascii[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}};
  State to = kUnknown;
  const auto add = [&](absl::Span<const BytePair> bytes) {
    const State next = CharacterStep(state, bytes);
    if (to == kUnknown) to = next;
    if (next != to) to = kMixed;
    return to != kMixed;
  };
  bool same = true;
  for (const BytePair& range : ascii) same = same && add({&range, 1});
  for (const auto& character : Characters()) same = same && add(character);
  return states_[state].plain = same ? to : kMixed;
}

uint32_t GrammarAutomaton::Loops(State state) {
  if (states_[state].loops >= 0) return static_cast<uint32_t>(states_[state].loops);
  uint32_t loops = (1U << GrammarVocabulary::kNumKinds) - 1;
  for (size_t i = 0; i < class_kinds_.size() && loops != 0; ++i) {
    if ((loops & class_kinds_[i]) == 0) continue;
    if (Step(state, pool().ByteOf(static_cast<int>(i))) != state) loops &= ~class_kinds_[i];
  }
  states_[state].loops = static_cast<int32_t>(loops);
  return loops;
}

void GrammarAutomaton::Walk(const GrammarVocabulary::Trie& trie, State state, TokenMask* mask) {
  const auto allow = [&](uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const auto token = static_cast<uint32_t>(trie.tokens[i]);
      (*mask)[token / 32] |= 1U << (token % 32);
    }
  };
  path_[0] = state;
  const auto size = static_cast<uint32_t>(trie.nodes.size() - 1);
  for (uint32_t i = 0; i < size;) {
    const GrammarVocabulary::Node& node = trie.nodes[i];
    const State next = Step(path_[node.depth - 1], node.byte);
    if (next == kDead) {
      i = node.skip;
      continue;
    }
    allow(node.first, node.first + node.ends);
    path_[node.depth] = next;
    if (node.skip - i > kSmallSubtree && (node.classes & ~Loops(next)) == 0) {
      allow(node.first + node.ends, trie.nodes[node.skip].first);
      i = node.skip;
    } else {
      ++i;
    }
  }
}

absl::Status GrammarAutomaton::FillMask(State state, const GrammarVocabulary& vocabulary,
                                        TokenMask* mask) {
  int characters = 0;
  State at = state;
  while (characters < vocabulary.longest_plain()) {
    const State next = PlainStep(at);
    if (next >= kMixed || next == kDead) break;
    ++characters;
    if (next == at) characters = vocabulary.longest_plain();
    at = next;
  }
  // Whole if plain text of any length is taken, or none that is longer.
  const bool whole =
      characters == vocabulary.longest_plain() || (characters > 0 && PlainStep(at) == kDead);
  if (whole) {
    *mask = vocabulary.Plain(characters);
    Walk(vocabulary.rest(), state, mask);
  } else {
    mask->assign(vocabulary.mask_words(), 0);
    Walk(vocabulary.all(), state, mask);
  }
  if (states_[state].accepting) {
    for (const Token token : vocabulary.end_tokens()) {
      (*mask)[static_cast<size_t>(token) / 32] |= 1U << (token % 32);
    }
  }
  if (!too_ambiguous_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      "the grammar is too ambiguous: the text so far can be read in too many ways");
}

absl::StatusOr<std::shared_ptr<const TokenMask>> GrammarAutomaton::Mask(
    State state, const std::shared_ptr<const GrammarVocabulary>& vocabulary) {
  std::lock_guard lock(mutex_);
  if (masks_owner_ != vocabulary) Forget(vocabulary);
  if (masks_.size() * vocabulary->mask_words() * 4 > kMostMaskBytes) masks_.clear();
  state = MaskState(state);
  std::shared_ptr<const TokenMask>& mask = masks_[state];
  if (mask == nullptr) {
    auto made = std::make_shared<TokenMask>();
    if (absl::Status status = FillMask(state, *vocabulary, made.get()); !status.ok()) {
      masks_.erase(state);
      return status;
    }
    mask = std::move(made);
  }
  return mask;
}

bool GrammarAutomaton::Full() const {
  std::lock_guard lock(mutex_);
  return too_ambiguous_ || state_bytes_ + frames_.size() * 64 + pool_bytes() > kFullBytes;
}

size_t GrammarAutomaton::bytes() const {
  std::lock_guard lock(mutex_);
  return state_bytes_ + frames_.size() * 64 + pool_bytes() +
         masks_.size() * (masks_owner_ == nullptr ? 0 : masks_owner_->mask_words() * 4);
}

}  // namespace millrace
