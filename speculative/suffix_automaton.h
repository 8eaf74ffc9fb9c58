// Finds the longest suffix of one text of tokens that occurs in another, or earlier in itself.
#ifndef MILLRACE_SPECULATIVE_SUFFIX_AUTOMATON_H_
#define MILLRACE_SPECULATIVE_SUFFIX_AUTOMATON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/token.h"

namespace millrace {

// The suffix automaton of a text that grows at its end: Blumer, Blumer, Haussler, Ehrenfeucht, Chen
// and Seiferas, "The smallest automaton recognizing the subwords of a text" (1985). A state stands
// for the substrings that end at the same positions of the text, and its link for the longest
// suffix of them that ends at others, too. Append and Follow take O(1) amortized.
//
// Memory: at most 80 bytes a token plus the unused capacity of three vectors, about 60 for source
// code and prose. A copy is independent. Thread-safe as a const object.
class SuffixAutomaton {
 public:
  // The longest suffix of some text that occurs in this one.
  struct Match {
    int32_t state = 0;
    int32_t length = 0;  // tokens
  };

  // EndOf is exact only of matches of at least `min_length` tokens: shorter ones are not kept up to
  // date.
  explicit SuffixAutomaton(int32_t min_length);
  // Makes the automaton of `text`, of fewer than 2^30 tokens, without spare capacity.
  SuffixAutomaton(int32_t min_length, absl::Span<const Token> text);

  void Append(Token token);

  absl::Span<const Token> text() const { return text_; }

  // Adds the next token of the other text to its match.
  void Follow(Token token, Match& match) const;

  // Returns the position after the last occurrence of the match. Of a text that repeats itself so
  // much that more than kMostUpdates of its suffixes have different numbers of occurrences, the
  // shorter ones may get an earlier occurrence.
  int32_t EndOf(const Match& match) const { return states_[match.state].end; }

  // The longest suffix of this text that occurs earlier in it, and the position after its last
  // earlier occurrence.
  Match repeated() const { return repeated_; }
  int32_t repeated_end() const { return repeated_end_; }

  // Returns the bytes that the automaton has allocated.
  size_t MemoryBytes() const;

 private:
  static constexpr int kMostUpdates = 32;

  // Most states have one transition, which lies in the state itself; the others are Edges.
  struct State {
    int32_t length;  // of the longest substring
    int32_t link;    // -1: of the root
    int32_t end;     // EndOf
    Token token;     // of the first transition
    int32_t target;  // 0: there is none; no transition leads to the root
    int32_t edge;    // the last added; -1: none
  };
  struct Edge {
    int32_t state;
    Token token;
    int32_t target;
    int32_t next;  // the state's edge before; -1: none
  };

  int32_t AddState(int32_t length, int32_t link, int32_t end);
  int32_t Clone(int32_t state, int32_t length);
  int32_t Target(int32_t state, Token token) const;  // 0: none
  void SetTarget(int32_t state, Token token, int32_t target);
  size_t SlotOf(int32_t state, Token token) const;
  void AddEdge(int32_t state, Token token, int32_t target);
  void GrowSlots();

  int32_t min_length_;
  int32_t last_ = 0;  // the state of the whole text
  Match repeated_;
  int32_t repeated_end_ = 0;
  std::vector<Token> text_;
  std::vector<State> states_;   // the root first; at most two for each token
  std::vector<Edge> edges_;     // at most one for each token
  std::vector<int32_t> slots_;  // open addressing: an index into edges_, or -1; a power of two
};

}  // namespace millrace

#endif  // MILLRACE_SPECULATIVE_SUFFIX_AUTOMATON_H_
