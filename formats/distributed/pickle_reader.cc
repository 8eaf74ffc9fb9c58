#include "formats/distributed/pickle.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/distributed/pickle_opcodes.h"

namespace millrace {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr uint32_t kSmallInts = 1;  // the nodes of 0 to 255, which every pickle has behind None's
constexpr int kNumSmallInts = 256;

constexpr std::string_view kOrderedDict = "collections.OrderedDict";

absl::Status Bad(std::string_view what) { return absl::InvalidArgumentError(AbslView(what)); }

}  // namespace

// Executes the stack machine, whose values are nodes of the pickle.
class Pickle::Reader {
 public:
  explicit Reader(Pickle* pickle) : pickle_(*pickle), bytes_(pickle->bytes_) {}

  absl::Status Read() {
    if (bytes_.size() > kMaxBytes) {
      return Bad(StrCat(bytes_.size(), " bytes, must be at most ", kMaxBytes));
    }
    AddNode({});
    for (int i = 0; i < kNumSmallInts; ++i) AddNode({.kind = PickleKind::kInt, .number = i});
    while (!stopped_) {
      const size_t at = next_;
      const absl::Status status = Step();
      if (!status.ok()) return Annotate(status, StrCat("byte ", at));
    }
    if (next_ != bytes_.size()) return Bad(StrCat(bytes_.size() - next_, " bytes behind its end"));
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<absl::Span<const uint8_t>> Take(uint64_t count) {
    if (count > bytes_.size() - next_) return Bad("the file ends inside of a value");
    next_ += count;
    return bytes_.subspan(next_ - count, count);
  }

  // Reads a little-endian number of 1 to 8 bytes.
  absl::StatusOr<uint64_t> Number(size_t count) {
    MILLRACE_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, Take(count));
    uint64_t number = 0;
    for (size_t i = 0; i < count; ++i) number |= uint64_t{bytes[i]} << (8 * i);
    return number;
  }

  // Reads a text up to the end of its line.
  absl::StatusOr<std::string_view> Line() {
    const auto* begin = reinterpret_cast<const char*>(bytes_.data()) + next_;
    const std::string_view rest(begin, bytes_.size() - next_);
    const size_t end = rest.find('\n');
    if (end == rest.npos) return Bad("the file ends inside of a name");
    next_ += end + 1;
    return rest.substr(0, end);
  }

  uint32_t AddNode(Node node) {
    pickle_.nodes_.push_back(node);
    return static_cast<uint32_t>(pickle_.nodes_.size() - 1);
  }
  Node& At(uint32_t index) { return pickle_.nodes_[index]; }

  absl::Status PushNode(Node node) {
    if (pickle_.nodes_.size() >= kMaxValues) {
      return Bad(StrCat("more than ", kMaxValues, " values"));
    }
    stack_.push_back(AddNode(node));
    return absl::OkStatus();
  }
  absl::Status PushInt(int64_t number) {
    if (number >= 0 && number < kNumSmallInts) {
      stack_.push_back(kSmallInts + static_cast<uint32_t>(number));
      return absl::OkStatus();
    }
    return PushNode({.kind = PickleKind::kInt, .number = number});
  }
  absl::Status PushText(PickleKind kind, size_t length_bytes) {
    MILLRACE_ASSIGN_OR_RETURN(const uint64_t length, Number(length_bytes));
    const size_t begin = next_;
    MILLRACE_RETURN_IF_ERROR(Take(length).status());
    return PushNode({.kind = kind,
                     .first = static_cast<uint32_t>(begin),
                     .size = static_cast<uint32_t>(length)});
  }

