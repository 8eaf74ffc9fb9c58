#include "engine/constraints/element_objects.h"

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
// The largest number of schemas that are read for one tool, each as often as it is referred to.
constexpr size_t kMostReads = 256;
// The largest amount of work on the properties of one tool: about the bytes that are copied and the
// keys that are compared.
constexpr size_t kMostWork = 128 << 20;

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

// Returns whether no arguments that are written as `a` meet `b`, too. `around` are the forms that
// the schema around both has, whose properties may stand beside those of `a`.
bool Misses(const ElementObject& a, const ElementObject& b, const Objects& around) {
  const auto closed = [&](const std::string& key) {
    return b.additional.has_value() && *b.additional == false && !b.properties.contains(key);
  };
  const auto never_written = [&](const std::string& key) {
    return a.lists && !a.properties.contains(key) &&
           std::none_of(around.begin(), around.end(),
                        [&](const ElementObject& one) { return one.properties.contains(key); });
  };
  return std::any_of(a.required.begin(), a.required.end(), closed) ||
         std::any_of(b.required.begin(), b.required.end(), never_written);
}

// Returns whether no arguments that are written as one of these forms meet the other: a required
// property has other values in each, or is required in one and cannot be in the other.
bool Apart(const ElementObject& a, const ElementObject& b, const Objects& around) {
  const auto told_by = [&](const std::string& key) {
    const auto values = ValuesOf(a, key);
    const auto others = ValuesOf(b, key);
    return values && others &&
           std::none_of(values->begin(), values->end(), [&](const OrderedJson& value) {
             return std::find(others->begin(), others->end(), value) != others->end();
           });
  };
  return std::any_of(a.required.begin(), a.required.end(), told_by) ||
         std::any_of(b.required.begin(), b.required.end(), told_by) ||
         (Misses(a, b, around) && Misses(b, a, around));
}

