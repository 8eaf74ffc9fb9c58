#include "loadtest/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokens = 1'000'000;

int64_t EstimatedTokens(std::string_view text) {
  return std::clamp<int64_t>(static_cast<int64_t>(text.size() + 3) / 4, 1, kMostTokens);
}

absl::Status Expected(std::string_view what) {
  return absl::InvalidArgumentError(StrCat("expected ", what));
}

// Returns the text of a member, nullptr if it is not a text.
const std::string* TextOf(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto member = object.find(name);
  return member == object.end() ? nullptr : member->get_ptr<const std::string*>();
}

absl::StatusOr<DataEntry> FromConversation(const Json& turns) {
  if (!turns.is_array()) return Expected("conversations to be an array");
  DataEntry entry;
  for (const Json& turn : turns) {
    const std::string* const from = TextOf(turn, "from");
    const std::string* const value = TextOf(turn, "value");
    if (from == nullptr || value == nullptr) {
      return Expected("each of conversations to have the texts \"from\" and \"value\"");
    }
    const bool is_user = *from == "human" || *from == "user";
    if (is_user && entry.users.size() == entry.output_len.size()) {
      entry.users.push_back(*value);
    } else if (*from == "system" && entry.users.empty()) {
      entry.before.push_back({"system", *value});
    } else if (!is_user && entry.users.size() == entry.output_len.size() + 1) {
      entry.output_len.push_back(EstimatedTokens(*value));
    } else {
      break;  // two of one side in turn: only what came before is a conversation
    }
  }
  entry.output_len.resize(entry.users.size());
  return entry;
}

absl::StatusOr<DataEntry> FromMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) return Expected("messages to be an array");
  DataEntry entry;
  for (const Json& message : messages) {
    const std::string* const role = TextOf(message, "role");
    const std::string* const content = TextOf(message, "content");
    if (role == nullptr || content == nullptr) {
      return Expected("each of messages to have the texts \"role\" and \"content\"");
    }
    entry.before.push_back({*role, *content});
  }
  if (entry.before.back().role != "user") {
    return Expected("the last of messages to have the role \"user\"");
  }
  entry.users.push_back(std::move(entry.before.back().text));
  entry.before.pop_back();
  entry.output_len.push_back(0);
  return entry;
}

absl::StatusOr<DataEntry> FromObject(const Json& object) {
  if (!object.is_object()) return Expected("an object");
  DataEntry entry;
  if (object.contains("conversations")) {
    MILLRACE_ASSIGN_OR_RETURN(entry, FromConversation(object["conversations"]));
  } else if (object.contains("messages")) {
    MILLRACE_ASSIGN_OR_RETURN(entry, FromMessages(object["messages"]));
  } else if (const std::string* const prompt = TextOf(object, "prompt"); prompt != nullptr) {
    entry.users.push_back(*prompt);
    entry.output_len.push_back(0);
  } else {
    return Expected("conversations, messages or prompt");
  }
  const auto tokens = object.find("output_tokens");
  if (tokens == object.end() || tokens->is_null()) return entry;
  if (!tokens->is_number_integer() || *tokens < 1 || *tokens > kMostTokens) {
    return Expected("output_tokens to be a whole number from 1 to 1000000");
  }
  std::fill(entry.output_len.begin(), entry.output_len.end(), tokens->get<int64_t>());
  return entry;
}

absl::Status Add(const Json& object, std::vector<DataEntry>& entries) {
  MILLRACE_ASSIGN_OR_RETURN(DataEntry entry, FromObject(object));
  if (!entry.users.empty() && !entry.users.front().empty()) entries.push_back(std::move(entry));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DataEntry>> ParseDataset(std::string_view text) {
  std::vector<DataEntry> entries;
  if (Trim(text).starts_with('[')) {
    const Json array = Json::parse(text, nullptr, false);
    if (!array.is_array()) return Expected("JSON Lines or an array; it is not JSON");
    for (size_t i = 0; i < array.size(); ++i) {
      MILLRACE_RETURN_IF_ERROR(Annotate(Add(array[i], entries), StrCat("element ", i)));
    }
  } else {
    for (int number = 1; !text.empty(); ++number) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = Trim(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.empty()) continue;
      const Json object = Json::parse(line, nullptr, false);
      const absl::Status status = object.is_discarded() ? Expected("JSON") : Add(object, entries);
      MILLRACE_RETURN_IF_ERROR(Annotate(status, StrCat("line ", number)));
    }
  }
  if (entries.empty()) return Expected("at least one prompt");
  return entries;
}

}  // namespace millrace
