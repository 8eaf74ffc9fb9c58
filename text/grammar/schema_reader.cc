// schema::Reader: which schemas apply to a value, and to its parts.
#include <algorithm>

#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/schema.h"

namespace millrace::schema {
namespace {

constexpr std::string_view kAnnotations[] = {
    "title",         "description",    "default",      "examples",         "example",
    "deprecated",    "readOnly",       "writeOnly",    "$comment",         "$schema",
    "$defs",         "definitions",    "$anchor",      "contentMediaType", "contentEncoding",
    "contentSchema", "discriminator",  "xml",          "externalDocs",     "$vocabulary",
    "$id",           "$dynamicAnchor", "errorMessage", "enumNames",        "strict"};
constexpr std::string_view kEnforced[] = {
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "pattern", "format", "items", "prefixItems",
    "additionalItems", "minItems", "maxItems", "uniqueItems", "properties", "required",
    "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties",
    "allOf", "anyOf", "oneOf", "not", "$ref", "if", "then", "else", "dependentRequired",
    "dependentSchemas", "nullable",
    // Our own, of negations. No schema that is read has them, since they are not UTF-8.
    "\xffnotPattern", "\xffnotEnum", "\xfftypes"};

template <size_t n>
bool IsIn(const std::string_view (&names)[n], std::string_view name) {
  return std::find(names, names + n, name) != names + n;
}

bool IsFalse(const JsonValue* value) {
  return value != nullptr && value->type == JsonValue::Type::kFalse;
}

// Finds the path of a schema, for messages alone.
bool FindPath(const JsonValue& at, const JsonValue* wanted, std::string* path) {
  if (&at == wanted) return true;
  const size_t size = path->size();
  for (const auto& [name, member] : at.members) {
    *path += StrCat("/", Printable(name, 32));
    if (FindPath(member, wanted, path)) return true;
    path->resize(size);
  }
  for (size_t i = 0; i < at.items.size(); ++i) {
    *path += StrCat("/", i);
    if (FindPath(at.items[i], wanted, path)) return true;
    path->resize(size);
  }
  return false;
}

std::string Unescape(std::string_view token) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
  };
  std::string plain;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '%' && i + 2 < token.size() && hex(token[i + 1]) >= 0 &&
        hex(token[i + 2]) >= 0) {
      plain += static_cast<char>(hex(token[i + 1]) * 16 + hex(token[i + 2]));
      i += 2;
    } else {
      plain += token[i];
    }
  }
  std::string result;
  for (size_t i = 0; i < plain.size(); ++i) {
    const bool tilde = plain[i] == '~' && i + 1 < plain.size();
    if (tilde && plain[i + 1] == '1') {
      result += '/';
      ++i;
    } else if (tilde && plain[i + 1] == '0') {
      result += '~';
      ++i;
    } else {
      result += plain[i];
    }
  }
  return result;
}

constexpr size_t kMostInPlace = 2000;  // schemas that apply to one value

// The first of two with one name counts.
void FindAnchors(const JsonValue& at,
                 absl::flat_hash_map<std::string_view, const JsonValue*>* anchors) {
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const JsonValue* anchor = at.Find(keyword);
    if (anchor != nullptr && anchor->is_string()) anchors->try_emplace(anchor->text, &at);
  }
  for (const auto& [key, member] : at.members) {
    if (key != "enum" && key != "const" && key != "$id") FindAnchors(member, anchors);
  }
  for (const JsonValue& item : at.items) FindAnchors(item, anchors);
}

}  // namespace

absl::Status Reader::Refuse(const JsonValue& schema, std::string_view keyword,
                            std::string_view why) {
  std::string path;
  if (!FindPath(root_, &schema, &path)) path.clear();
  if (!keyword.empty() && keyword[0] == '\xff') keyword = "not";
  refusal_ = {.schema = &schema,
              .keyword = std::string(keyword),
              .message = StrCat(Printable(keyword, 64), " at #", path, ": ", why)};
  return absl::InvalidArgumentError(refusal_.message);
}

