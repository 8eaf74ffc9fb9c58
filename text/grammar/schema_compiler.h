// The compiler of conjunctions of schemas. Not for others than schema*.cc.
#ifndef MILLRACE_TEXT_GRAMMAR_SCHEMA_COMPILER_H_
#define MILLRACE_TEXT_GRAMMAR_SCHEMA_COMPILER_H_

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema.h"

namespace millrace::schema {

using Base = std::vector<const JsonValue*>;

class Compiler {
 public:
  Compiler(GrammarBuilder& builder, const JsonValue& root, const SchemaOptions& options)
      : builder_(builder),
        pool_(builder.regular()),
        closed_(options.closed),
        json_(builder, options.any_whitespace, options.notation),
        reader_(root, builder.limits(), options.lenient) {}

  absl::StatusOr<GrammarNode> Compile(const Conjunction& conjunction);
  // Returns the values as elements have them: strings as they are, and of `texts`.
  absl::StatusOr<GrammarNode> CompileElement(const Conjunction& conjunction, Regular texts);
  // Returns the objects as the arguments of a call.
  absl::StatusOr<GrammarNode> CompileArguments(const Conjunction& conjunction);
  const Reader::Refusal& refusal() const { return reader_.refusal(); }

 private:
  struct Compiled {
    uint32_t rule = 0;
    bool used = false;  // while it was being compiled
    std::optional<GrammarNode> node;
  };
  // A value's place in an object: its key and the grammar of what follows.
  struct Member {
    GrammarNode node;
    bool required = false;
  };
  struct Counts {
    uint32_t min = 0, max = kUnbounded;
  };

  absl::StatusOr<GrammarNode> CompileFlat(const Flat& flat);
  absl::StatusOr<GrammarNode> CompileAlternatives(const Flat& flat, bool arguments = false);
  absl::StatusOr<GrammarNode> CompileBase(const Base& base);
  absl::StatusOr<GrammarNode> CompileEnum(const Base& base, const JsonValue& values);
  absl::StatusOr<GrammarNode> CompileString(const Base& base);
  absl::StatusOr<GrammarNode> CompileNumber(const Base& base, uint32_t types);
  absl::StatusOr<GrammarNode> CompileArray(const Base& base);
  absl::StatusOr<GrammarNode> CompileUnique(const Base& base, const JsonValue& schema,
                                            const Counts& counts);
  absl::StatusOr<std::optional<std::vector<JsonValue>>> FewValues(const Conjunction& conjunction);
  absl::StatusOr<GrammarNode> CompileObject(const Base& base, bool arguments = false);
  absl::StatusOr<GrammarNode> Members(const Base& base, const std::vector<Member>& members,
                                      GrammarNode additional, const Counts& counts);
  absl::StatusOr<GrammarNode> Additional(const Base& base,
                                         const std::vector<std::string_view>& declared, bool closed,
                                         bool arguments);
  absl::StatusOr<std::optional<Regular>> KeyTerm(const Base& base);
  absl::StatusOr<Conjunction> PropertySchemas(const Base& base, std::string_view name);

  absl::StatusOr<uint32_t> Types(const Base& base);
  absl::StatusOr<Counts> CountsOf(const Base& base, std::string_view least, std::string_view most);
  // Returns whether no member may have a key that the schemas neither list nor describe.
  bool IsClosed(const Base& base, size_t declared, const Counts& counts) const;
  absl::StatusOr<bool> MayBeString(const Conjunction& conjunction);
  absl::StatusOr<GrammarNode> CompileElementBase(const Base& base, Regular texts);
  absl::StatusOr<std::optional<Regular>> Pattern(const JsonValue& schema, std::string_view keyword,
                                                 std::string_view pattern,
                                                 TextForm form = TextForm::kJsonString);
  // Returns the key of a member and what stands behind it.
  GrammarNode Key(std::string_view name, bool arguments);
  // Returns whether the strings that a conjunction allows are all strings.
  static bool IsAnyString(const Base& base);
  // The insides of the strings that a conjunction allows, or the strings themselves.
  absl::StatusOr<Regular> StringTerm(const Base& base, TextForm form = TextForm::kJsonString);

  // Whether no value meets both. False where it cannot be told.
  absl::StatusOr<bool> Disjoint(const Conjunction& a, const Conjunction& b, int depth);
  absl::StatusOr<bool> DisjointBases(const Base& a, const Base& b, int depth);
  absl::StatusOr<bool> Holds(const JsonValue& value, const Conjunction& conjunction);
  absl::StatusOr<bool> HoldsBase(const JsonValue& value, const Base& base);
  absl::StatusOr<bool> HoldsInside(const JsonValue& value, const Base& base);
  // Returns whether the list of a schema, an enum for example, has the value.
  bool Lists(const JsonValue& list, const JsonValue& value);

  GrammarBuilder& builder_;
  RegularPool& pool_;
  const bool closed_;
  JsonGrammar json_;
  Reader reader_;
  std::map<Conjunction, Compiled> compiled_;
  std::map<std::pair<TextForm, std::string>, std::optional<Regular>> patterns_;
  // By a list that a value was looked for in: the EqualKeys of its items.
  absl::flat_hash_map<const JsonValue*, absl::flat_hash_set<std::string>> listed_;
  int depth_ = 0;
  int depth_of_holds_ = 0;
};

// The values that all enum and const of a base allow; nothing if there are none.
std::optional<std::vector<JsonValue>> EnumOf(const Base& base);

}  // namespace millrace::schema

#endif  // MILLRACE_TEXT_GRAMMAR_SCHEMA_COMPILER_H_
