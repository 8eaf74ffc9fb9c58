#include "engine/text/call_turns.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/strings.h"
#include "engine/text/call_text.h"
#include "text/tools/json_call.h"

namespace millrace {
namespace {

using Messages = std::vector<ChatMessage>;
using CallContent = MessageTraits::CallContent;

bool IsObject(const std::string& text) {
  const auto json = ParseOrdered(text, kCallJson);
  return json.ok() && json->is_object();
}

std::string NineLetters(const std::string& id) {
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const auto known = [&](char c) { return kLetters.find(c) != kLetters.npos; };
  if (id.size() == 9 && std::all_of(id.begin(), id.end(), known)) return id;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a's
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::string letters;
  for (int i = 0; i < 9; ++i, hash /= kLetters.size()) letters += kLetters[hash % kLetters.size()];
  return letters;
}

void WriteCallsAsText(const ToolFormat& format, Messages* messages) {
  size_t count = 0;
  for (ChatMessage& message : *messages) {
    if (message.tool_calls.empty()) continue;
    AppendContent(&message, CallsText(format, message.tool_calls, count), "\n");
    count += message.tool_calls.size();
    message.tool_calls.clear();
  }
}

// Results of calls that were made together are one turn.
void WriteResultsAsText(Messages* messages) {
  Messages written;
  bool after_result = false;
  for (ChatMessage& message : *messages) {
    const bool result = message.role == "tool";
    if (!result) {
      written.push_back(std::move(message));
    } else {
      if (!after_result) written.push_back({.role = "user"});
      AppendContent(&written.back(),
                    StrCat("<tool_response>\n", message.content, "\n</tool_response>"), "\n");
    }
    after_result = result;
  }
  *messages = std::move(written);
}

// Puts the contents of the assistant between two turns of the user into one turn: the final one, or
// else one before the first call.
Messages Gather(absl::Span<ChatMessage> span) {
  ChatMessage all{.role = "assistant"};
  Messages others;
  const bool final =
      !span.empty() && span.back().role == "assistant" && span.back().tool_calls.empty();
  if (final) all.reasoning = span.back().reasoning;
  for (ChatMessage& message : span) {
    if (message.role == "assistant") {
      AppendContent(&all, message.content, "\n\n");
      message.content.clear();
      message.part_sizes.clear();
      if (message.tool_calls.empty()) continue;
    }
    others.push_back(std::move(message));
  }
  if (all.content.empty() && !final) return others;
  others.insert(final ? others.end() : others.begin(), std::move(all));
  return others;
}

bool HasCallContent(absl::Span<const ChatMessage> span) {
  return std::any_of(span.begin(), span.end(), [](const ChatMessage& message) {
    return !message.tool_calls.empty() && !message.content.empty();
  });
}

void PlaceCallContent(const MessageTraits& traits, Messages* messages) {
  const size_t last_user = LastUser(*messages);
  Messages placed;
  for (size_t i = 0; i < messages->size();) {
    const CallContent place = i > last_user ? traits.content_now : traits.content_before;
    size_t end = i + 1;
    if (place == CallContent::kGathered && (*messages)[i].role == "assistant") {
      while (end < messages->size() &&
             ((*messages)[end].role == "assistant" || (*messages)[end].role == "tool")) {
        ++end;
      }
    }
    const auto span = absl::MakeSpan(*messages).subspan(i, end - i);
    i = end;
    if (!HasCallContent(span)) {
      std::move(span.begin(), span.end(), std::back_inserter(placed));
    } else if (place == CallContent::kGathered) {
      for (ChatMessage& message : Gather(span)) placed.push_back(std::move(message));
    } else {
      ChatMessage& message = span.front();
      if (place == CallContent::kWithReasoning && !message.reasoning.empty()) {
        const std::string content = std::exchange(message.content, std::move(message.reasoning));
        message.reasoning.clear();
        AppendContent(&message, content, "\n\n");
      } else if (place == CallContent::kApart) {
        placed.push_back({.role = message.role,
                          .content = std::move(message.content),
                          .name = message.name,
                          .part_sizes = std::move(message.part_sizes)});
        message.content.clear();
        message.part_sizes.clear();
      }
      placed.push_back(std::move(message));
    }
  }
  *messages = std::move(placed);
}

// Makes a turn with several calls as many turns, each with the results of its call behind it.
void SplitCalls(Messages* messages) {
  Messages split;
  for (size_t i = 0; i < messages->size();) {
    ChatMessage& message = (*messages)[i++];
    const std::vector<ToolCall> calls = message.tool_calls;
    if (calls.size() < 2) {
      split.push_back(std::move(message));
      continue;
    }
    size_t end = i;
    while (end < messages->size() && (*messages)[end].role == "tool") ++end;
    std::vector<bool> taken(end - i);
    for (const ToolCall& call : calls) {
      split.push_back(std::exchange(message, ChatMessage{.role = "assistant"}));
      split.back().tool_calls = {call};
      for (size_t j = i; j < end; ++j) {
        if (taken[j - i] || (*messages)[j].tool_call_id != call.id) continue;
        taken[j - i] = true;
        split.push_back(std::move((*messages)[j]));
      }
    }
    for (size_t j = i; j < end; ++j) {
      if (!taken[j - i]) split.push_back(std::move((*messages)[j]));
    }
    i = end;
  }
  *messages = std::move(split);
}

}  // namespace

void AppendContent(ChatMessage* message, std::string_view text, std::string_view between) {
  if (!message->content.empty() && !text.empty()) message->content += between;
  message->content += text;
  message->part_sizes.clear();
}

size_t CountCalls(const Messages& messages) {
  size_t count = 0;
  for (const ChatMessage& message : messages) count += message.tool_calls.size();
  return count;
}

size_t LastUser(const Messages& messages) {
  size_t last = messages.size();
  while (last > 0 && messages[last - 1].role != "user") --last;
  return last == 0 ? 0 : last - 1;
}

void CompleteArguments(const MessageTraits& traits, Messages* messages) {
  for (ChatMessage& message : *messages) {
    for (ToolCall& call : message.tool_calls) {
      const std::string_view text = Trim(call.arguments);
      if (text.empty() || text == "null" || text == "[]" || text == "\"\"") {
        call.arguments = "{}";
      } else if (traits.object_arguments && !IsObject(call.arguments)) {
        call.arguments = OrderedJson{{"arguments", call.arguments}}.dump();
      }
    }
  }
}

void NameCalls(const MessageTraits& traits, Messages* messages) {
  struct Known {
    std::string id;
    std::string name;
  };
  std::map<std::string, Known> calls;
  std::vector<std::string> turn;  // the ids of the last turn that has calls, as they came
  size_t results = 0;
  int count = 0;
  for (ChatMessage& message : *messages) {
    if (!message.tool_calls.empty()) {
      turn.clear();
      results = 0;
    }
    for (ToolCall& call : message.tool_calls) {
      turn.push_back(call.id);
      const std::string came = call.id;
      if (traits.ids == MessageTraits::Ids::kNineLetters) call.id = NineLetters(came);
      if (traits.ids == MessageTraits::Ids::kNamed) {
        call.id = StrCat("functions.", call.name, ":", count);
      }
      ++count;
      calls[came] = {call.id, call.name};
    }
    if (message.role != "tool") continue;
    if (message.tool_call_id.empty() && results < turn.size()) message.tool_call_id = turn[results];
    ++results;
    const auto call = calls.find(message.tool_call_id);
    if (call == calls.end()) {
      if (traits.ids == MessageTraits::Ids::kNineLetters) {
        message.tool_call_id = NineLetters(message.tool_call_id);
      }
      continue;
    }
    message.tool_call_id = call->second.id;
    if (traits.result_names && message.name.empty()) message.name = call->second.name;
  }
}

void PlaceCalls(const MessageTraits& traits, const ToolFormat& format, Messages* messages) {
  if (traits.text_calls) {
    WriteCallsAsText(format, messages);
  } else {
    PlaceCallContent(traits, messages);
    if (traits.one_call) SplitCalls(messages);
  }
  if (traits.text_results) WriteResultsAsText(messages);
}

}  // namespace millrace