// Has `known` demand what `schema` demands, too.
void Demand(OrderedJson& known, const OrderedJson& schema) {
  if (known == schema) return;
  const bool joined = known.is_object() && known.size() == 1 && known.contains("allOf") &&
                      known["allOf"].is_array();
  if (!joined) {
    known = {{"allOf", OrderedJson::array({known, schema})}};
    return;
  }
  OrderedJson& all = known["allOf"];
  if (std::find(all.begin(), all.end(), schema) == all.end()) all.push_back(schema);
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
      Demand(*known, schema);
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
  Reader(const OrderedJson& root, bool lenient)
      : root_(root), lenient_(lenient), bytes_(root.dump().size()) {}

  absl::StatusOr<Objects> Read(const OrderedJson& schema, int depth) {
    if (schema.is_boolean() && schema == true) return Objects{ElementObject()};
    if (!schema.is_object()) return Refuse("a schema", " is no object");
    if (depth > kMostDepth) return Refuse("$ref", " leads too deep");
    if (++reads_ > 1 && !Spend(bytes_)) return TooMany();
    if (!lenient_) MILLRACE_RETURN_IF_ERROR(CheckKeywords(schema));
    Objects objects = {Own(schema)};
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      MILLRACE_RETURN_IF_ERROR(Add(objects, Referred(*ref, depth)));
    }
    if (const auto all = schema.find("allOf"); all != schema.end() && all->is_array()) {
      for (const OrderedJson& one : *all) {
        if (lenient_ && reads_ > kMostReads) break;
        MILLRACE_RETURN_IF_ERROR(Add(objects, Read(one, depth + 1)));
      }
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const auto list = schema.find(keyword);
      if (list == schema.end() || !list->is_array()) continue;
      MILLRACE_RETURN_IF_ERROR(Add(objects, Branches(*list, keyword, depth, objects)));
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

  static absl::Status TooMany() { return Refuse("$ref", " that leads to too many schemas"); }

  // Returns whether so much more work may be done.
  bool Spend(size_t work) {
    work_ += work;
    return reads_ <= kMostReads && work_ <= kMostWork;
  }

  // Reads the keywords of the schema itself, without what it refers to.
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
    const OrderedJson* place = path.starts_with('#') ? Place(path.substr(1)) : nullptr;
    if (place == nullptr) {
      return Refuse("$ref", " to something else than a part of the parameters");
    }
    return Read(*place, depth + 1);
  }

  // Returns what a JSON pointer points to, or nullptr. nlohmann's own reader throws where a place
  // in a list is no number.
  const OrderedJson* Place(std::string_view pointer) const {
    const OrderedJson* place = &root_;
    while (!pointer.empty()) {
      if (!pointer.starts_with('/')) return nullptr;
      const std::string_view step = pointer.substr(1, pointer.find('/', 1) - 1);
      pointer.remove_prefix(step.size() + 1);
      std::string key;
      for (size_t i = 0; i < step.size(); ++i) {
        key += step[i];
        if (step[i] != '~') continue;
        if (++i == step.size() || (step[i] != '0' && step[i] != '1')) return nullptr;
        key.back() = step[i] == '0' ? '~' : '/';
      }
      if (place->is_object()) {
        const auto member = place->find(key);
        if (member == place->end()) return nullptr;
        place = &*member;
      } else {
        const bool number = place->is_array() && !key.empty() && key.size() < 10 &&
                            key.find_first_not_of("0123456789") == key.npos &&
                            (key == "0" || key.front() != '0');
        if (!number || std::stoul(key) >= place->size()) return nullptr;
        place = &(*place)[std::stoul(key)];
      }
    }
    return place;
  }

  // Returns the forms of all branches. `around`: those of the schema that has the keyword.
  absl::StatusOr<Objects> Branches(const OrderedJson& list, std::string_view keyword, int depth,
                                   const Objects& around) {
    Objects branches;
    for (const OrderedJson& one : list) {
      MILLRACE_ASSIGN_OR_RETURN(Objects read, Read(one, depth + 1));
      if (branches.size() + read.size() > kMostObjects) return TooManyForms();
      const auto apart = [&](const ElementObject& object) {
        return std::all_of(branches.begin(), branches.end(), [&](const ElementObject& other) {
          return Apart(object, other, around);
        });
      };
      if (keyword == "oneOf" && !lenient_ && !std::all_of(read.begin(), read.end(), apart)) {
        return Refuse(keyword, " with branches that no required property tells apart");
      }
      std::move(read.begin(), read.end(), std::back_inserter(branches));
    }
    return branches;
  }

  // Combines each of the objects with each of `more`. Where that is lenient, what cannot be had is
  // left out.
  absl::Status Add(Objects& objects, absl::StatusOr<Objects> more) {
    if (more.ok() && objects.size() * more->size() > kMostObjects) more = TooManyForms();
    if (more.ok()) {
      size_t work = 0;
      for (const ElementObject& a : objects) {
        for (const ElementObject& b : *more) {
          work += bytes_ + a.properties.size() * b.properties.size();
        }
      }
      if (!Spend(work)) more = TooMany();
    }
    if (!more.ok()) return lenient_ ? absl::OkStatus() : more.status();
    Objects all;
    for (const ElementObject& a : objects) {
      for (const ElementObject& b : *more) all.push_back(Both(a, b));
    }
    objects = std::move(all);
    return absl::OkStatus();
  }

  static absl::Status TooManyForms() {
    return Refuse("anyOf", StrCat(" of more than ", kMostObjects, " forms"));
  }

  const OrderedJson& root_;
  const bool lenient_;
  const size_t bytes_;  // of the whole schema
  size_t reads_ = 0;
  size_t work_ = 0;
};

// Returns whether the schema refers to any other one.
bool Refers(const OrderedJson& schema) {
  if (!schema.is_structured()) return false;
  if (schema.is_object() && schema.contains("$ref")) return true;
  return std::any_of(schema.begin(), schema.end(), Refers);
}

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
    if (optional <= kMostOptional && object.properties.size() <= kMostListed) continue;
    if (!lenient) {
      const std::string_view keyword = !object.dependent.empty()               ? "dependentRequired"
                                       : object.least > object.required.size() ? "minProperties"
                                                                               : "maxProperties";
      return Refuse(keyword, StrCat(" beside more than ", kMostOptional, " optional properties or ",
                                    kMostListed, " in all"));
    }
    object.least = 0;
    object.most = SIZE_MAX;
    object.dependent.clear();
  }
  return objects;
}

OrderedJson PropertySchema(const OrderedJson& parameters, const OrderedJson& schema) {
  if (!Refers(schema)) return schema;
  OrderedJson whole = schema;
  for (const char* name : {"$defs", "definitions"}) {
    if (parameters.contains(name)) whole[name] = parameters[name];
  }
  if (whole.contains("$defs") && !whole["$defs"].is_object()) whole.erase("$defs");
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
