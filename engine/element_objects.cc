#include "engine/element_objects.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Objects = std::vector<ElementObject>;

constexpr size_t kMostObjects = 32;
constexpr int kMostDepth = 16;

constexpr std::string_view kHeld[] = {"type",
                                      "properties",
                                      "required",
                                      "additionalProperties",
                                      "allOf",
                                      "anyOf",
                                      "oneOf",
                                      "$ref",
                                      "minProperties",
                                      "maxProperties",
                                      "dependentRequired",
                                      "$defs",
                                      "title",
                                      "default",
                                      "$comment",
                                      "description",
                                      "definitions",
                                      "$schema",
                                      "$id",
                                      "examples"};

absl::Status Refuse(std::string_view keyword, std::string_view why) {
  return absl::InvalidArgumentError(StrCat(Printable(keyword), why));
}

std::set<std::string, std::less<>> Strings(const OrderedJson& list) {
  std::set<std::string, std::less<>> strings;
  for (const OrderedJson& one : list) {
    if (one.is_string()) strings.insert(one.get<std::string>());
  }
  return strings;
}

// Returns the values that a property's enum or const lists; nothing if it has neither.
std::optional<OrderedJson> ValuesOf(const ElementObject& object, const std::string& key) {
  const auto property = object.properties.find(key);
  if (property == object.properties.end() || !property->is_object()) return std::nullopt;
  if (const auto one = property->find("const"); one != property->end()) {
    return OrderedJson::array({*one});
  }
  if (const auto list = property->find("enum"); list != property->end()) return *list;
  return std::nullopt;
}

// Returns whether no object can have both forms: a required property has other values in each, or
// is none of the other's.
bool Apart(const ElementObject& a, const ElementObject& b) {
  const auto told_by = [](const ElementObject& one, const ElementObject& other,
                          const std::string& key) {
    if (other.lists && !other.properties.contains(key)) return true;
    const auto values = ValuesOf(one, key);
    const auto others = ValuesOf(other, key);
    return values && others && other.required.contains(key) &&
           std::none_of(values->begin(), values->end(), [&](const OrderedJson& value) {
             return std::find(others->begin(), others->end(), value) != others->end();
           });
  };
  const auto any = [&](const ElementObject& one, const ElementObject& other) {
    return std::any_of(one.required.begin(), one.required.end(),
                       [&](const std::string& key) { return told_by(one, other, key); });
  };
  return any(a, b) || any(b, a);
}

// Returns the form that has what both demand.
ElementObject Both(const ElementObject& a, const ElementObject& b) {
  const auto is_closed = [](const ElementObject& one) {
    return one.additional.has_value() && *one.additional == false;
  };
  ElementObject both = a;
  for (const auto& [key, schema] : b.properties.items()) {
    const auto known = both.properties.find(key);
    if (known == both.properties.end()) {
      both.properties[key] = schema;
    } else {
      *known = {{"allOf", OrderedJson::array({*known, schema})}};
    }
  }
  for (const ElementObject* one : {&a, &b}) {
    if (!is_closed(*one)) continue;
    for (auto it = both.properties.begin(); it != both.properties.end();) {
      it = one->properties.contains(it.key()) ? std::next(it) : both.properties.erase(it);
    }
  }
  both.lists = a.lists || b.lists;
  if (!both.additional.has_value() || is_closed(b)) both.additional = b.additional;
  if (is_closed(a)) both.additional = false;
  both.required.insert(b.required.begin(), b.required.end());
  both.least = std::max(a.least, b.least);
  both.most = std::min(a.most, b.most);
  for (const auto& [key, needed] : b.dependent) {
    both.dependent[key].insert(needed.begin(), needed.end());
  }
  return both;
}

class Reader {
 public:
  Reader(const OrderedJson& root, bool lenient) : root_(root), lenient_(lenient) {}

