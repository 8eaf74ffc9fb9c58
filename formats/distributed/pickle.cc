#include "formats/distributed/pickle.h"

namespace millrace {

const Pickle::Node& Pickle::Value::node() const { return pickle_->nodes_[index_]; }

PickleKind Pickle::Value::kind() const { return node().kind; }

std::optional<int64_t> Pickle::Value::integer() const {
  return is(PickleKind::kInt) ? std::optional(node().number) : std::nullopt;
}

std::string_view Pickle::Value::text() const {
  if (!is(PickleKind::kText) && !is(PickleKind::kBytes)) return {};
  return {reinterpret_cast<const char*>(pickle_->bytes_.data()) + node().first, node().size};
}

std::string_view Pickle::Value::global() const {
  if (is(PickleKind::kObject)) return Value(pickle_, node().first).global();
  return is(PickleKind::kGlobal) ? pickle_->globals_[node().first] : std::string_view();
}

size_t Pickle::Value::size() const {
  return kind() >= PickleKind::kTuple && kind() <= PickleKind::kDict ? node().size : 0;
}

Pickle::Value Pickle::Value::operator[](size_t index) const {
  return Value(pickle_, index < size() ? pickle_->items_[node().first + index] : kNone);
}

Pickle::Value Pickle::Value::Find(std::string_view key) const {
  for (size_t i = 0; is(PickleKind::kDict) && i + 1 < size(); i += 2) {
    const Value name = (*this)[i];
    if (name.is(PickleKind::kText) && name.text() == key) return (*this)[i + 1];
  }
  return Value(pickle_, kNone);
}

Pickle::Value Pickle::Value::arguments() const {
  return Value(pickle_, is(PickleKind::kObject) ? node().size : kNone);
}

Pickle::Value Pickle::Value::state() const {
  return Value(pickle_, is(PickleKind::kObject) ? static_cast<uint32_t>(node().number) : kNone);
}

Pickle::Value Pickle::Value::id() const {
  return Value(pickle_, is(PickleKind::kPersistent) ? node().first : kNone);
}

}  // namespace millrace
