#include "text/jinja/value.h"

#include <algorithm>
#include <type_traits>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

// Returns how deep a value nests: 0 for a scalar.
int DepthOf(const Value& value) {
  if (const auto* list = value.Get<std::shared_ptr<const List>>()) return (*list)->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

absl::Status CheckDepth(const Budget& budget, int depth) {
  if (depth <= budget.limits().max_depth) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("lists and dicts are nested deeper than ", budget.limits().max_depth, " levels"));
}

absl::StatusOr<bool> ListsEqual(Budget& budget, const List& a, const List& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(budget, a.items[i], b.items[i]));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> DictsEqual(Budget& budget, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    MILLRACE_ASSIGN_OR_RETURN(const Value* other, FindKey(budget, b, key));
    if (other == nullptr) return false;
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(budget, value, *other));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> ListLess(Budget& budget, const List& a, const List& b) {
  const size_t shared = std::min(a.items.size(), b.items.size());
  for (size_t i = 0; i < shared; ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(budget, a.items[i], b.items[i]));
    if (!equal) return Less(budget, a.items[i], b.items[i]);
  }
  return a.items.size() < b.items.size();
}

// The index of the item with that key, or the number of items.
absl::StatusOr<size_t> FindIndex(Budget& budget, const Dict& dict, const Value& key) {
  if (const std::string* text = key.string()) {
    MILLRACE_RETURN_IF_ERROR(budget.Spend(1 + dict.items.size() / 16));
    const auto is_key = [text](const auto& item) {
      return item.first.string() != nullptr && *item.first.string() == *text;
    };
    const auto found = std::find_if(dict.items.begin(), dict.items.end(), is_key);
    return static_cast<size_t>(found - dict.items.begin());
  }
  for (size_t i = 0; i < dict.items.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(budget, dict.items[i].first, key));
    if (equal) return i;
  }
  return dict.items.size();
}

// Writes values as Python's str() and repr() do; they differ for a string alone.
class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}

  absl::Status Print(const Value& value) {
    if (value.string() != nullptr) return Append(Repr(*value.string()));
    if (const List* list = value.list()) return PrintList(*list);
    if (const Dict* dict = value.dict()) return PrintDict(*dict);
    if (value.Is<Undefined>()) return Append("Undefined");
    if (value.Is<None>()) return Append("None");
    if (const bool* flag = value.Get<bool>()) return Append(*flag ? "True" : "False");
    if (const int64_t* integer = value.Get<int64_t>()) return Append(StrCat(*integer));
    if (const uint64_t* integer = value.Get<uint64_t>()) return Append(StrCat(*integer));
    if (const double* real = value.Get<double>()) return Append(FloatText(*real));
    if (const auto* integer = value.Get<Value::LongInteger>()) return Append(*integer->digits);
    return TypeError("print", value);
  }

  std::string Take() { return std::move(text_); }

 private:
  absl::Status Append(std::string_view text) {
    text_.append(text);
    MILLRACE_RETURN_IF_ERROR(budget_.SpendText(text.size()));
    return text_.size() <= budget_.limits().max_output_bytes ? absl::OkStatus()
                                                             : budget_.SpendText(text_.size());
  }

  absl::Status PrintList(const List& list) {
    const bool is_tuple = list.kind == ListKind::kTuple;
    MILLRACE_RETURN_IF_ERROR(Append(is_tuple ? "(" : "["));
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) MILLRACE_RETURN_IF_ERROR(Append(", "));
      MILLRACE_RETURN_IF_ERROR(Print(list.items[i]));
    }
    if (is_tuple) return Append(list.items.size() == 1 ? ",)" : ")");
    return Append("]");
  }

  absl::Status PrintDict(const Dict& dict) {
    MILLRACE_RETURN_IF_ERROR(Append("{"));
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i > 0) MILLRACE_RETURN_IF_ERROR(Append(", "));
      MILLRACE_RETURN_IF_ERROR(Print(dict.items[i].first));
      MILLRACE_RETURN_IF_ERROR(Append(": "));
      MILLRACE_RETURN_IF_ERROR(Print(dict.items[i].second));
    }
    return Append("}");
  }

  Budget& budget_;
  std::string text_;
};

}  // namespace

const std::string* Value::string() const {
  const Markup* markup = Get<Markup>();
  return markup != nullptr ? markup->text.get() : Pointee<String>();
}

