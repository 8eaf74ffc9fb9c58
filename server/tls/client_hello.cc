#include "server/tls/client_hello.h"

#include <optional>

namespace millrace {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr size_t kRecordHeader = 5;   // type, version (2), length (2)
constexpr size_t kMessageHeader = 4;  // type, length (3)
constexpr uint8_t kMajorVersion = 3;  // of every version of TLS, and of SSL 3
constexpr uint8_t kClientHello = 1;
constexpr size_t kVersionAndRandom = 2 + 32;
constexpr size_t kAlpn = 16;  // RFC 7301

// Reads fields one after the other.
class Reader {
 public:
  explicit Reader(Bytes bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  std::optional<Bytes> Take(size_t size) {
    if (bytes_.size() < size) return std::nullopt;
    const Bytes taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  std::optional<size_t> Number(size_t size) {
    const auto bytes = Take(size);
    if (!bytes) return std::nullopt;
    size_t value = 0;
    for (const uint8_t byte : *bytes) value = value << 8 | byte;
    return value;
  }
  // Takes a field that begins with its length, of `size` bytes.
  std::optional<Bytes> Field(size_t size) {
    const auto length = Number(size);
    return length ? Take(*length) : std::nullopt;
  }

 private:
  Bytes bytes_;
};

std::vector<std::string> NamesIn(Bytes alpn) {
  std::vector<std::string> names;
  Reader extension(alpn);
  const auto list = extension.Field(2);
  if (!list || !extension.empty()) return {};
  Reader reader(*list);
  while (!reader.empty()) {
    const auto name = reader.Field(1);
    if (!name || name->empty()) return {};
    names.emplace_back(name->begin(), name->end());
  }
  return names;
}

// `hello`: the message without its header.
std::vector<std::string> OfferedProtocols(Bytes hello) {
  Reader reader(hello);
  const bool has_extensions = reader.Take(kVersionAndRandom) && reader.Field(1) /* session */ &&
                              reader.Field(2) /* ciphers */ && reader.Field(1) /* compression */;
  if (!has_extensions) return {};
  const auto extensions = reader.Field(2);
  if (!extensions) return {};
  Reader each(*extensions);
  while (!each.empty()) {
    const auto type = each.Number(2);
    const auto content = each.Field(2);
    if (!type || !content) return {};
    if (*type == kAlpn) return NamesIn(*content);
  }
  return {};
}

}  // namespace

ClientHello ReadClientHello(Bytes bytes) {
  using State = ClientHello::State;
  if (!bytes.empty() && bytes[0] != kTlsHandshakeRecord) return {.state = State::kNotTls};
  std::vector<uint8_t> message;
  size_t wanted = kMessageHeader;
  size_t at = 0;
  while (message.size() < wanted) {
    const Bytes record = bytes.subspan(at);
    if (record.size() < kRecordHeader) {
      if (at + kRecordHeader > ClientHello::kMostBytes) return {.state = State::kBad};
      return {.state = State::kIncomplete, .size = at + kRecordHeader};
    }
    const size_t length = size_t{record[3]} << 8 | record[4];
    const size_t end = at + kRecordHeader + length;
    const bool is_fit = record[0] == kTlsHandshakeRecord && record[1] == kMajorVersion &&
                        length > 0 && end <= ClientHello::kMostBytes;
    if (!is_fit) return {.state = State::kBad};
    if (bytes.size() < end) return {.state = State::kIncomplete, .size = end};
    const Bytes content = record.subspan(kRecordHeader, length);
    message.insert(message.end(), content.begin(), content.end());
    at = end;
    if (message.size() < kMessageHeader) continue;
    if (message[0] != kClientHello) return {.state = State::kBad};
    wanted =
        kMessageHeader + (size_t{message[1]} << 16 | size_t{message[2]} << 8 | size_t{message[3]});
    if (wanted > ClientHello::kMostBytes) return {.state = State::kBad};
  }
  return {.state = State::kWhole,
          .size = at,
          .protocols =
              OfferedProtocols(Bytes(message).subspan(kMessageHeader, wanted - kMessageHeader))};
}

}  // namespace millrace
