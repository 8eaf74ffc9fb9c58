// GrammarBuilder: nodes of a grammar, and the checks of it as a whole.
#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "base/thread_clock.h"
#include "text/grammar/automaton.h"

namespace millrace {

GrammarBuilder::GrammarBuilder(const GrammarLimits& limits)
    : limits_(limits), deadline_(ThreadClock::now() + limits.time) {
  pool_.SetDeadline(deadline_);
  Term(kNothing);
}

GrammarNode GrammarBuilder::Term(Regular term) {
  const auto [it, is_new] = terms_.try_emplace(term, 0);
  if (is_new) it->second = Add({.kind = Kind::kTerm, .a = term});
  return it->second;
}

const Regular* GrammarBuilder::AsTerm(GrammarNode node) const {
  const Node& n = nodes_[node];
  // A term that may be empty unseen stays apart: whether it is can then be told by itself.
  return n.kind == Kind::kTerm && !pool_.IsBoolean(n.a) ? &n.a : nullptr;
}

GrammarNode GrammarBuilder::Sequence(absl::Span<const GrammarNode> parts) {
  std::vector<GrammarNode> merged;
  std::vector<Regular> run;  // adjacent terms, to become one: at once, as each has all behind it
  const auto end_run = [&] {
    if (!run.empty()) merged.push_back(Term(pool_.Concat(run)));
    run.clear();
  };
  for (const GrammarNode part : parts) {
    if (part == Term(kNothing)) return part;
    if (const Regular* term = AsTerm(part)) {
      if (*term != kEmptyText) run.push_back(*term);
      continue;
    }
    end_run();
    merged.push_back(part);
  }
  end_run();
  if (merged.empty()) return Term(kEmptyText);
  if (merged.size() == 1) return merged[0];
  const auto begin = static_cast<uint32_t>(parts_.size());
  parts_.insert(parts_.end(), merged.begin(), merged.end());
  return Add({.kind = Kind::kSequence, .a = begin, .b = static_cast<uint32_t>(merged.size())});
}

GrammarNode GrammarBuilder::Alternative(absl::Span<const GrammarNode> parts) {
  std::vector<Regular> terms;
  std::vector<GrammarNode> others;
  for (const GrammarNode part : parts) {
    const Regular* term = AsTerm(part);
    if (term != nullptr) {
      terms.push_back(*term);
    } else {
      others.push_back(part);
    }
  }
  const Regular term = pool_.Alt(terms);
  if (term != kNothing || others.empty()) others.push_back(Term(term));
  std::sort(others.begin(), others.end());
  others.erase(std::unique(others.begin(), others.end()), others.end());
  if (others.size() == 1) return others[0];
  const auto begin = static_cast<uint32_t>(parts_.size());
  parts_.insert(parts_.end(), others.begin(), others.end());
  return Add({.kind = Kind::kAlternative, .a = begin, .b = static_cast<uint32_t>(others.size())});
}

GrammarNode GrammarBuilder::Marker(std::string_view text) {
  std::string framed(1, static_cast<char>(GrammarVocabulary::kSpecialOpen));
  framed += text;
  framed += static_cast<char>(GrammarVocabulary::kSpecialClose);
  return Alternative({Literal(text), Literal(framed)});
}

GrammarNode GrammarBuilder::Repeat(GrammarNode part, uint32_t min, uint32_t max) {
  if (max < min) return Term(kNothing);
  if (const Regular* term = AsTerm(part)) return Term(pool_.Repeat(*term, min, max));
  if (max == 0) return Term(kEmptyText);
  if (min == 1 && max == 1) return part;
  return Add({.kind = Kind::kRepeat, .a = part, .b = min, .c = max});
}

uint32_t GrammarBuilder::AddRule(std::string name) {
  rules_.push_back({std::move(name)});
  return static_cast<uint32_t>(rules_.size() - 1);
}

GrammarNode GrammarBuilder::Rule(uint32_t rule) { return Add({.kind = Kind::kRule, .a = rule}); }

absl::Status GrammarBuilder::Check() {
  if (limits_.cancelled != nullptr && *limits_.cancelled) {
    return absl::CancelledError("the compilation of a grammar was cancelled");
  }
  if (nodes_.size() + pool_.size() > limits_.nodes || pool_.overflowed()) {
    return absl::InvalidArgumentError(
        StrCat("it is too large: its grammar has more than ", limits_.nodes, " nodes"));
  }
  if (++checks_ % 16 == 0 && ThreadClock::now() > deadline_) {
    return absl::InvalidArgumentError(
        StrCat("it is too complex: it takes more than ", limits_.time.count(), " ms to compile"));
  }
  return absl::OkStatus();
}

// Returns whether the node's properties, which only ever become true, have changed.
bool GrammarBuilder::UpdateNode(Node& node) {
  bool productive = false, nullable = false;
  const auto is_productive = [this](GrammarNode part) { return nodes_[part].productive; };
  const auto is_nullable = [this](GrammarNode part) { return nodes_[part].nullable; };
  switch (node.kind) {
    case Kind::kTerm:
      productive = node.productive || !pool_.IsEmpty(node.a);
      nullable = pool_.Nullable(node.a);
      break;
    case Kind::kSequence:
      productive = std::all_of(Parts(node).begin(), Parts(node).end(), is_productive);
      nullable = std::all_of(Parts(node).begin(), Parts(node).end(), is_nullable);
      break;
    case Kind::kAlternative:
      productive = std::any_of(Parts(node).begin(), Parts(node).end(), is_productive);
      nullable = std::any_of(Parts(node).begin(), Parts(node).end(), is_nullable);
      break;
    case Kind::kRepeat:
      productive = node.b == 0 || is_productive(node.a);
      nullable = node.b == 0 || is_nullable(node.a);
      break;
    case Kind::kRule:
      productive = is_productive(rules_[node.a].body);
      nullable = is_nullable(rules_[node.a].body);
      break;
  }
  const bool changed = productive != node.productive || nullable != node.nullable;
  node.productive = productive;
  node.nullable = nullable;
  return changed;
}

// Returns whether the node's least number of bytes, which only ever grows, has changed.
bool GrammarBuilder::UpdateLeast(Node& node) const {
  uint64_t least = 0;
  switch (node.kind) {
    case Kind::kTerm:
      least = pool_.Least(node.a);
      break;
    case Kind::kSequence:
      for (const GrammarNode part : Parts(node)) least += nodes_[part].least;
      break;
    case Kind::kAlternative:
      least = RegularPool::kMostLeast;
      for (const GrammarNode part : Parts(node)) {
        least = std::min<uint64_t>(least, nodes_[part].least);
      }
      break;
    case Kind::kRepeat:
      least = uint64_t{node.b} * nodes_[node.a].least;
      break;
    case Kind::kRule:
      least = nodes_[rules_[node.a].body].least;
      break;
  }
  const auto before = node.least;
  node.least = static_cast<uint8_t>(std::min<uint64_t>(least, RegularPool::kMostLeast));
  return node.least != before;
}

// Appends the nodes that a text of `node` may begin with.
void GrammarBuilder::AddLeftParts(const Node& node, std::vector<GrammarNode>* left) const {
  switch (node.kind) {
    case Kind::kTerm:
      break;
    case Kind::kSequence:
      for (const GrammarNode part : Parts(node)) {
        left->push_back(part);
        if (!nodes_[part].nullable) break;
      }
      break;
    case Kind::kAlternative:
      left->insert(left->end(), Parts(node).begin(), Parts(node).end());
      break;
    case Kind::kRepeat:
      left->push_back(node.a);
      break;
    case Kind::kRule:
      left->push_back(rules_[node.a].body);
      break;
  }
}

// A rule that may begin with itself would be expanded without end.
absl::Status GrammarBuilder::CheckLeftRecursion() const {
  struct Visit {
    GrammarNode node;
    std::vector<GrammarNode> left;
    size_t next = 0;
  };
  std::vector<uint8_t> color(nodes_.size());  // 1: on the path, 2: done
  for (GrammarNode start = 0; start < nodes_.size(); ++start) {
    if (color[start] != 0) continue;
    std::vector<Visit> path;
    const auto enter = [&](GrammarNode node) {
      color[node] = 1;
      path.push_back({node});
      AddLeftParts(nodes_[node], &path.back().left);
    };
    enter(start);
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.next == visit.left.size()) {
        color[visit.node] = 2;
        path.pop_back();
        continue;
      }
      const GrammarNode next = visit.left[visit.next++];
      if (color[next] == 2) continue;
      if (color[next] == 0) {
        enter(next);
        continue;
      }
      std::string name = "a rule";
      for (size_t i = path.size(); i-- > 0;) {
        const Node& node = nodes_[path[i].node];
        if (node.kind == Kind::kRule) name = StrCat("the rule ", rules_[node.a].name);
        if (path[i].node == next) break;
      }
      return absl::InvalidArgumentError(
          StrCat(name,
                 " begins with itself; allowed: recursion behind at least one character, or "
                 "a repetition"));
    }
  }
  return absl::OkStatus();
}