  absl::StatusOr<Objects> Read(const OrderedJson& schema, int depth) {
    if (schema.is_boolean() && schema == true) return Objects{ElementObject()};
    if (!schema.is_object()) return Refuse("a schema", " is no object");
    if (depth > kMostDepth) return Refuse("$ref", " leads too deep");
    if (!lenient_) MILLRACE_RETURN_IF_ERROR(CheckKeywords(schema));
    Objects objects = {Own(schema)};
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      MILLRACE_RETURN_IF_ERROR(Add(objects, Referred(*ref, depth)));
    }
    if (const auto all = schema.find("allOf"); all != schema.end() && all->is_array()) {
      for (const OrderedJson& one : *all) {
        MILLRACE_RETURN_IF_ERROR(Add(objects, Read(one, depth + 1)));
      }
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const auto list = schema.find(keyword);
      if (list == schema.end() || !list->is_array()) continue;
      MILLRACE_RETURN_IF_ERROR(Add(objects, Branches(*list, keyword, depth)));
    }
    return objects;
  }

 private:
  static absl::Status CheckKeywords(const OrderedJson& schema) {
    for (const auto& [keyword, value] : schema.items()) {
      const bool held = std::find(std::begin(kHeld), std::end(kHeld), keyword) != std::end(kHeld);
      if (!held && !(keyword == "unevaluatedProperties" && value == false)) {
        return Refuse(keyword, "");
      }
    }
    return absl::OkStatus();
  }

  // What the schema says itself.
  static ElementObject Own(const OrderedJson& schema) {
    ElementObject own;
    if (const auto list = schema.find("properties"); list != schema.end() && list->is_object()) {
      own.properties = *list;
      own.lists = true;
    }
    if (const auto more = schema.find("additionalProperties"); more != schema.end()) {
      own.additional = *more;
    }
    own.required = Strings(schema.value("required", OrderedJson::array()));
    const auto count = [&](const char* name, size_t otherwise) {
      const auto found = schema.find(name);
      return found != schema.end() && found->is_number_unsigned() ? found->get<size_t>()
                                                                  : otherwise;
    };
    own.least = count("minProperties", 0);
    own.most = count("maxProperties", SIZE_MAX);
    const OrderedJson dependent = schema.value("dependentRequired", OrderedJson::object());
    if (dependent.is_object()) {
      for (const auto& [key, needed] : dependent.items()) own.dependent[key] = Strings(needed);
    }
    return own;
  }

  absl::StatusOr<Objects> Referred(const OrderedJson& ref, int depth) {
    const std::string path = ref.is_string() ? ref.get<std::string>() : "";
    const bool here = path == "#" || path.starts_with("#/");
    const auto pointer = here ? path.substr(1) : "/";
    if (!here || !IsPointer(pointer) || !root_.contains(OrderedJson::json_pointer(pointer))) {
      return Refuse("$ref", " to something else than a part of the parameters");
    }
    return Read(root_.at(OrderedJson::json_pointer(pointer)), depth + 1);
  }

  // Returns whether nlohmann's reader takes it: ~ is followed by 0 or 1.
  static bool IsPointer(std::string_view pointer) {
    for (size_t i = 0; i < pointer.size(); ++i) {
      if (pointer[i] != '~') continue;
      if (i + 1 == pointer.size() || (pointer[i + 1] != '0' && pointer[i + 1] != '1')) return false;
    }
    return true;
  }

  absl::StatusOr<Objects> Branches(const OrderedJson& list, std::string_view keyword, int depth) {
    Objects branches;
    for (const OrderedJson& one : list) {
      MILLRACE_ASSIGN_OR_RETURN(Objects read, Read(one, depth + 1));
      const bool apart = std::all_of(read.begin(), read.end(), [&](const ElementObject& object) {
        return std::all_of(branches.begin(), branches.end(),
                           [&](const ElementObject& other) { return Apart(object, other); });
      });
      if (keyword == "oneOf" && !apart && !lenient_) {
        return Refuse(keyword, " with branches that no required property tells apart");
      }
      std::move(read.begin(), read.end(), std::back_inserter(branches));
    }
    return branches;
  }

  // Combines each of the objects with each of `more`. Where that is lenient, what cannot be had is
  // left out.
  absl::Status Add(Objects& objects, absl::StatusOr<Objects> more) const {
    if (more.ok() && objects.size() * more->size() > kMostObjects) {
      more = Refuse("anyOf", StrCat(" of more than ", kMostObjects, " forms"));
    }
    if (!more.ok()) return lenient_ ? absl::OkStatus() : more.status();
    Objects all;
    for (const ElementObject& a : objects) {
      for (const ElementObject& b : *more) all.push_back(Both(a, b));
    }
    objects = std::move(all);
    return absl::OkStatus();
  }

  const OrderedJson& root_;
  const bool lenient_;
};

