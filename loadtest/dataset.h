// Prompts from a file.
#ifndef MILLRACE_LOADTEST_DATASET_H_
#define MILLRACE_LOADTEST_DATASET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

struct ChatTurn {
  std::string role;  // system, user or assistant
  std::string text;
};

// One line of a data set.
struct DataEntry {
  std::vector<ChatTurn> before;     // sent before the first of `users`
  std::vector<std::string> users;   // what the user says, turn for turn; at least one
  std::vector<int64_t> output_len;  // tokens of the answer to each of them, 0 if unknown
};

// Reads JSON Lines, or a JSON array, of
//   {"conversations": [{"from": "human" | "gpt" | "system", "value": TEXT}, ...]}   (ShareGPT)
//   {"messages": [{"role": ROLE, "content": TEXT}, ...]}         the last is the user's
//   {"prompt": TEXT, "output_tokens": N}                         output_tokens is optional
// A conversation that the user does not begin is passed over, as are empty lines. The length of a
// reference answer is estimated as a token for each four bytes. An error names the entry.
absl::StatusOr<std::vector<DataEntry>> ParseDataset(std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_DATASET_H_