absl::Status GrammarBuilder::Finish(GrammarNode root) {
  root_ = root;
  pool_.FixClasses();
  // Most nodes come after their parts, so that few rounds are needed but where rules are recursive.
  for (bool changed = true; changed;) {
    changed = false;
    for (Node& node : nodes_) {
      changed = UpdateNode(node) || changed;
      if (absl::Status status = Check(); !status.ok()) return status;
    }
    if (ThreadClock::now() > deadline_) checks_ |= 15;
  }
  pool_.SetDeadline(RegularPool::TimePoint::max());
  // From zeros up: what is found is a lower bound after any number of rounds.
  constexpr int kRounds = 4;
  bool grows = true;
  for (int round = 0; round < kRounds && grows; ++round) {
    grows = false;
    for (Node& node : nodes_) grows = UpdateLeast(node) || grows;
  }
  if (absl::Status status = CheckLeftRecursion(); !status.ok()) return status;
  MILLRACE_RETURN_IF_ERROR(Check());
  if (pool_.undecided()) {
    return absl::InvalidArgumentError(
        "it is too complex: whether its patterns have a text in common takes too long to tell");
  }
  if (!nodes_[root].productive) {
    return absl::InvalidArgumentError("no text at all meets it");
  }
  return absl::OkStatus();
}

}  // namespace millrace