  // Pops a value. The values below the last mark are not there for it.
  absl::StatusOr<uint32_t> Pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return Bad("the stack is empty");
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  absl::StatusOr<uint32_t> Top() {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t top, Pop());
    stack_.push_back(top);
    return top;
  }
  // Pops the last mark and the values above it.
  absl::StatusOr<std::vector<uint32_t>> PopMark() {
    if (marks_.empty()) return Bad("there is no mark");
    const auto begin = stack_.begin() + marks_.back();
    std::vector<uint32_t> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }

  absl::Status PushCollection(PickleKind kind, absl::Span<const uint32_t> values) {
    MILLRACE_RETURN_IF_ERROR(PushNode({.kind = kind}));
    return Extend(stack_.back(), values);
  }

  // Appends to a collection. One that has no room moves to the end of the items.
  absl::Status Extend(uint32_t collection, absl::Span<const uint32_t> values) {
    Node& node = At(collection);
    std::vector<uint32_t>& items = pickle_.items_;
    const size_t size = node.size + values.size();
    if (static_cast<int64_t>(size) > node.number) {
      const size_t capacity = node.size == 0 ? size : 2 * size;
      if (items.size() + capacity > 4 * kMaxValues)
        return Bad("its collections have too many values");
      const size_t first = items.size();
      items.resize(first + capacity);
      std::copy_n(items.begin() + node.first, node.size, items.begin() + first);
      node.first = static_cast<uint32_t>(first);
      node.number = static_cast<int64_t>(capacity);
    }
    std::copy(values.begin(), values.end(), items.begin() + node.first + node.size);
    node.size = static_cast<uint32_t>(size);
    return absl::OkStatus();
  }

  // Appends to the collection on top of the stack, which must be of this kind.
  absl::Status ExtendTop(PickleKind kind, absl::Span<const uint32_t> values) {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t top, Top());
    if (At(top).kind != kind) return Bad("what is appended to is no collection of that kind");
    if (kind == PickleKind::kDict && values.size() % 2 != 0) return Bad("a key has no value");
    return Extend(top, values);
  }

  absl::Status PushTuple(size_t size) {
    std::vector<uint32_t> values(size);
    for (size_t i = size; i > 0; --i) {
      MILLRACE_ASSIGN_OR_RETURN(values[i - 1], Pop());
    }
    return PushCollection(PickleKind::kTuple, values);
  }

  absl::Status PushGlobal(std::string_view module, std::string_view name) {
    const absl::Span<const std::string_view> globals = pickle_.globals_;
    for (size_t i = 0; i < globals.size(); ++i) {
      const std::string_view global = globals[i];
      if (global.size() == module.size() + 1 + name.size() && global.starts_with(module) &&
          global[module.size()] == '.' && global.ends_with(name)) {
        return PushNode({.kind = PickleKind::kGlobal, .first = static_cast<uint32_t>(i)});
      }
    }
    return absl::UnimplementedError(
        StrCat("names ", Printable(module), ".", Printable(name),
               ", which is none of the classes that are read; nothing of it is run"));
  }

  absl::Status PushStackGlobal() {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t name, Pop());
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t module, Pop());
    if (At(name).kind != PickleKind::kText || At(module).kind != PickleKind::kText) {
      return Bad("a class's name is no text");
    }
    return PushGlobal(Value(&pickle_, module).text(), Value(&pickle_, name).text());
  }

  absl::Status PushObject() {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t arguments, Pop());
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t global, Pop());
    if (At(global).kind != PickleKind::kGlobal || At(arguments).kind != PickleKind::kTuple) {
      return Bad("an object is not made of a class and a tuple of arguments");
    }
    if (Value(&pickle_, global).global() == kOrderedDict && At(arguments).size == 0) {
      return PushNode({.kind = PickleKind::kDict});
    }
    return PushNode({.kind = PickleKind::kObject, .first = global, .size = arguments});
  }

  absl::Status Build() {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t state, Pop());
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t object, Top());
    if (At(object).kind != PickleKind::kObject) return Bad("a state is given to what is no object");
    At(object).number = state;
    return absl::OkStatus();
  }

  absl::Status PushLong(uint64_t size) {
    if (size > 8) return Bad("a whole number has more than 64 bits");
    MILLRACE_ASSIGN_OR_RETURN(uint64_t number, Number(size));
    if (size > 0 && size < 8 && (number >> (8 * size - 1)) != 0)
      number -= uint64_t{1} << (8 * size);
    return PushInt(static_cast<int64_t>(number));
  }

  absl::Status PushFloat() {
    MILLRACE_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, Take(8));
    uint64_t bits = 0;
    for (const uint8_t byte : bytes) bits = bits << 8 | byte;
    return PushNode({.kind = PickleKind::kFloat, .number = std::bit_cast<int64_t>(bits)});
  }

  // A legitimate pickle's indices are fewer than its bytes.
  absl::Status Put(uint64_t index) {
    if (index >= bytes_.size()) return Bad(StrCat("memo ", index, " is too large"));
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t top, Top());
    if (index >= memo_.size()) memo_.resize(index + 1, kUnset);
    memo_[index] = top;
    return absl::OkStatus();
  }
  absl::Status Get(uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kUnset) {
      return Bad(StrCat("memo ", index, " was never set"));
    }
    stack_.push_back(memo_[index]);
    return absl::OkStatus();
  }
  absl::Status PutNumbered(size_t index_bytes) {
    MILLRACE_ASSIGN_OR_RETURN(const uint64_t index, Number(index_bytes));
    return Put(index);
  }
  absl::Status GetNumbered(size_t index_bytes) {
    MILLRACE_ASSIGN_OR_RETURN(const uint64_t index, Number(index_bytes));
    return Get(index);
  }

  absl::Status PushMarked(PickleKind kind) {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<uint32_t> values, PopMark());
    if (kind == PickleKind::kDict && values.size() % 2 != 0) return Bad("a key has no value");
    return PushCollection(kind, values);
  }
  absl::Status ExtendMarked(PickleKind kind) {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<uint32_t> values, PopMark());
    return ExtendTop(kind, values);
  }

  absl::Status Step() {
    using namespace pickle_opcodes;
    MILLRACE_ASSIGN_OR_RETURN(const uint64_t opcode, Number(1));
    switch (opcode) {
      case kProto: {
        MILLRACE_ASSIGN_OR_RETURN(const uint64_t protocol, Number(1));
        if (protocol >= 2 && protocol <= 5) return absl::OkStatus();
        return absl::UnimplementedError(StrCat("protocol ", protocol, "; supported: 2 to 5"));
      }
      case kFrame:
        return Take(8).status();
      case kStop: {
        MILLRACE_ASSIGN_OR_RETURN(pickle_.root_, Pop());
        if (!stack_.empty()) return Bad("values are left on the stack");
        stopped_ = true;
        return absl::OkStatus();
      }
      case kMark:
        marks_.push_back(static_cast<uint32_t>(stack_.size()));
        return absl::OkStatus();
      case kPop:
        return Pop().status();
      case kPopMark:
        return PopMark().status();
      case kDup: {
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t top, Top());
        stack_.push_back(top);
        return absl::OkStatus();
      }
      case kMemoize:
        return Put(memo_.size());
      case kBinPut:
        return PutNumbered(1);
      case kLongBinPut:
        return PutNumbered(4);
      case kBinGet:
        return GetNumbered(1);
      case kLongBinGet:
        return GetNumbered(4);
      default:
        return StepValue(static_cast<uint8_t>(opcode));
    }
  }

  // Executes an opcode that makes or changes a value.
  absl::Status StepValue(uint8_t opcode) {
    using namespace pickle_opcodes;
    switch (opcode) {
      case kNoneOp:
        stack_.push_back(kNone);
        return absl::OkStatus();
      case kNewTrue:
      case kNewFalse:
        return PushNode({.kind = PickleKind::kBool, .number = opcode == kNewTrue});
      case kBinInt: {
        MILLRACE_ASSIGN_OR_RETURN(const uint64_t number, Number(4));
        return PushInt(static_cast<int32_t>(number));
      }
      case kBinInt1:
      case kBinInt2: {
        MILLRACE_ASSIGN_OR_RETURN(const uint64_t number, Number(opcode == kBinInt1 ? 1 : 2));
        return PushInt(static_cast<int64_t>(number));
      }
      case kLong1:
      case kLong4: {
        MILLRACE_ASSIGN_OR_RETURN(const uint64_t size, Number(opcode == kLong1 ? 1 : 4));
        return PushLong(size);
      }
      case kBinFloat:
        return PushFloat();
      case kShortBinUnicode:
        return PushText(PickleKind::kText, 1);
      case kBinUnicode:
        return PushText(PickleKind::kText, 4);
      case kBinUnicode8:
        return PushText(PickleKind::kText, 8);
      case kShortBinBytes:
        return PushText(PickleKind::kBytes, 1);
      case kBinBytes:
        return PushText(PickleKind::kBytes, 4);
      case kBinBytes8:
        return PushText(PickleKind::kBytes, 8);
      case kGlobalOp: {
        MILLRACE_ASSIGN_OR_RETURN(const std::string_view module, Line());
        MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, Line());
        return PushGlobal(module, name);
      }
      case kStackGlobal:
        return PushStackGlobal();
      case kReduce:
      case kNewObj:
        return PushObject();
      case kBuild:
        return Build();
      case kBinPersId: {
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t id, Pop());
        return PushNode({.kind = PickleKind::kPersistent, .first = id});
      }
      default:
        return StepCollection(opcode);
    }
  }

  absl::Status StepCollection(uint8_t opcode) {
    using namespace pickle_opcodes;
    switch (opcode) {
      case kEmptyTuple:
        return PushCollection(PickleKind::kTuple, {});
      case kEmptyList:
        return PushCollection(PickleKind::kList, {});
      case kEmptyDict:
        return PushCollection(PickleKind::kDict, {});
      case kEmptySet:
        return PushCollection(PickleKind::kSet, {});
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return PushTuple(opcode - kTuple1 + 1);
      case kTupleOp:
        return PushMarked(PickleKind::kTuple);
      case kListOp:
        return PushMarked(PickleKind::kList);
      case kDictOp:
        return PushMarked(PickleKind::kDict);
      case kFrozenSet:
        return PushMarked(PickleKind::kSet);
      case kAppends:
        return ExtendMarked(PickleKind::kList);
      case kSetItems:
        return ExtendMarked(PickleKind::kDict);
      case kAddItems:
        return ExtendMarked(PickleKind::kSet);
      case kAppend: {
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t value, Pop());
        return ExtendTop(PickleKind::kList, {value});
      }
      case kSetItem: {
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t value, Pop());
        MILLRACE_ASSIGN_OR_RETURN(const uint32_t key, Pop());
        return ExtendTop(PickleKind::kDict, {key, value});
      }
      default:
        return absl::UnimplementedError(StrCat("opcode ", opcode, " is not one that is read"));
    }
  }

  static constexpr uint32_t kUnset = ~uint32_t{0};

  Pickle& pickle_;
  const absl::Span<const uint8_t> bytes_;
  size_t next_ = 0;
  bool stopped_ = false;
  std::vector<uint32_t> stack_;
  std::vector<uint32_t> marks_;  // sizes of the stack
  std::vector<uint32_t> memo_;
};

absl::StatusOr<Pickle> Pickle::Read(absl::Span<const uint8_t> bytes,
                                    absl::Span<const std::string_view> globals) {
  Pickle pickle(bytes, globals);
  MILLRACE_RETURN_IF_ERROR(Reader(&pickle).Read());
  return pickle;
}

}  // namespace millrace
