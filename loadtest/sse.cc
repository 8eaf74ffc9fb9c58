#include "loadtest/sse.h"

#include <cstring>

namespace millrace {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Returns where the line ends, npos if its end has not come.
size_t LineEnd(std::string_view bytes) {
  const size_t lf = bytes.find('\n');
  const size_t cr = bytes.substr(0, lf).find('\r');
  return cr != bytes.npos ? cr : lf;
}

}  // namespace

bool SseParser::Feed(std::string_view bytes) {
  while (!failed_ && !bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    if (bytes.empty()) break;
    const size_t end = LineEnd(bytes);
    if (end == bytes.npos) {
      line_ += bytes;
      failed_ = line_.size() + data_.size() > most_;
      break;
    }
    after_cr_ = bytes[end] == '\r';
    if (line_.empty()) {
      failed_ = !TakeLine(bytes.substr(0, end));
    } else {
      line_ += bytes.substr(0, end);
      const std::string line = std::move(line_);
      line_.clear();
      failed_ = !TakeLine(line);
      Keep();  // `line` ends here
    }
    bytes.remove_prefix(end + 1);
  }
  Keep();
  return !failed_;
}

void SseParser::Reset() {
  line_.clear();
  data_.clear();
  has_data_ = is_borrowed_ = after_cr_ = failed_ = false;
  at_start_ = true;
}

bool SseParser::TakeLine(std::string_view line) {
  if (at_start_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  at_start_ = false;
  if (line.empty()) {
    if (has_data_) sink_(is_borrowed_ ? borrowed_ : std::string_view(data_));
    data_.clear();
    has_data_ = is_borrowed_ = false;
    return true;
  }
  if (!line.starts_with("data")) return true;
  line.remove_prefix(4);
  if (!line.empty()) {
    if (line.front() != ':') return true;
    line.remove_prefix(1);
    if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  }
  if (!has_data_) {
    borrowed_ = line;
    has_data_ = is_borrowed_ = true;
    return true;
  }
  Keep();
  data_ += '\n';
  data_ += line;
  return data_.size() <= most_;
}

void SseParser::Keep() {
  if (!is_borrowed_) return;
  data_.assign(borrowed_);
  is_borrowed_ = false;
}

}  // namespace millrace
