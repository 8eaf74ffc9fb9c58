// Grammars that answers are held to: compilation, the tokens that may come next, and the end.
//
// A grammar describes texts as sequences of bytes. It is compiled once from a GrammarSpec and then
// shared by any number of answers; a GrammarMatcher follows one answer. A GrammarVocabulary is the
// set of a model's tokens, and a TokenMask says which of them may come next.
#ifndef MILLRACE_TEXT_GRAMMAR_GRAMMAR_H_
#define MILLRACE_TEXT_GRAMMAR_GRAMMAR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/token.h"
#include "text/grammar/notation.h"
#include "text/grammar/vocabulary.h"

namespace millrace {

// A description of a language. The first kinds are what users write; the others put grammars
// together, as tool calls need it: {"name": "f", "arguments": <a schema's instance>} is a kSequence
// of a kLiteral, a kJsonSchema and another kLiteral.
struct GrammarSpec {
  enum class Kind {
    kJsonObject,  // any JSON object; `text` is empty
    kJsonSchema,  // `text` is a JSON schema, draft 2020-12; properties come in its order
    kRegex,       // `text` is a regular expression that the whole answer matches; `choices` are
                  // texts that do not occur in it
    kChoice,      // `choices` are the texts, one of which is the answer
    kEbnf,        // `text` is a grammar in GBNF (begins at `root`) or in Lark's form (`start`);
                  // `choices` are texts that do not occur in what one of its terminals matches

    kLiteral,  // `text` itself
    // `text` itself, or the special token that is written so: "<tool_call>".
    kMarker,
    kSequence,     // `parts`, one after the other
    kAlternative,  // one of `parts`
    kRepeat,       // `parts[0]`, `min` to `max` times
    kText,         // any UTF-8 text in which none of `choices` occurs; with none of them, any text
    // An instance of the schema `text` between two tags: a string stands there as it is, without
    // quotation marks, and has none of `choices` in it; any other value is JSON.
    kElement,
    // The members of an object, an instance of the schema `text`, as arguments of a call in
    // `notation`, without brackets around them: a=1, b="x".
    kArguments,
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  std::vector<GrammarSpec> parts;
  int32_t min = 0;
  int32_t max = INT32_MAX;

  // Of kRegex and kEbnf: its texts are written as the inside of a JSON string, escaped.
  bool in_json_string = false;

  // White space between JSON's tokens: by default a space, or a line break with indentation. False:
  // none but what json.dumps writes, a space after a comma and a colon.
  bool any_whitespace = true;

  // Of a schema: an object whose `properties` are listed has no others, unless the schema says so
  // (additionalProperties, patternProperties, propertyNames, unevaluatedProperties).
  bool closed = false;
  // Of a schema: what is malformed or not enforced is passed over. Otherwise it is refused.
  bool lenient = false;
  Notation notation = Notation::kJson;

  // Returns a string that is equal exactly for equal specs.
  std::string Key() const;

  size_t TextBytes() const;  // of all its texts, those of its parts as well
};

// Bounds of one compilation. What exceeds one is refused with InvalidArgument, which names it.
struct GrammarLimits {
  size_t bytes = 1 << 20;      // of all texts
  int depth = 64;              // nesting of a schema, a regular expression, a rule's brackets
  size_t properties = 5000;    // of all objects of a schema
  size_t enum_values = 20000;  // of all enums, and choices
  size_t patterns = 64;        // regular expressions of a schema
  size_t nodes = 200000;       // of the compiled grammar
  std::chrono::milliseconds time{400};           // that the compiling thread runs
  const std::atomic<bool>* cancelled = nullptr;  // looked at often; set: the compilation ends
};

class GrammarAutomaton;

// A compiled grammar. Any number of threads may use it at once.
class Grammar {
 public:
  // InvalidArgument: the spec is malformed, demands what is not enforced (the message names the
  // keyword and where it stands), describes no text at all, or exceeds a limit. Cancelled.
  static absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GrammarSpec& spec,
                                                                const GrammarLimits& limits = {});
  // Returns Compile's refusal of a spec whose texts are too long, at once.
  static absl::Status CheckBytes(const GrammarSpec& spec, const GrammarLimits& limits = {});
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  // Returns whether the whole of `text` is in the language. For tests and tools.
  bool Matches(std::string_view text) const;

  // Returns the bytes that the grammar and its caches take, about.
  size_t bytes() const;

 private:
  friend class GrammarMatcher;
  explicit Grammar(std::shared_ptr<GrammarAutomaton> automaton);
  std::shared_ptr<GrammarAutomaton> automaton() const;  // replaced once it is full

  mutable std::mutex mutex_;
  mutable std::shared_ptr<GrammarAutomaton> automaton_;  // guarded by mutex_
};

// The position of one answer in its grammar. A copy goes on by itself. Used by one thread at a
// time; the grammar beneath is shared.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                 std::shared_ptr<const GrammarVocabulary> vocabulary);

  // Moves past a token, or bytes. False, and nothing has moved: they cannot come next.
  bool Accept(Token token);
  bool AcceptBytes(std::string_view bytes);

  // Returns the tokens that may come next. The end tokens of the vocabulary are among them exactly
  // if the text so far is in the language. ResourceExhausted if the grammar is too ambiguous to be
  // followed further.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask();

  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }

  // The text so far is in the language.
  bool accepting() const;
  // accepting, and no byte can follow.
  bool finished() const;

  // Returns the bytes that must come next, whatever follows them. Empty where there is a choice.
  std::string ForcedBytes() const;

 private:
  void LeaveFullAutomaton();

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::shared_ptr<GrammarAutomaton> automaton_;
  uint32_t state_;
  std::string history_;  // to go on with in another automaton when this one is full
};

// The grammars compiled lately, by owner and GrammarSpec::Key. No owner finds another's, nor learns
// from the time what others compile. Beyond the capacity, the owner whose grammars take most loses
// what it used least lately. Any thread may use it.
class GrammarCache {
 public:
  explicit GrammarCache(size_t capacity_bytes = 64 << 20);
  ~GrammarCache();

  // Compiles the grammar unless it is there. Errors are not kept.
  absl::StatusOr<std::shared_ptr<const Grammar>> Get(const GrammarSpec& spec,
                                                     const GrammarLimits& limits = {},
                                                     uint32_t owner = 0);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_GRAMMAR_H_
