// Reader of pickles as plain values: it runs nothing of what a pickle says.
// Format: the opcodes of CPython's Lib/pickletools.py, protocols 2 to 5.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_PICKLE_H_
#define MILLRACE_FORMATS_DISTRIBUTED_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kBytes,
  kTuple,
  kList,
  kSet,
  kDict,
  kGlobal,      // a class or a function, by its name
  kObject,      // what a global would return for arguments, and the state that it would be given
  kPersistent,  // what the reader of the pickle would find under an id
};

// All values of one pickle. The bytes that it was read from and the list of globals outlive it.
class Pickle {
  struct Node;

 public:
  // The most values of a pickle, numbers below 256 not counted: about 1 GiB of memory.
  static constexpr size_t kMaxValues = size_t{1} << 25;

  // One value; cheap to copy. Values may contain themselves, so that readers descend along the
  // structure that they expect, and never along what they find. Functions about another kind than
  // the value's return nothing, 0 or a value of kNone.
  class Value {
   public:
    PickleKind kind() const;
    bool is(PickleKind wanted) const { return kind() == wanted; }

    std::optional<int64_t> integer() const;  // of kInt
    std::string_view text() const;           // of kText and kBytes
    std::string_view global() const;         // of kGlobal: "torch.float32"; of kObject, its class's

    // The elements of kTuple, kList and kSet. Of a kDict keys and values by turns.
    size_t size() const;
    Value operator[](size_t index) const;

    Value Find(std::string_view key) const;  // in a kDict, by a text

    Value arguments() const;  // of kObject: a tuple
    Value state() const;      // of kObject, if it was given one
    Value id() const;         // of kPersistent

   private:
    friend class Pickle;
    Value(const Pickle* pickle, uint32_t index) : pickle_(pickle), index_(index) {}
    const Node& node() const;
    const Pickle* pickle_;
    uint32_t index_;
  };

  // Reads a pickle, all of `bytes`. `globals` are the names that it may have, "collections.
  // OrderedDict", which makes a kDict, among them. INVALID_ARGUMENT for what is damaged or exceeds
  // a limit; UNIMPLEMENTED, by its name, for another global, and for an opcode that is not read.
  // Messages have no file's name.
  static absl::StatusOr<Pickle> Read(absl::Span<const uint8_t> bytes,
                                     absl::Span<const std::string_view> globals);

  Value root() const { return Value(this, root_); }

  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;
  Pickle(Pickle&&) = default;
  Pickle& operator=(Pickle&&) = default;

 private:
  class Reader;

  // The node of None, which every pickle has.
  static constexpr uint32_t kNone = 0;

  // kText, kBytes: `first` and `size` are a part of the bytes. Collections: of items_, and `number`
  // is the capacity there. kGlobal: `first` is an index of globals_. kObject: `first` is the
  // global, `size` the arguments, `number` the state. kPersistent: `first` is the id.
  struct Node {
    PickleKind kind = PickleKind::kNone;
    uint32_t first = 0;
    uint32_t size = 0;
    int64_t number = 0;
  };

  Pickle(absl::Span<const uint8_t> bytes, absl::Span<const std::string_view> globals)
      : bytes_(bytes), globals_(globals) {}

  absl::Span<const uint8_t> bytes_;
  absl::Span<const std::string_view> globals_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> items_;
  uint32_t root_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_PICKLE_H_
