// Server-sent events (WHATWG HTML, section 9.2), read as they come.
#ifndef MILLRACE_LOADTEST_SSE_H_
#define MILLRACE_LOADTEST_SSE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace millrace {

// Splits a byte stream into events, however it is cut into pieces. Lines end with LF, CR or CRLF;
// comments and fields other than `data` are passed over. An event that lies whole in a piece is not
// copied.
class SseParser {
 public:
  using Sink = std::function<void(std::string_view data)>;

  // `sink` gets the data of each event. Its argument lives until it returns.
  explicit SseParser(Sink sink, size_t most = size_t{16} << 20)
      : sink_(std::move(sink)), most_(most) {}

  // Returns false once an event is longer than `most` bytes, and then takes no more.
  bool Feed(std::string_view bytes);
  void Reset();

 private:
  bool TakeLine(std::string_view line);
  void Keep();

  Sink sink_;
  size_t most_;
  std::string line_;           // the beginning of a line whose end has not come
  std::string data_;           // of the event so far, where it had to be copied
  std::string_view borrowed_;  // the event's only line of data, in the piece that is being fed
  bool has_data_ = false;
  bool is_borrowed_ = false;
  bool after_cr_ = false;  // an LF that follows belongs to the line before it
  bool at_start_ = true;
  bool failed_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_SSE_H_