const JsonValue* Reader::Keep(JsonValue value) {
  made_.push_back(std::move(value));
  return &made_.back();
}

const JsonValue* Reader::Make(std::string_view json) { return Keep(*ParseOrderedJson(json, 8)); }

const JsonValue* Reader::MakeTypes(uint32_t types) {
  JsonValue made{.type = JsonValue::Type::kObject};
  made.members.emplace_back("\xfftypes",
                            JsonValue{.type = JsonValue::Type::kNumber, .text = StrCat(types)});
  return Keep(std::move(made));
}

absl::Status Reader::CheckKeywords(const JsonValue& schema) {
  if (!checked_.insert(&schema).second) return absl::OkStatus();
  for (const auto& [keyword, value] : schema.members) {
    if (IsIn(kAnnotations, keyword) || keyword.starts_with("x-")) {
      if (keyword == "$id" && &schema != &root_) {
        return Refuse(schema, keyword, "an inner schema with an identifier is not supported");
      }
      continue;
    }
    const bool is_true = value.type == JsonValue::Type::kTrue;
    if (keyword == "uniqueItems" && !value.is_bool()) {
      return Refuse(schema, keyword, "it must be true or false");
    }
    if (keyword == "unevaluatedProperties" || keyword == "unevaluatedItems") {
      std::vector<const JsonValue*> evaluators;
      if (!is_true) MILLRACE_RETURN_IF_ERROR(FindEvaluators(schema, schema, &evaluators));
      evaluators_[&schema] = std::move(evaluators);
      continue;
    }
    if (keyword == "minContains" || keyword == "maxContains") {
      if (schema.Find("contains") == nullptr) continue;
    }
    if (!IsIn(kEnforced, keyword)) {
      if (lenient_) continue;
      return Refuse(schema, keyword, "the keyword is not supported, so it could not be enforced");
    }
    if (keyword == "properties" || keyword == "patternProperties") {
      if (!value.is_object()) return Refuse(schema, keyword, "it must be an object");
      properties_ += value.members.size();
      if (properties_ > limits_.properties) {
        return Refuse(schema, keyword,
                      StrCat("the schema has more than ", limits_.properties, " properties"));
      }
    }
    if (keyword == "enum") {
      if (!value.is_array()) return Refuse(schema, keyword, "it must be a list");
      enum_values_ += value.items.size();
      if (enum_values_ > limits_.enum_values) {
        return Refuse(schema, keyword,
                      StrCat("the schema has more than ", limits_.enum_values, " enum values"));
      }
    }
    if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf" ||
        keyword == "prefixItems") {
      if (!value.is_array() || value.items.empty()) {
        return Refuse(schema, keyword, "it must be a list of schemas, not empty");
      }
    }
    if (keyword == "items" && value.is_array() && schema.Find("prefixItems") != nullptr) {
      return Refuse(schema, keyword, "it is a list, and prefixItems stands beside it");
    }
    if (keyword == "required") {
      const bool strings =
          value.is_array() && std::all_of(value.items.begin(), value.items.end(),
                                          [](const JsonValue& item) { return item.is_string(); });
      if (!strings) return Refuse(schema, keyword, "it must be a list of strings");
      properties_ += value.items.size();
      if (properties_ > 2 * limits_.properties) {
        return Refuse(schema, keyword, "the schema has too many properties");
      }
    }
    if ((keyword == "dependentRequired" || keyword == "dependentSchemas") && !value.is_object()) {
      return Refuse(schema, keyword, "it must be an object");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const JsonValue*> Reader::Resolve(const JsonValue& schema,
                                                 std::string_view reference) {
  const JsonValue* id = root_.Find("$id");
  if (id != nullptr && id->is_string() && !id->text.empty() && reference.starts_with(id->text) &&
      (reference.size() == id->text.size() || reference[id->text.size()] == '#')) {
    reference.remove_prefix(id->text.size());
    if (reference.empty()) return &root_;
  }
  if (reference.empty() || reference[0] != '#') {
    return Refuse(schema, "$ref",
                  StrCat("\"", Printable(reference, 80),
                         "\" is not in the schema itself; allowed: "
                         "#, #/$defs/… and anchors"));
  }
  reference.remove_prefix(1);
  if (reference.empty()) return &root_;
  if (reference[0] != '/') {
    if (!anchors_.has_value()) FindAnchors(root_, &anchors_.emplace());
    const auto found = anchors_->find(reference);
    if (found != anchors_->end()) return found->second;
    return Refuse(schema, "$ref", StrCat("there is no anchor ", Printable(reference, 80)));
  }
  const JsonValue* at = &root_;
  const std::string whole(reference);
  while (!reference.empty()) {
    reference.remove_prefix(1);
    const size_t end = std::min(reference.find('/'), reference.size());
    const std::string token = Unescape(reference.substr(0, end));
    reference.remove_prefix(end);
    const JsonValue* next = nullptr;
    if (at->is_object()) {
      next = at->Find(token);
    } else if (at->is_array() && !token.empty() && token.size() < 7 &&
               token.find_first_not_of("0123456789") == token.npos) {
      const size_t index = std::stoul(token);
      if (index < at->items.size()) next = &at->items[index];
    }
    if (next == nullptr) {
      return Refuse(schema, "$ref", StrCat("#", Printable(whole, 80), " is not in the schema"));
    }
    at = next;
  }
  return at;
}

// Adds the alternatives of other schemas that a value must be one of.
absl::Status Reader::AddConditions(const JsonValue& schema, Flat* flat,
                                   std::set<const JsonValue*>* seen) {
  std::vector<JsonValue> conditions;
  const auto list = [](std::string_view keyword, std::vector<JsonValue> items) {
    JsonValue made{.type = JsonValue::Type::kObject};
    made.members.emplace_back(std::string(keyword), JsonValue{.type = JsonValue::Type::kArray,
                                                              .items = std::move(items)});
    return made;
  };
  const auto absent = [&](const std::string& name) {
    JsonValue forbidden{.type = JsonValue::Type::kObject};
    JsonValue properties{.type = JsonValue::Type::kObject};
    properties.members.emplace_back(name, JsonValue{.type = JsonValue::Type::kFalse});
    forbidden.members.emplace_back("properties", std::move(properties));
    return forbidden;
  };
  if (const JsonValue* condition = schema.Find("if")) {
    const JsonValue* then = schema.Find("then");
    const JsonValue* otherwise = schema.Find("else");
    if (then != nullptr || otherwise != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const JsonValue* negation, Negation(*condition));
      const JsonValue any{.type = JsonValue::Type::kTrue};
      conditions.push_back(
          list("anyOf", {list("allOf", {*condition, then != nullptr ? *then : any}),
                         list("allOf", {*negation, otherwise != nullptr ? *otherwise : any})}));
    }
  }
  if (const JsonValue* dependent = schema.Find("dependentRequired")) {
    for (const auto& [name, names] : dependent->members) {
      if (!names.is_array()) return Refuse(schema, "dependentRequired", "it must have lists");
      JsonValue required{.type = JsonValue::Type::kObject};
      required.members.emplace_back("required", names);
      conditions.push_back(list("anyOf", {absent(name), std::move(required)}));
    }
  }
  if (const JsonValue* dependent = schema.Find("dependentSchemas")) {
    for (const auto& [name, other] : dependent->members) {
      conditions.push_back(list("anyOf", {absent(name), other}));
    }
  }
  if (const JsonValue* negated = schema.Find("not")) {
    MILLRACE_ASSIGN_OR_RETURN(const JsonValue* negation, Negation(*negated));
    conditions.push_back(*negation);
  }
  if (conditions.empty()) return absl::OkStatus();
  const JsonValue*& kept = conditions_[&schema];
  if (kept == nullptr) kept = Keep(list("allOf", std::move(conditions)));
  return AddSchema(*kept, flat, seen);
}

absl::Status Reader::AddSchema(const JsonValue& schema, Flat* flat,
                               std::set<const JsonValue*>* seen) {
  if (schema.is_bool()) {
    flat->never = flat->never || IsFalse(&schema);
    return absl::OkStatus();
  }
  if (!schema.is_object()) {
    return Refuse(schema, "schema", "it must be an object, true or false");
  }
  if (!seen->insert(&schema).second) return absl::OkStatus();
  if (seen->size() > kMostInPlace) {
    return Refuse(schema, "allOf", StrCat("more than ", kMostInPlace, " schemas apply to a value"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckKeywords(schema));
  flat->base.push_back(&schema);
  if (const JsonValue* reference = schema.Find("$ref")) {
    if (!reference->is_string()) return Refuse(schema, "$ref", "it must be a string");
    MILLRACE_ASSIGN_OR_RETURN(const JsonValue* target, Resolve(schema, reference->text));
    MILLRACE_RETURN_IF_ERROR(AddSchema(*target, flat, seen));
  }
  if (const JsonValue* all = schema.Find("allOf")) {
    for (const JsonValue& one : all->items) {
      MILLRACE_RETURN_IF_ERROR(AddSchema(one, flat, seen));
    }
  }
  if (const JsonValue* any = schema.Find("anyOf")) {
    MILLRACE_RETURN_IF_ERROR(Add({Part::Kind::kAnyOf, any}, flat, seen));
  }
  if (const JsonValue* one = schema.Find("oneOf")) {
    MILLRACE_RETURN_IF_ERROR(Add({Part::Kind::kOneOf, one}, flat, seen));
  }
  return AddConditions(schema, flat, seen);
}

absl::Status Reader::Add(const Part& part, Flat* flat, std::set<const JsonValue*>* seen) {
  switch (part.kind) {
    case Part::Kind::kSchema:
      return AddSchema(*part.value, flat, seen);
    case Part::Kind::kBase:
      if (seen->insert(part.value).second) flat->base.push_back(part.value);
      return absl::OkStatus();
    default:
      if (std::find(flat->alternatives.begin(), flat->alternatives.end(), part) ==
          flat->alternatives.end()) {
        flat->alternatives.push_back(part);
      }
      return absl::OkStatus();
  }
}

absl::StatusOr<Flat> Reader::Flatten(const Conjunction& conjunction) {
  Flat flat;
  std::set<const JsonValue*> seen;
  for (const Part& part : conjunction) MILLRACE_RETURN_IF_ERROR(Add(part, &flat, &seen));
  return flat;
}

// Collects the schemas that apply in place of `schema` whatever the value is. Those that apply to
// some values alone evaluate properties of these values alone, which is not supported.
absl::Status Reader::FindEvaluators(const JsonValue& schema, const JsonValue& at,
                                    std::vector<const JsonValue*>* evaluators) {
  if (!at.is_object() ||
      std::find(evaluators->begin(), evaluators->end(), &at) != evaluators->end()) {
    return absl::OkStatus();
  }
  evaluators->push_back(&at);
  if (evaluators->size() > kMostInPlace) {
    return Refuse(schema, "$ref", StrCat("more than ", kMostInPlace, " schemas apply to a value"));
  }
  for (const char* keyword : {"anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef"}) {
    if (at.Find(keyword) == nullptr) continue;
    return Refuse(schema,
                  schema.Find("unevaluatedItems") ? "unevaluatedItems" : "unevaluatedProperties",
                  StrCat("beside ", keyword, " it is not supported"));
  }
  if (const JsonValue* all = at.Find("allOf")) {
    for (const JsonValue& one : all->items) {
      MILLRACE_RETURN_IF_ERROR(FindEvaluators(schema, one, evaluators));
    }
  }
  const JsonValue* reference = at.Find("$ref");
  if (reference == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const JsonValue* target, Resolve(at, reference->text));
  return FindEvaluators(schema, *target, evaluators);
}

namespace {

// Adds what one schema says of a property; returns whether it evaluates it.
bool AddOwnProperty(const JsonValue& schema, std::optional<std::string_view> name,
                    const std::set<std::string_view>& patterns, Conjunction* schemas) {
  const auto add = [schemas](const JsonValue& own) {
    if (schemas != nullptr) schemas->push_back({Part::Kind::kSchema, &own});
  };
  bool named = false;
  const JsonValue* properties = schema.Find("properties");
  if (properties != nullptr && name.has_value()) {
    if (const JsonValue* own = properties->Find(*name)) {
      add(*own);
      named = true;
    }
  }
  if (const JsonValue* by_pattern = schema.Find("patternProperties")) {
    for (const auto& [pattern, own] : by_pattern->members) {
      if (!patterns.contains(pattern)) continue;
      add(own);
      named = true;
    }
  }
  const JsonValue* additional = schema.Find("additionalProperties");
  if (!named && additional != nullptr) add(*additional);
  return named || additional != nullptr;
}

// Returns the schemas of the first items. Up to draft 2019-09 they are a list under `items`, and
// additionalItems is the schema of the others.
const JsonValue* PrefixItems(const JsonValue& schema) {
  const JsonValue* items = schema.Find("items");
  return items != nullptr && items->is_array() ? items : schema.Find("prefixItems");
}

bool AddOwnItem(const JsonValue& schema, size_t index, Conjunction* schemas) {
  const JsonValue* prefix = PrefixItems(schema);
  const JsonValue* own = schema.Find("items");
  if (own != nullptr && own->is_array()) own = schema.Find("additionalItems");
  if (prefix != nullptr && index < prefix->items.size()) own = &prefix->items[index];
  if (own != nullptr && schemas != nullptr) schemas->push_back({Part::Kind::kSchema, own});
  return own != nullptr;
}

}  // namespace

void Reader::AddProperty(const std::vector<const JsonValue*>& base,
                         std::optional<std::string_view> name,
                         const std::set<std::string_view>& patterns, Conjunction* schemas) const {
  for (const JsonValue* schema : base) {
    AddOwnProperty(*schema, name, patterns, schemas);
    const JsonValue* unevaluated = schema->Find("unevaluatedProperties");
    if (unevaluated == nullptr) continue;
    const auto& evaluators = evaluators_.at(schema);
    const bool evaluated =
        std::any_of(evaluators.begin(), evaluators.end(), [&](const JsonValue* other) {
          return AddOwnProperty(*other, name, patterns, nullptr) ||
                 (other != schema && other->Find("unevaluatedProperties") != nullptr);
        });
    if (!evaluated) schemas->push_back({Part::Kind::kSchema, unevaluated});
  }
}

void Reader::AddItem(const std::vector<const JsonValue*>& base, size_t index,
                     Conjunction* schemas) const {
  for (const JsonValue* schema : base) {
    AddOwnItem(*schema, index, schemas);
    const JsonValue* unevaluated = schema->Find("unevaluatedItems");
    if (unevaluated == nullptr) continue;
    const auto& evaluators = evaluators_.at(schema);
    const bool evaluated =
        std::any_of(evaluators.begin(), evaluators.end(), [&](const JsonValue* other) {
          return AddOwnItem(*other, index, nullptr) ||
                 (other != schema && other->Find("unevaluatedItems") != nullptr);
        });
    if (!evaluated) schemas->push_back({Part::Kind::kSchema, unevaluated});
  }
}

size_t Reader::PrefixOf(const std::vector<const JsonValue*>& base) const {
  size_t prefix = 0;
  const auto add = [&prefix](const JsonValue* schema) {
    if (const JsonValue* items = PrefixItems(*schema)) {
      prefix = std::max(prefix, items->items.size());
    }
  };
  for (const JsonValue* schema : base) {
    add(schema);
    const auto found = evaluators_.find(schema);
    if (found == evaluators_.end()) continue;
    for (const JsonValue* other : found->second) add(other);
  }
  return prefix;
}

}  // namespace millrace::schema
