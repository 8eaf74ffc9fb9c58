#include "text/grammar/grammar.h"

#include <algorithm>
#include <list>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/automaton.h"
#include "text/grammar/ebnf.h"
#include "text/grammar/json_grammar.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema.h"

namespace millrace {
namespace {

using Kind = GrammarSpec::Kind;

// Any text in which none of `texts` occurs.
Regular TextWithout(RegularPool& pool, const std::vector<std::string>& texts) {
  const Regular any = AnyText(pool, TextForm::kPlain);
  if (texts.empty()) return any;
  const Regular one = pool.OneOf({texts.begin(), texts.end()});
  return pool.And({any, pool.Not(pool.Concat({any, one, any}))});
}

SchemaOptions OptionsOf(const GrammarSpec& spec) {
  return {.any_whitespace = spec.any_whitespace,
          .closed = spec.closed,
          .lenient = spec.lenient,
          .notation = spec.notation};
}

absl::StatusOr<GrammarNode> Build(GrammarBuilder& builder, const GrammarSpec& spec, int depth) {
  MILLRACE_RETURN_IF_ERROR(builder.Check());
  RegularPool& pool = builder.regular();
  if (depth > builder.limits().depth) {
    return absl::InvalidArgumentError("the parts of the grammar are nested too deep");
  }
  std::vector<GrammarNode> parts;
  for (const GrammarSpec& part : spec.parts) {
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, Build(builder, part, depth + 1));
    parts.push_back(node);
  }
  switch (spec.kind) {
    case Kind::kJsonObject:
      return JsonGrammar(builder, spec.any_whitespace).AnyObject();
    case Kind::kJsonSchema:
      return CompileSchema(builder, spec.text, OptionsOf(spec));
    case Kind::kElement:
      return CompileElement(builder, spec.text, OptionsOf(spec), TextWithout(pool, spec.choices));
    case Kind::kArguments:
      return CompileArguments(builder, spec.text, OptionsOf(spec));
    case Kind::kRegex: {
      const TextForm form = spec.in_json_string ? TextForm::kJsonString : TextForm::kPlain;
      MILLRACE_ASSIGN_OR_RETURN(
          const Regular term,
          ParseRegex(pool, spec.text, form, RegexMode::kWhole, builder.limits().depth));
      std::vector<Regular> all = {term};
      if (pool.IsBoolean(term)) all.push_back(AnyText(pool, form));
      if (!spec.choices.empty()) all.push_back(TextWithout(pool, spec.choices));
      return builder.Term(pool.And(all));
    }
    case Kind::kChoice:
      if (spec.choices.empty()) return absl::InvalidArgumentError("there is no choice");
      if (spec.choices.size() > builder.limits().enum_values) {
        return absl::InvalidArgumentError(StrCat("there are ", spec.choices.size(),
                                                 " choices; allowed: at most ",
                                                 builder.limits().enum_values));
      }
      return builder.Term(pool.OneOf({spec.choices.begin(), spec.choices.end()}));
    case Kind::kEbnf:
      return CompileEbnf(
          builder, spec.text, spec.in_json_string ? TextForm::kJsonString : TextForm::kPlain,
          spec.choices.empty() ? std::optional<Regular>() : TextWithout(pool, spec.choices));
    case Kind::kLiteral:
      return builder.Literal(spec.text);
    case Kind::kMarker:
      return builder.Marker(spec.text);
    case Kind::kSequence:
      return builder.Sequence(parts);
    case Kind::kAlternative:
      return builder.Alternative(parts);
    case Kind::kRepeat:
      if (parts.size() != 1 || spec.min < 0 || spec.max < spec.min) {
        return absl::InvalidArgumentError("a repetition needs one part and 0 <= min <= max");
      }
      return builder.Repeat(parts[0], static_cast<uint32_t>(spec.min),
                            spec.max == INT32_MAX ? kUnbounded : static_cast<uint32_t>(spec.max));
    case Kind::kText:
      return builder.Term(TextWithout(pool, spec.choices));
  }
  return absl::InternalError("an unknown kind of grammar");
}

void AppendKey(const GrammarSpec& spec, std::string* key) {
  const auto add = [key](std::string_view text) { *key += StrCat(text.size(), ":", text); };
  *key += StrCat(static_cast<int>(spec.kind), ",", spec.min, ",", spec.max, ",",
                 spec.any_whitespace ? 1 : 0, spec.closed ? 1 : 0, spec.lenient ? 1 : 0,
                 spec.in_json_string ? 1 : 0, ",", static_cast<int>(spec.notation), ",",
                 spec.choices.size(), ",", spec.parts.size(), ";");
  add(spec.text);
  for (const std::string& choice : spec.choices) add(choice);
  for (const GrammarSpec& part : spec.parts) AppendKey(part, key);
}

}  // namespace

std::string GrammarSpec::Key() const {
  std::string text;
  AppendKey(*this, &text);
  return std::string(AsBytes(Sha256Of(text)));
}

size_t GrammarSpec::TextBytes() const {
  size_t bytes = text.size();
  for (const std::string& choice : choices) bytes += choice.size();
  for (const GrammarSpec& part : parts) bytes += part.TextBytes();
  return bytes;
}

Grammar::Grammar(std::shared_ptr<GrammarAutomaton> automaton) : automaton_(std::move(automaton)) {}
Grammar::~Grammar() = default;

