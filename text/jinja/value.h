// The values of a template, with Python's meaning of truth, equality, order, iteration and text.
#ifndef MILLRACE_TEXT_JINJA_VALUE_H_
#define MILLRACE_TEXT_JINJA_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/jinja/budget.h"

namespace millrace::jinja {

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Function;
struct Builtin;
struct Scope;
struct Statement;

using String = std::shared_ptr<const std::string>;

// A name that has no value: empty when printed or iterated, an error when anything else is asked of
// it.
struct Undefined {
  String name;  // The name that has no value, for messages; may be null.
};
struct None {};
// A string that the filters `safe` and `escape` made: what is added to it is escaped for HTML.
struct Markup {
  String text;
};

// Immutable but for namespaces and loops. These and functions may stand in variables only, never
// inside another value: so values form no cycles, how deep they nest is known, and no macro
// outlives the scope that it was defined in.
class Value {
 public:
  // An integer of more than 64 bits, which is printed as it is and calculated with as a float is.
  struct LongInteger {
    std::shared_ptr<const std::string> digits;
  };

  Value() = default;  // Undefined, without a name.
  Value(Undefined value) : data_(std::move(value)) {}
  Value(None value) : data_(value) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  // For integers that int64_t does not hold: they are printed as they are, and calculated with as
  // floats are.
  Value(uint64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(LongInteger value) : data_(std::move(value)) {}
  Value(String value) : data_(std::move(value)) {}
  Value(Markup value) : data_(std::move(value)) {}
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::shared_ptr<const List> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Dict> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Loop> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Function> value) : data_(std::move(value)) {}

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  // Returns null if the value is of another type.
  template <typename T>
  const T* Get() const {
    return std::get_if<T>(&data_);
  }
  const std::string* string() const;  // Also of a Markup.
  // Returns a list or tuple; null for an iterator, which can be iterated only.
  const List* list() const;
  const Dict* dict() const { return Pointee<std::shared_ptr<const Dict>>(); }
  Namespace* name_space() const { return Pointee<std::shared_ptr<Namespace>>(); }
  Loop* loop() const { return Pointee<std::shared_ptr<Loop>>(); }
  const Function* function() const { return Pointee<std::shared_ptr<const Function>>(); }

  // Returns an int, or a bool taken as 0 or 1.
  std::optional<int64_t> integer() const;
  // Returns an int, bool or float.
  std::optional<double> number() const;

 private:
  template <typename Pointer>
  auto Pointee() const -> typename Pointer::element_type* {
    const Pointer* pointer = std::get_if<Pointer>(&data_);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  std::variant<Undefined, None, bool, int64_t, uint64_t, double, LongInteger, String, Markup,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<Loop>, std::shared_ptr<const Function>>
      data_;
};

// An iterator is what some filters give: true even when empty, without length, items or text.
enum class ListKind { kList, kTuple, kIterator };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int depth = 1;          // 1 + the depth of the deepest item.
  bool is_group = false;  // A tuple of groupby: its items are its attributes grouper and list, too.
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // In the order of insertion; keys differ.
  int depth = 1;
};

struct Namespace {
  absl::flat_hash_map<std::string, Value> attributes;
};

// The `loop` of a for statement, as it stands in the present iteration.
struct Loop {
  std::shared_ptr<const List> items;
  int depth0 = 0;                        // In a recursive loop, how often it has called itself.
  const Statement* recursive = nullptr;  // The statement that a call runs again…
  Scope* scope = nullptr;                // …in this scope.
  size_t index0 = 0;
  std::optional<Value> last_changed = {};  // The last argument of loop.changed().
};

// A value that can be called: a function or method of ours, or a macro.
struct Function {
  std::string name;
  const Builtin* builtin = nullptr;  // Null for a macro.
  Value self = {};                   // The object of a method.
  const Statement* macro = nullptr;
  Scope* scope = nullptr;  // The scope that the macro was defined in.
};

// Returns an error for a value that may stand in variables only.
absl::Status CheckStorable(const Value& value);
// Sets a namespace's attribute; an error for what is not storable and for a name that begins with
// an underscore.
absl::Status SetAttribute(Namespace& space, std::string_view name, const Value& value);
// Fails when an item is no data (a namespace, a loop or a function) or nests deeper than the limit.
absl::StatusOr<Value> MakeList(const Budget& budget, std::vector<Value> items,
                               ListKind kind = ListKind::kList);
// Returns a tuple of a key and a list, as groupby gives them.
absl::StatusOr<Value> MakeGroup(const Budget& budget, Value key, Value list);
// Makes a dict; a later item replaces the value of an earlier one with the same key, as in a
// literal. Keys must be scalars or tuples.
absl::StatusOr<Value> MakeDict(Budget& budget, std::vector<std::pair<Value, Value>> items);

// Returns the type as messages call it: "string", "list", "undefined"…
std::string_view TypeName(const Value& value);
// Returns the error "'x' is undefined".
absl::Status UndefinedError(const Undefined& value);
// Returns the error "cannot <what> a <type>", or UndefinedError if the value is undefined.
absl::Status TypeError(std::string_view what, const Value& value);

bool Truthy(const Value& value);
absl::StatusOr<bool> Equal(Budget& budget, const Value& a, const Value& b);
// Returns a < b; an error if the types have no common order.
absl::StatusOr<bool> Less(Budget& budget, const Value& a, const Value& b);
// Returns whether `item in container`.
absl::StatusOr<bool> Contains(Budget& budget, const Value& container, const Value& item);
// Returns an error for a list or a dict, which are no keys.
absl::Status CheckKey(const Value& key);
// Returns the value of a key, or null if there is no such key.
absl::StatusOr<const Value*> FindKey(Budget& budget, const Dict& dict, const Value& key);

// Returns what a for loop visits: items, keys of a dict, characters of a string, nothing of an
// undefined value.
absl::StatusOr<std::shared_ptr<const List>> Iterate(Budget& budget, const Value& value);

// Returns str(value), as `{{ value }}` prints it.
absl::StatusOr<std::string> ToText(Budget& budget, const Value& value);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_VALUE_H_
