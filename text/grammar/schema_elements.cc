// Values between two tags, where strings stand without quotation marks.
#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/schema_compiler.h"

namespace millrace::schema {

absl::StatusOr<bool> Compiler::MayBeString(const Conjunction& conjunction) {
  MILLRACE_RETURN_IF_ERROR(builder_.Check());
  MILLRACE_ASSIGN_OR_RETURN(const Flat flat, reader_.Flatten(conjunction));
  if (flat.never) return false;
  if (const auto values = EnumOf(flat.base)) {
    for (const JsonValue& value : *values) {
      if (value.is_string()) return true;
    }
    return false;
  }
  MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, Types(flat.base));
  if ((types & kString) == 0) return false;
  if (++depth_ > builder_.limits().depth) {
    return absl::InvalidArgumentError("it is too deep: alternatives within alternatives");
  }
  for (const Part& alternative : flat.alternatives) {
    bool any = false;
    for (const JsonValue& branch : alternative.value->items) {
      MILLRACE_ASSIGN_OR_RETURN(const bool may, MayBeString({{Part::Kind::kSchema, &branch}}));
      any = any || may;
    }
    if (!any) {
      --depth_;
      return false;
    }
  }
  --depth_;
  return true;
}

absl::StatusOr<GrammarNode> Compiler::CompileElement(const Conjunction& conjunction,
                                                     Regular texts) {
  MILLRACE_ASSIGN_OR_RETURN(const bool may_be_string, MayBeString(conjunction));
  if (!may_be_string) return Compile(conjunction);
  MILLRACE_ASSIGN_OR_RETURN(const Flat flat, reader_.Flatten(conjunction));
  if (flat.alternatives.empty()) return CompileElementBase(flat.base, texts);
  const Part& choice = flat.alternatives[0];
  std::vector<GrammarNode> nodes;
  int strings = 0;
  for (const JsonValue& branch : choice.value->items) {
    Conjunction both;
    for (const JsonValue* schema : flat.base) both.push_back({Part::Kind::kBase, schema});
    both.insert(both.end(), flat.alternatives.begin() + 1, flat.alternatives.end());
    both.push_back({Part::Kind::kSchema, &branch});
    MILLRACE_ASSIGN_OR_RETURN(const bool string, MayBeString(both));
    strings += string ? 1 : 0;
    if (choice.kind == Part::Kind::kOneOf && strings > 1 && !reader_.lenient()) {
      return reader_.Refuse(*choice.value, "oneOf",
                            "two branches allow strings, which is not supported here");
    }
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, CompileElement(both, texts));
    nodes.push_back(node);
  }
  return builder_.Alternative(nodes);
}

absl::StatusOr<GrammarNode> Compiler::CompileElementBase(const Base& base, Regular texts) {
  std::vector<GrammarNode> nodes;
  if (const auto values = EnumOf(base)) {
    for (const JsonValue& value : *values) {
      MILLRACE_ASSIGN_OR_RETURN(const bool holds, HoldsBase(value, base));
      if (!holds) continue;
      if (!value.is_string()) {
        nodes.push_back(json_.Constant(value));
      } else if (pool_.Matches(texts, value.text)) {
        nodes.push_back(builder_.Literal(value.text));
      }
    }
    return builder_.Alternative(nodes);
  }
  Regular strings = texts;
  if (!IsAnyString(base)) {
    MILLRACE_ASSIGN_OR_RETURN(const Regular term, StringTerm(base, TextForm::kPlain));
    strings = pool_.And({texts, term});
  }
  nodes.push_back(builder_.Term(strings));
  MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, Types(base));
  if ((types & ~kString) != 0) {
    Conjunction others;
    for (const JsonValue* schema : base) others.push_back({Part::Kind::kBase, schema});
    others.push_back(
        {Part::Kind::kBase, reader_.MakeTypes(types & ~static_cast<uint32_t>(kString))});
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, Compile(others));
    nodes.push_back(node);
  }
  return builder_.Alternative(nodes);
}

}  // namespace millrace::schema