absl::Status Grammar::CheckBytes(const GrammarSpec& spec, const GrammarLimits& limits) {
  const size_t bytes = spec.TextBytes();
  if (bytes <= limits.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("it has ", bytes, " bytes; allowed: at most ", limits.bytes));
}

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::Compile(const GrammarSpec& spec,
                                                                const GrammarLimits& limits) {
  MILLRACE_RETURN_IF_ERROR(CheckBytes(spec, limits));
  auto builder = std::make_shared<GrammarBuilder>(limits);
  MILLRACE_ASSIGN_OR_RETURN(const GrammarNode root, Build(*builder, spec, 0));
  MILLRACE_RETURN_IF_ERROR(builder->Finish(root));
  return std::shared_ptr<const Grammar>(
      new Grammar(std::make_shared<GrammarAutomaton>(std::move(builder))));
}

std::shared_ptr<GrammarAutomaton> Grammar::automaton() const {
  std::lock_guard lock(mutex_);
  if (automaton_->Full()) automaton_ = std::make_shared<GrammarAutomaton>(automaton_->grammar());
  return automaton_;
}

bool Grammar::Matches(std::string_view text) const {
  const std::shared_ptr<GrammarAutomaton> automaton = this->automaton();
  return automaton->Accepting(automaton->Move(automaton->start(), text));
}

size_t Grammar::bytes() const {
  std::lock_guard lock(mutex_);
  return automaton_->bytes();
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                               std::shared_ptr<const GrammarVocabulary> vocabulary)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      automaton_(grammar_->automaton()),
      state_(automaton_->start()) {}

void GrammarMatcher::LeaveFullAutomaton() {
  if (!automaton_->Full()) return;
  automaton_ = grammar_->automaton();
  state_ = automaton_->Move(automaton_->start(), history_);
}

bool GrammarMatcher::AcceptBytes(std::string_view bytes) {
  const uint32_t next = automaton_->Move(state_, bytes);
  if (next == GrammarAutomaton::kDead) return false;
  state_ = next;
  history_ += bytes;
  return true;
}

bool GrammarMatcher::Accept(Token token) {
  const std::string_view bytes = vocabulary_->Bytes(token);
  return !bytes.empty() && AcceptBytes(bytes);
}

absl::StatusOr<std::shared_ptr<const TokenMask>> GrammarMatcher::Mask() {
  LeaveFullAutomaton();
  return automaton_->Mask(state_, vocabulary_);
}

bool GrammarMatcher::accepting() const { return automaton_->Accepting(state_); }
bool GrammarMatcher::finished() const { return automaton_->Finished(state_); }
std::string GrammarMatcher::ForcedBytes() const { return automaton_->Forced(state_); }

struct GrammarCache::Impl {
  using Key = std::pair<uint32_t, std::string>;  // the owner, and the grammar's key
  using Entry = std::pair<Key, std::shared_ptr<const Grammar>>;

  std::shared_ptr<const Grammar> Find(const Key& key) {
    const auto it = places.find(key);
    if (it == places.end()) return nullptr;
    entries.splice(entries.begin(), entries, it->second);
    return it->second->second;
  }
  // The sizes are those of now, as automata grow. The latest entry stays.
  void Shrink() {
    size_t bytes = 0;
    absl::flat_hash_map<uint32_t, size_t> held;
    for (const auto& [key, grammar] : entries) {
      held[key.first] += grammar->bytes();
      bytes += grammar->bytes();
    }
    while (bytes > capacity && !held.empty()) {
      const auto most =
          std::max_element(held.begin(), held.end(), [](const auto& a, const auto& b) {
            return std::tie(a.second, a.first) < std::tie(b.second, b.first);
          });
      const auto last =
          std::find_if(entries.rbegin(), std::prev(entries.rend()),
                       [&](const Entry& entry) { return entry.first.first == most->first; });
      if (last == std::prev(entries.rend())) {
        held.erase(most);  // it has none but the latest
        continue;
      }
      const size_t freed = std::min({last->second->bytes(), most->second, bytes});
      bytes -= freed;
      most->second -= freed;
      places.erase(last->first);
      entries.erase(std::next(last).base());
    }
  }

  size_t capacity;
  std::mutex mutex;
  std::list<Entry> entries;  // guarded by mutex, the latest first
  absl::flat_hash_map<Key, std::list<Entry>::iterator> places;  // guarded by mutex
};

GrammarCache::GrammarCache(size_t capacity_bytes) : impl_(new Impl{.capacity = capacity_bytes}) {}
GrammarCache::~GrammarCache() = default;

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCache::Get(const GrammarSpec& spec,
                                                                 const GrammarLimits& limits,
                                                                 uint32_t owner) {
  const Impl::Key key(owner, spec.Key());
  {
    std::lock_guard lock(impl_->mutex);
    if (auto found = impl_->Find(key)) return found;
  }
  MILLRACE_ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> made, Grammar::Compile(spec, limits));
  std::lock_guard lock(impl_->mutex);
  if (auto found = impl_->Find(key)) return found;  // another thread was quicker
  impl_->entries.emplace_front(key, made);
  impl_->places[key] = impl_->entries.begin();
  impl_->Shrink();
  return made;
}

}  // namespace millrace