const List* Value::list() const {
  const List* list = Pointee<std::shared_ptr<const List>>();
  return list == nullptr || list->kind == ListKind::kIterator ? nullptr : list;
}

std::optional<int64_t> Value::integer() const {
  if (const bool* flag = Get<bool>()) return *flag ? 1 : 0;
  if (const int64_t* value = Get<int64_t>()) return *value;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* value = Get<double>()) return *value;
  if (const auto* value = Get<LongInteger>()) return std::strtod(value->digits->c_str(), nullptr);
  if (const uint64_t* value = Get<uint64_t>()) return static_cast<double>(*value);
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

absl::Status CheckKey(const Value& key) {
  if (key.dict() == nullptr && (key.list() == nullptr || key.list()->kind == ListKind::kTuple)) {
    return absl::OkStatus();
  }
  return TypeError("use as a key", key);
}

absl::Status CheckStorable(const Value& value) {
  if (value.name_space() == nullptr && value.loop() == nullptr && value.function() == nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat("a ", TypeName(value), " cannot be stored in another value"));
}

absl::Status SetAttribute(Namespace& space, std::string_view name, const Value& value) {
  if (name.starts_with("_")) {
    return absl::InvalidArgumentError(
        StrCat("a namespace cannot have the attribute '", name.substr(0, 100), "'"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckStorable(value));
  space.attributes.insert_or_assign(std::string(name), value);
  return absl::OkStatus();
}

absl::StatusOr<Value> MakeList(const Budget& budget, std::vector<Value> items, ListKind kind) {
  int depth = 0;
  for (const Value& item : items) {
    MILLRACE_RETURN_IF_ERROR(CheckStorable(item));
    depth = std::max(depth, DepthOf(item));
  }
  MILLRACE_RETURN_IF_ERROR(CheckDepth(budget, depth + 1));
  return Value(std::make_shared<const List>(List{std::move(items), kind, depth + 1}));
}

absl::StatusOr<Value> MakeGroup(const Budget& budget, Value key, Value list) {
  MILLRACE_ASSIGN_OR_RETURN(const Value pair,
                            MakeList(budget, {std::move(key), std::move(list)}, ListKind::kTuple));
  List group = *pair.list();
  group.is_group = true;
  return Value(std::make_shared<const List>(std::move(group)));
}

absl::StatusOr<Value> MakeDict(Budget& budget, std::vector<std::pair<Value, Value>> items) {
  Dict dict;
  int depth = 0;
  for (auto& item : items) {
    MILLRACE_RETURN_IF_ERROR(CheckKey(item.first));
    for (const Value* part : {&item.first, &item.second}) {
      MILLRACE_RETURN_IF_ERROR(CheckStorable(*part));
      depth = std::max(depth, DepthOf(*part));
    }
    MILLRACE_ASSIGN_OR_RETURN(const size_t index, FindIndex(budget, dict, item.first));
    if (index < dict.items.size()) {
      dict.items[index].second = std::move(item.second);
    } else {
      dict.items.push_back(std::move(item));
    }
  }
  MILLRACE_RETURN_IF_ERROR(CheckDepth(budget, depth + 1));
  dict.depth = depth + 1;
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

std::string_view TypeName(const Value& value) {
  if (value.Is<Undefined>()) return "undefined value";
  if (value.Is<None>()) return "none";
  if (value.Is<bool>()) return "boolean";
  if (value.Is<int64_t>() || value.Is<uint64_t>() || value.Is<Value::LongInteger>()) {
    return "integer";
  }
  if (value.Is<double>()) return "float";
  if (value.string() != nullptr) return "string";
  if (value.list() != nullptr) return value.list()->kind == ListKind::kTuple ? "tuple" : "list";
  if (value.Is<std::shared_ptr<const List>>()) return "iterator";
  if (value.dict() != nullptr) return "dict";
  if (value.name_space() != nullptr) return "namespace";
  if (value.loop() != nullptr) return "loop";
  return "function";
}

absl::Status UndefinedError(const Undefined& value) {
  if (value.name == nullptr) return absl::InvalidArgumentError("a value is undefined");
  return absl::InvalidArgumentError(StrCat("'", value.name->substr(0, 100), "' is undefined"));
}

absl::Status TypeError(std::string_view what, const Value& value) {
  if (const Undefined* undefined = value.Get<Undefined>()) return UndefinedError(*undefined);
  return absl::InvalidArgumentError(StrCat("cannot ", what, " a ", TypeName(value)));
}

bool Truthy(const Value& value) {
  if (value.Is<Undefined>() || value.Is<None>()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (value.string() != nullptr) return !value.string()->empty();
  if (value.list() != nullptr) return !value.list()->items.empty();
  if (value.dict() != nullptr) return !value.dict()->items.empty();
  return true;
}

absl::StatusOr<bool> Equal(Budget& budget, const Value& a, const Value& b) {
  MILLRACE_RETURN_IF_ERROR(budget.Spend(1));
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.string() != nullptr && b.string() != nullptr) {
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(std::min(a.string()->size(), b.string()->size())));
    return *a.string() == *b.string();
  }
  if (a.list() != nullptr && b.list() != nullptr) return ListsEqual(budget, *a.list(), *b.list());
  if (a.dict() != nullptr && b.dict() != nullptr) return DictsEqual(budget, *a.dict(), *b.dict());
  if (a.Is<Undefined>() || a.Is<None>()) {
    return a.Is<Undefined>() ? b.Is<Undefined>() : b.Is<None>();
  }
  if (a.name_space() != nullptr) return a.name_space() == b.name_space();
  if (a.loop() != nullptr) return a.loop() == b.loop();
  return a.function() != nullptr && a.function() == b.function();
}

absl::StatusOr<bool> Less(Budget& budget, const Value& a, const Value& b) {
  MILLRACE_RETURN_IF_ERROR(budget.Spend(1));
  if (a.integer() && b.integer()) return *a.integer() < *b.integer();
  if (a.number() && b.number()) return *a.number() < *b.number();
  if (a.string() != nullptr && b.string() != nullptr) {
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(std::min(a.string()->size(), b.string()->size())));
    return *a.string() < *b.string();  // UTF-8 keeps the order of code points.
  }
  if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind) {
    return ListLess(budget, *a.list(), *b.list());
  }
  for (const Value* value : {&a, &b}) {
    if (const auto* undefined = value->Get<Undefined>()) return UndefinedError(*undefined);
  }
  return absl::InvalidArgumentError(StrCat("cannot order a ", TypeName(a), " and a ", TypeName(b)));
}

