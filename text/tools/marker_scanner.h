// Finds markers in a text that comes byte by byte.
#ifndef MILLRACE_TEXT_TOOLS_MARKER_SCANNER_H_
#define MILLRACE_TEXT_TOOLS_MARKER_SCANNER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

// Holds back the longest end of the text that may be the beginning of a marker. No marker may be
// the beginning of another one.
class MarkerScanner {
 public:
  explicit MarkerScanner(std::vector<std::string> markers) : markers_(std::move(markers)) {}

  // Adds a byte. Appends to `passed` the bytes that no marker can contain any more. Returns the
  // index of the marker that is complete now.
  std::optional<size_t> Step(char c, std::string* passed) {
    held_ += c;
    for (;;) {
      bool prefix = false;
      for (size_t i = 0; i < markers_.size(); ++i) {
        if (markers_[i] == held_) {
          held_.clear();
          return i;
        }
        prefix |= std::string_view(markers_[i]).starts_with(held_);
      }
      if (prefix) return std::nullopt;
      *passed += held_.front();
      held_.erase(0, 1);
      if (held_.empty()) return std::nullopt;
    }
  }

  bool holds() const { return !held_.empty(); }
  // Returns what is held back, and forgets it.
  std::string Take() { return std::exchange(held_, std::string()); }

  const std::vector<std::string>& markers() const { return markers_; }

 private:
  std::vector<std::string> markers_;
  std::string held_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_MARKER_SCANNER_H_
