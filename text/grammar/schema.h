// JSON schemas (draft 2020-12) into grammars.
//
// A value must meet several schemas at once wherever allOf, $ref, anyOf, patternProperties and the
// like stand beside other keywords. The compiler therefore works on sets of schemas, its
// *conjunctions*: it flattens what is in place, chooses a branch of each alternative, and asks of
// each property and item which schemas of the set speak of it. A conjunction that comes again is
// the same rule, so that recursive schemas end.
#ifndef MILLRACE_TEXT_GRAMMAR_SCHEMA_H_
#define MILLRACE_TEXT_GRAMMAR_SCHEMA_H_

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/grammar/json_grammar.h"
#include "text/grammar/json_value.h"
#include "text/grammar/notation.h"

namespace millrace {

// GrammarSpec says what each means.
struct SchemaOptions {
  bool any_whitespace = true;
  bool closed = false;
  bool lenient = false;
  Notation notation = Notation::kJson;
};

// Adds the grammar of the instances of `schema`.
absl::StatusOr<GrammarNode> CompileSchema(GrammarBuilder& builder, std::string_view schema,
                                          const SchemaOptions& options);
// Adds the grammar of the instances as GrammarSpec::kElement writes them. Strings are of `texts`.
absl::StatusOr<GrammarNode> CompileElement(GrammarBuilder& builder, std::string_view schema,
                                           const SchemaOptions& options, Regular texts);

// Adds the grammar of the instances as GrammarSpec::kArguments writes them.
absl::StatusOr<GrammarNode> CompileArguments(GrammarBuilder& builder, std::string_view schema,
                                             const SchemaOptions& options);

namespace schema {

// Facts about a value besides its keywords.
enum TypeBit : uint32_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,  // a number that is no integer
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

// A part of a conjunction.
struct Part {
  enum class Kind {
    kSchema,  // all of a schema
    kBase,    // its keywords, without those that apply other schemas in place
    kAnyOf,   // one at least of the schemas in this list
    kOneOf,   // exactly one
  };
  Kind kind;
  const JsonValue* value;
  auto operator<=>(const Part&) const = default;
};
using Conjunction = std::vector<Part>;

// A conjunction, flattened: base parts, and alternatives that are still to be chosen from.
struct Flat {
  std::vector<const JsonValue*> base;
  std::vector<Part> alternatives;
  bool never = false;  // one of its schemas is `false`
};

// Finds what a schema's keywords apply to, and makes schemas of others (their negations).
class Reader {
 public:
  Reader(const JsonValue& root, const GrammarLimits& limits, bool lenient)
      : root_(root), limits_(limits), lenient_(lenient) {}

  absl::StatusOr<Flat> Flatten(const Conjunction& conjunction);

  // Adds the schemas of a property that matches exactly these of the patternProperties; without a
  // name, of one that no schema of `base` names. AddItem: of an item.
  void AddProperty(const std::vector<const JsonValue*>& base, std::optional<std::string_view> name,
                   const std::set<std::string_view>& patterns, Conjunction* schemas) const;
  void AddItem(const std::vector<const JsonValue*>& base, size_t index, Conjunction* schemas) const;
  // Returns the number of items before those that all have the same schemas.
  size_t PrefixOf(const std::vector<const JsonValue*>& base) const;
  // A schema that holds for exactly the values for which `schema` does not.
  absl::StatusOr<const JsonValue*> Negation(const JsonValue& schema);
  const JsonValue* Make(std::string_view json);
  const JsonValue* MakeTypes(uint32_t types);  // TypeBits
  const JsonValue* Keep(JsonValue value);

  // Errors that name the keyword and where it stands.
  absl::Status Refuse(const JsonValue& schema, std::string_view keyword, std::string_view why);
  // The last of them.
  struct Refusal {
    const JsonValue* schema = nullptr;
    std::string keyword;
    std::string message;
  };
  const Refusal& refusal() const { return refusal_; }

  bool lenient() const { return lenient_; }

 private:
  absl::Status Add(const Part& part, Flat* flat, std::set<const JsonValue*>* seen);
  absl::Status AddSchema(const JsonValue& schema, Flat* flat, std::set<const JsonValue*>* seen);
  absl::Status AddConditions(const JsonValue& schema, Flat* flat, std::set<const JsonValue*>* seen);
  absl::Status CheckKeywords(const JsonValue& schema);
  absl::Status FindEvaluators(const JsonValue& schema, const JsonValue& at,
                              std::vector<const JsonValue*>* evaluators);
  absl::StatusOr<const JsonValue*> Resolve(const JsonValue& schema, std::string_view reference);
  absl::StatusOr<const JsonValue*> NegationOfKeyword(const JsonValue& schema,
                                                     const std::string& keyword,
                                                     const JsonValue& value);
  JsonValue Copy(std::string_view keyword, JsonValue value, std::string_view type) const;

  const JsonValue& root_;
  const GrammarLimits limits_;
  const bool lenient_;
  Refusal refusal_;
  std::deque<JsonValue> made_;
  absl::flat_hash_map<const JsonValue*, const JsonValue*> negations_;
  absl::flat_hash_map<const JsonValue*, const JsonValue*> conditions_;
  absl::flat_hash_set<const JsonValue*> checked_;
  // By schema with unevaluatedProperties or unevaluatedItems: itself and the schemas that it
  // applies in place.
  absl::flat_hash_map<const JsonValue*, std::vector<const JsonValue*>> evaluators_;
  std::optional<absl::flat_hash_map<std::string_view, const JsonValue*>> anchors_;
  size_t properties_ = 0;
  size_t enum_values_ = 0;
  int negations_within_ = 0;
};

// The type bits of one schema's `type`.
absl::StatusOr<uint32_t> TypesOf(Reader& reader, const JsonValue& schema);
uint32_t TypeOf(const JsonValue& value);

// A count, as minLength has it: at most UINT32_MAX - 1.
absl::StatusOr<std::optional<uint32_t>> Count(Reader& reader, const JsonValue& schema,
                                              std::string_view keyword);
absl::StatusOr<NumberBounds> Bounds(Reader& reader, const std::vector<const JsonValue*>& base);

}  // namespace schema
}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_SCHEMA_H_
