#include "text/tools/argument_type.h"

#include <algorithm>
#include <initializer_list>

namespace millrace {
namespace {

constexpr uint8_t kNumber = ArgumentType::kInteger | ArgumentType::kFraction;

uint8_t TypeNamed(const OrderedJson& name) {
  if (name == "null") return ArgumentType::kNull;
  if (name == "boolean") return ArgumentType::kBoolean;
  if (name == "integer") return ArgumentType::kInteger;
  if (name == "number") return kNumber;
  if (name == "string") return ArgumentType::kString;
  if (name == "array") return ArgumentType::kArray;
  if (name == "object") return ArgumentType::kObject;
  return ArgumentType::kAny;
}

// What keywords that apply to one type alone tell of a schema that names none.
uint8_t TypeHinted(const OrderedJson& schema) {
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const char* name) { return schema.contains(name); });
  };
  if (has({"pattern", "minLength", "maxLength", "format"})) return ArgumentType::kString;
  if (has({"properties", "additionalProperties", "required"})) return ArgumentType::kObject;
  if (has({"items", "prefixItems", "minItems", "maxItems"})) return ArgumentType::kArray;
  if (has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})) {
    return kNumber;
  }
  return ArgumentType::kAny;
}

std::string Unescaped(std::string_view part) {
  std::string text;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      text += part[++i] == '0' ? '~' : '/';
    } else {
      text += part[i];
    }
  }
  return text;
}

// Reads one tool's schema. Schemas come from clients and may refer to themselves, so that the work
// is bounded: what lies beyond the bound may be anything.
class SchemaReader {
 public:
  explicit SchemaReader(const OrderedJson& root) : root_(root) {}

  uint8_t Types(const OrderedJson& schema, std::vector<std::string>* texts) {
    if (!schema.is_object() || --budget_ < 0) return ArgumentType::kAny;
    uint8_t types = ArgumentType::kAny;
    if (const OrderedJson* target = Referred(schema)) types &= Types(*target, texts);
    if (const auto type = schema.find("type"); type != schema.end()) types &= Named(*type);
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
      types &= TypesOfValues(*list, texts);
    }
    if (const auto value = schema.find("const"); value != schema.end()) {
      types &= TypesOfValues(OrderedJson::array({*value}), texts);
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      const auto list = schema.find(name);
      if (list == schema.end() || !list->is_array() || list->empty()) continue;
      uint8_t either = 0;
      for (const OrderedJson& one : *list) either |= Types(one, texts);
      types &= either;
    }
    if (const auto list = schema.find("allOf"); list != schema.end() && list->is_array()) {
      for (const OrderedJson& one : *list) types &= Types(one, texts);
    }
    if (types == ArgumentType::kAny) types = TypeHinted(schema);
    if (types != ArgumentType::kAny && schema.value("nullable", OrderedJson()) == true) {
      types |= ArgumentType::kNull;
    }
    return types;
  }

  // Appends the schemas that the parts of `schema` give the property `key`. Sets `lists` if one of
  // them lists properties.
  void Find(const OrderedJson& schema, std::string_view key, std::vector<const OrderedJson*>* found,
            bool* lists) {
    if (!schema.is_object() || --budget_ < 0) return;
    if (const auto all = schema.find("properties"); all != schema.end() && all->is_object()) {
      *lists = *lists || !all->empty();
      if (const auto one = all->find(key); one != all->end()) found->push_back(&*one);
    }
    if (const OrderedJson* target = Referred(schema)) Find(*target, key, found, lists);
    for (const char* name : {"allOf", "anyOf", "oneOf"}) {
      const auto list = schema.find(name);
      if (list == schema.end() || !list->is_array()) continue;
      for (const OrderedJson& one : *list) Find(one, key, found, lists);
    }
  }

 private:
  static uint8_t Named(const OrderedJson& type) {
    if (type.is_string()) return TypeNamed(type);
    if (!type.is_array() || type.empty()) return ArgumentType::kAny;
    uint8_t types = 0;
    for (const OrderedJson& one : type) types |= TypeNamed(one);
    return types;
  }

  static uint8_t TypesOfValues(const OrderedJson& values, std::vector<std::string>* texts) {
    uint8_t types = 0;
    for (const OrderedJson& value : values) {
      types |= TypeOfValue(value);
      if (value.is_string()) texts->push_back(value.get<std::string>());
    }
    return types;
  }

  // Returns what `$ref` points to, a place within the root; nullptr: nothing, or elsewhere.
  const OrderedJson* Referred(const OrderedJson& schema) const {
    const auto ref = schema.find("$ref");
    if (ref == schema.end() || !ref->is_string()) return nullptr;
    std::string_view path = ref->get_ref<const std::string&>();
    if (!path.starts_with('#')) return nullptr;
    path.remove_prefix(1);
    const OrderedJson* at = &root_;
    while (path.starts_with('/')) {
      path.remove_prefix(1);
      const size_t end = std::min(path.find('/'), path.size());
      if (!at->is_object()) return nullptr;
      const auto next = at->find(Unescaped(path.substr(0, end)));
      if (next == at->end()) return nullptr;
      at = &*next;
      path.remove_prefix(end);
    }
    return at;
  }

  const OrderedJson& root_;
  int budget_ = 2000;
};

}  // namespace

uint8_t TypeOfValue(const OrderedJson& value) {
  if (value.is_null()) return ArgumentType::kNull;
  if (value.is_boolean()) return ArgumentType::kBoolean;
  if (value.is_number_integer()) return ArgumentType::kInteger;
  if (value.is_number()) return ArgumentType::kFraction;
  if (value.is_string()) return ArgumentType::kString;
  return value.is_array() ? ArgumentType::kArray : ArgumentType::kObject;
}

ArgumentType TypeOfArgument(const OrderedJson& parameters, std::string_view key) {
  SchemaReader reader(parameters);
  std::vector<const OrderedJson*> found;
  bool lists = false;
  reader.Find(parameters, key, &found, &lists);
  if (found.empty() && parameters.is_object()) {
    const auto others = parameters.find("additionalProperties");
    if (others != parameters.end() && others->is_object()) found.push_back(&*others);
  }
  ArgumentType type;
  uint8_t types = 0;
  for (const OrderedJson* schema : found) types |= reader.Types(*schema, &type.texts);
  if (types != 0) type.types = types;
  return type;
}

bool ListsProperties(const OrderedJson& parameters) {
  std::vector<const OrderedJson*> found;
  bool lists = false;
  SchemaReader(parameters).Find(parameters, "", &found, &lists);
  return lists;
}

bool HasProperty(const OrderedJson& parameters, std::string_view key) {
  std::vector<const OrderedJson*> found;
  bool lists = false;
  SchemaReader(parameters).Find(parameters, key, &found, &lists);
  return !found.empty();
}

}  // namespace millrace