absl::StatusOr<bool> Contains(Budget& budget, const Value& container, const Value& item) {
  if (const std::string* text = container.string()) {
    if (item.string() == nullptr) return TypeError("look in a string for", item);
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(text->size()));
    return FindText(*text, *item.string()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    MILLRACE_RETURN_IF_ERROR(CheckKey(item));
    MILLRACE_ASSIGN_OR_RETURN(const Value* found, FindKey(budget, *dict, item));
    return found != nullptr;
  }
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(budget, container));
  for (const Value& candidate : items->items) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(budget, candidate, item));
    if (equal) return true;
  }
  return false;
}

absl::StatusOr<const Value*> FindKey(Budget& budget, const Dict& dict, const Value& key) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, FindIndex(budget, dict, key));
  return index < dict.items.size() ? &dict.items[index].second : nullptr;
}

absl::StatusOr<std::shared_ptr<const List>> Iterate(Budget& budget, const Value& value) {
  if (const auto* list = value.Get<std::shared_ptr<const List>>()) return *list;
  auto items = std::make_shared<List>();
  if (const Dict* dict = value.dict()) {
    MILLRACE_RETURN_IF_ERROR(budget.Spend(dict->items.size()));
    for (const auto& [key, unused] : dict->items) items->items.push_back(key);
    items->depth = dict->depth;
  } else if (const std::string* text = value.string()) {
    MILLRACE_RETURN_IF_ERROR(budget.Spend(text->size()));
    for (std::string_view rest = *text; !rest.empty();) {
      const size_t size = NextCodePoint(rest).size;
      items->items.emplace_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
  } else if (!value.Is<Undefined>()) {
    return TypeError("iterate over", value);
  }
  return std::shared_ptr<const List>(std::move(items));
}

absl::StatusOr<std::string> ToText(Budget& budget, const Value& value) {
  if (const std::string* text = value.string()) {
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(text->size()));
    return *text;
  }
  if (value.Is<Undefined>()) return std::string();
  Printer printer(budget);
  MILLRACE_RETURN_IF_ERROR(printer.Print(value));
  return printer.Take();
}

}  // namespace millrace::jinja
