// The compilation of whole schemas, and what is left out of them where that is allowed.
#include <algorithm>
#include <functional>
#include <initializer_list>

#include "base/status.h"
#include "text/grammar/schema_compiler.h"

namespace millrace {
namespace {

using Keywords = std::initializer_list<std::string_view>;

bool IsIn(Keywords names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns whether a keyword's value has schemas by name.
bool IsMap(std::string_view keyword) {
  return IsIn({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"},
              keyword);
}

// Takes a keyword out of a schema. Without the demand that only one branch holds, the others stay.
bool Erase(JsonValue& schema, std::string_view keyword) {
  const auto found =
      std::find_if(schema.members.begin(), schema.members.end(),
                   [keyword](const JsonMember& member) { return member.first == keyword; });
  if (found == schema.members.end()) return false;
  if (keyword == "oneOf" && found->second.is_array() && schema.Find("anyOf") == nullptr) {
    found->first = "anyOf";
  } else {
    schema.members.erase(found);
  }
  return true;
}

// Takes a keyword out of the schema `wanted`, or out of the one whose list of branches it is; what
// should be a schema and is none becomes `true`. A condition goes as a whole: a part of it would
// hold for other values.
bool EraseAt(JsonValue& at, const JsonValue* wanted, std::string_view keyword,
             bool is_map = false) {
  if (&at == wanted) {
    if (at.is_object()) return Erase(at, keyword);
    at = {.type = JsonValue::Type::kTrue};
    return true;
  }
  for (JsonMember& member : at.members) {
    if (&member.second == wanted && member.second.is_array() && member.first == keyword) {
      return Erase(at, keyword);
    }
    const bool is_condition = !is_map && IsIn({"not", "if"}, member.first);
    if (!EraseAt(member.second, wanted, keyword, !is_map && IsMap(member.first))) continue;
    if (is_condition) Erase(at, std::string(member.first));
    return true;
  }
  return std::any_of(at.items.begin(), at.items.end(),
                     [&](JsonValue& item) { return EraseAt(item, wanted, keyword); });
}

// Takes keywords out of all schemas in a value, which is a schema unless it is a map of them.
bool EraseAll(JsonValue& at, Keywords keywords, bool is_map) {
  bool any = false;
  if (!is_map) {
    for (const std::string_view keyword : keywords) any = Erase(at, keyword) || any;
  }
  for (JsonMember& member : at.members) {
    if (!is_map && IsIn({"enum", "const", "default", "examples"}, member.first)) continue;
    any = EraseAll(member.second, keywords, !is_map && IsMap(member.first)) || any;
  }
  for (JsonValue& item : at.items) any = EraseAll(item, keywords, false) || any;
  return any;
}

// Takes what was refused out of a schema. False: it is not there.
bool LeaveOut(JsonValue& root, const schema::Reader::Refusal& refusal) {
  if (EraseAt(root, refusal.schema, refusal.keyword)) return true;
  // The schema was made of others, of which a negation is one.
  return EraseAll(root, {refusal.keyword}, false) ||
         EraseAll(root, {"not", "if", "dependentRequired", "dependentSchemas"}, false) ||
         EraseAll(root, {"oneOf"}, false);
}

using Compile =
    std::function<absl::StatusOr<GrammarNode>(schema::Compiler&, const schema::Conjunction&)>;

absl::StatusOr<GrammarNode> CompileRoot(GrammarBuilder& builder, std::string_view schema,
                                        const SchemaOptions& options, const Compile& compile) {
  // Each one is a compilation; the builder bounds their time, too.
  constexpr int kMostLeftOut = 100;
  // An object's properties are two levels of JSON, and a list of alternatives as many.
  auto root = ParseOrderedJson(schema, 4 * builder.limits().depth);
  if (!root.ok()) return Annotate(root.status(), "the schema is no JSON");
  for (int left_out = 0;; ++left_out) {
    schema::Compiler compiler(builder, *root, options);
    absl::StatusOr<GrammarNode> node = compile(compiler, {{schema::Part::Kind::kSchema, &*root}});
    const bool refused = !node.ok() && compiler.refusal().schema != nullptr &&
                         node.status().message() == compiler.refusal().message;
    if (!refused || !options.lenient || left_out == kMostLeftOut) return node;
    const schema::Reader::Refusal refusal = compiler.refusal();
    if (!LeaveOut(*root, refusal)) return node;
  }
}

}  // namespace

absl::StatusOr<GrammarNode> CompileSchema(GrammarBuilder& builder, std::string_view schema,
                                          const SchemaOptions& options) {
  return CompileRoot(builder, schema, options,
                     [](schema::Compiler& compiler, const schema::Conjunction& conjunction) {
                       return compiler.Compile(conjunction);
                     });
}

absl::StatusOr<GrammarNode> CompileElement(GrammarBuilder& builder, std::string_view schema,
                                           const SchemaOptions& options, Regular texts) {
  return CompileRoot(builder, schema, options,
                     [texts](schema::Compiler& compiler, const schema::Conjunction& conjunction) {
                       return compiler.CompileElement(conjunction, texts);
                     });
}

absl::StatusOr<GrammarNode> CompileArguments(GrammarBuilder& builder, std::string_view schema,
                                             const SchemaOptions& options) {
  return CompileRoot(builder, schema, options,
                     [](schema::Compiler& compiler, const schema::Conjunction& conjunction) {
                       return compiler.CompileArguments(conjunction);
                     });
}

}  // namespace millrace