// Has references to other places than definitions point into `place`. Returns whether there are.
bool MoveReferences(const std::string& place, OrderedJson& schema) {
  bool any = false;
  if (schema.is_array()) {
    for (OrderedJson& one : schema) any = MoveReferences(place, one) || any;
  }
  if (!schema.is_object()) return any;
  for (auto& [key, value] : schema.items()) {
    if (key == "enum" || key == "const" || key == "default" || key == "examples") continue;
    if (key != "$ref" || !value.is_string()) {
      any = MoveReferences(place, value) || any;
      continue;
    }
    const std::string ref = value.get<std::string>();
    const bool definition = ref.starts_with("#/$defs/") || ref.starts_with("#/definitions/");
    if (definition || !(ref == "#" || ref.starts_with("#/"))) continue;
    value = StrCat("#/$defs/", place, ref.substr(1));
    any = true;
  }
  return any;
}

}  // namespace

bool ElementObject::IsPlain() const {
  return least <= required.size() && most >= properties.size() && dependent.empty();
}

bool ElementObject::Allows(const std::set<std::string, std::less<>>& keys) const {
  const auto has_all = [&](const std::set<std::string, std::less<>>& some) {
    return std::includes(keys.begin(), keys.end(), some.begin(), some.end());
  };
  return keys.size() >= least && keys.size() <= most && has_all(required) &&
         std::all_of(dependent.begin(), dependent.end(), [&](const auto& one) {
           return !keys.contains(one.first) || has_all(one.second);
         });
}

absl::StatusOr<std::vector<ElementObject>> ElementObjects(const OrderedJson& parameters,
                                                          bool lenient) {
  MILLRACE_ASSIGN_OR_RETURN(Objects objects, Reader(parameters, lenient).Read(parameters, 0));
  for (ElementObject& object : objects) {
    if (!object.lists && !lenient && (!object.required.empty() || !object.dependent.empty())) {
      return Refuse(object.required.empty() ? "dependentRequired" : "required",
                    " of properties that are not listed");
    }
    if (!object.lists || object.IsPlain()) continue;
    const auto is_optional = [&](const auto& item) {
      return !object.required.contains(item.key());
    };
    size_t optional = 0;
    for (auto it = object.properties.begin(); it != object.properties.end(); ++it) {
      optional += is_optional(it) ? 1 : 0;
    }
    if (optional <= kMostOptional) continue;
    if (!lenient) {
      const std::string_view keyword = !object.dependent.empty()               ? "dependentRequired"
                                       : object.least > object.required.size() ? "minProperties"
                                                                               : "maxProperties";
      return Refuse(keyword, StrCat(" beside more than ", kMostOptional, " optional properties"));
    }
    object.least = 0;
    object.most = SIZE_MAX;
    object.dependent.clear();
  }
  return objects;
}

OrderedJson PropertySchema(const OrderedJson& parameters, const OrderedJson& schema) {
  if (!schema.is_object()) return schema;
  OrderedJson whole = schema;
  for (const char* name : {"$defs", "definitions"}) {
    if (parameters.contains(name)) whole[name] = parameters[name];
  }
  std::string place = "parameters";
  while (whole.contains("$defs") && whole["$defs"].contains(place)) place += '_';
  if (!MoveReferences(place, whole)) return whole;
  OrderedJson root = parameters;
  for (const char* name : {"$defs", "definitions"}) root.erase(name);
  MoveReferences(place, root);
  whole["$defs"][place] = std::move(root);
  return whole;
}

}  // namespace millrace
