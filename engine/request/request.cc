#include "engine/request/request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/request/request_fields.h"

namespace millrace {
namespace {

constexpr std::string_view kRetryAfterUrl = "millrace/retry-after";

template <typename T>
absl::Status OutOfRange(const char* field, T value, const char* allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; allowed: ", allowed));
}

absl::Status ValidateMessages(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return absl::InvalidArgumentError("messages is empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "developer" && role != "user" && role != "assistant" &&
        role != "tool") {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "].role is \"", role.substr(0, 32),
                       "\"; allowed: system, developer, user, assistant, tool"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateLengths(const GenerateRequest& request) {
  const int32_t least = request.echo ? 0 : 1;
  if (request.max_tokens.has_value() && *request.max_tokens < least) {
    return OutOfRange("max_tokens", *request.max_tokens,
                      request.echo ? "at least 0" : "at least 1 (0 with echo)");
  }
  if (request.max_tokens.has_value() && request.min_tokens > *request.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_tokens is ", request.min_tokens,
                                                   "; allowed: at most max_tokens, which is ",
                                                   *request.max_tokens));
  }
  return absl::OkStatus();
}

absl::Status ValidateChoices(const GenerateRequest& request) {
  static_assert(kMaxChoices == 128);
  if (request.n < 1 || request.n > kMaxChoices) return OutOfRange("n", request.n, "1 to 128");
  return absl::OkStatus();
}

absl::Status ValidateFields(const RequestFields& request) {
  absl::Status status;
  ForEachRequestField([&](const auto& field) {
    const auto value = field.Get(request);
    if (!status.ok() || !value.has_value() || field.Allows(*value)) return;
    status = OutOfRange(field.name, *value, field.allowed);
  });
  return status;
}

absl::Status ValidateLogprobs(const GenerateRequest& request) {
  if (request.logprobs.has_value() &&
      (*request.logprobs < 0 || *request.logprobs > kMaxTopLogprobs)) {
    return OutOfRange("logprobs", *request.logprobs, "0 to 20");
  }
  static_assert(kMaxTopLogprobs == 20);
  return absl::OkStatus();
}

absl::Status ValidateLogitBias(const std::vector<LogitBias>& biases, int32_t vocab_size) {
  if (biases.size() > kMaxLogitBiases) {
    return absl::InvalidArgumentError(absl::StrCat("logit_bias has ", biases.size(),
                                                   " tokens; allowed: at most ", kMaxLogitBiases));
  }
  std::vector<Token> tokens;
  for (const LogitBias& biased : biases) {
    if (biased.token < 0 || biased.token >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias has token ", biased.token, "; allowed: 0 to ", vocab_size - 1));
    }
    if (!(std::abs(biased.bias) <= 100)) {
      return absl::InvalidArgumentError(absl::StrCat("logit_bias has ", biased.bias, " for token ",
                                                     biased.token, "; allowed: -100 to 100"));
    }
    tokens.push_back(biased.token);
  }
  std::sort(tokens.begin(), tokens.end());
  if (const auto twice = std::adjacent_find(tokens.begin(), tokens.end()); twice != tokens.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("logit_bias has token ", *twice, " twice; allowed: once"));
  }
  return absl::OkStatus();
}

absl::Status ValidateStops(const GenerateRequest& request, int32_t vocab_size) {
  if (request.stop.size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(absl::StrCat("stop has ", request.stop.size(),
                                                   " strings; allowed: at most ", kMaxStopStrings));
  }
  for (size_t i = 0; i < request.stop.size(); ++i) {
    const size_t bytes = request.stop[i].size();
    if (bytes == 0 || bytes > kMaxStopStringBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop[", i, "] has ", bytes, " bytes; allowed: 1 to ", kMaxStopStringBytes));
    }
  }
  if (request.stop_token_ids.size() > kMaxStopTokenIds) {
    return absl::InvalidArgumentError(absl::StrCat("stop_token_ids has ",
                                                   request.stop_token_ids.size(),
                                                   " ids; allowed: at most ", kMaxStopTokenIds));
  }
  return ValidateTokens("stop_token_ids", request.stop_token_ids, vocab_size);
}

absl::Status ValidateSuffix(const GenerateRequest& request) {
  if (request.suffix.empty() || !std::holds_alternative<Chat>(request.prompt)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("suffix is set; allowed: none beside messages");
}

absl::Status ValidateTokenBounds(const GenerateRequest& request, int32_t vocab_size) {
  if (request.allowed_token_ids.has_value()) {
    const std::vector<Token>& tokens = *request.allowed_token_ids;
    if (tokens.empty() || tokens.size() > static_cast<size_t>(vocab_size)) {
      return absl::InvalidArgumentError(absl::StrCat("allowed_token_ids has ", tokens.size(),
                                                     " ids; allowed: 1 to ", vocab_size));
    }
    MILLRACE_RETURN_IF_ERROR(ValidateTokens("allowed_token_ids", tokens, vocab_size));
  }
  if (request.bad_words.size() > kMaxBadWords) {
    return absl::InvalidArgumentError(absl::StrCat("bad_words has ", request.bad_words.size(),
                                                   " strings; allowed: at most ", kMaxBadWords));
  }
  for (size_t i = 0; i < request.bad_words.size(); ++i) {
    const size_t bytes = request.bad_words[i].size();
    if (bytes > 0 && bytes <= kMaxBadWordBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("bad_words[", i, "] has ", bytes, " bytes; allowed: 1 to ", kMaxBadWordBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateTokens(std::string_view field, const std::vector<Token>& tokens,
                            int32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          StrCat(field, "[", i, "] is ", tokens[i], "; allowed: 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidatePrompt(std::string_view field, const Prompt& prompt, int32_t vocab_size) {
  if (const auto* chat = std::get_if<Chat>(&prompt)) return ValidateMessages(chat->messages);
  const auto* text = std::get_if<std::string>(&prompt);
  const auto* tokens = std::get_if<std::vector<Token>>(&prompt);
  if (text != nullptr ? text->empty() : tokens->empty()) {
    return absl::InvalidArgumentError(StrCat(field, " is empty"));
  }
  return text != nullptr ? absl::OkStatus() : ValidateTokens(field, *tokens, vocab_size);
}

absl::Status ValidateRequest(const GenerateRequest& request, int32_t vocab_size) {
  const auto* text = std::get_if<std::string>(&request.prompt);
  // Nothing may come before a suffix.
  const bool none = text != nullptr && text->empty() && !request.suffix.empty();
  if (!none) MILLRACE_RETURN_IF_ERROR(ValidatePrompt("prompt", request.prompt, vocab_size));
  if (absl::Status s = ValidateFields(request); !s.ok()) return s;
  if (absl::Status s = ValidateLengths(request); !s.ok()) return s;
  if (absl::Status s = ValidateChoices(request); !s.ok()) return s;
  if (absl::Status s = ValidateLogprobs(request); !s.ok()) return s;
  if (absl::Status s = ValidateLogitBias(request.logit_bias, vocab_size); !s.ok()) return s;
  if (request.grammar.has_value() && request.ignore_eos) {
    return absl::InvalidArgumentError(absl::StrCat("ignore_eos is true; allowed: false beside ",
                                                   request.grammar_field,
                                                   ", whose answers end where they are complete"));
  }
  MILLRACE_RETURN_IF_ERROR(ValidateSuffix(request));
  MILLRACE_RETURN_IF_ERROR(ValidateTokenBounds(request, vocab_size));
  return ValidateStops(request, vocab_size);
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  status.SetPayload({kRetryAfterUrl.data(), kRetryAfterUrl.size()},
                    absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(delay))));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload({kRetryAfterUrl.data(), kRetryAfterUrl.size()});
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

int64_t RetrySeconds(absl::Duration delay) {
  return std::max<int64_t>(absl::ToInt64Seconds(absl::Ceil(delay, absl::Seconds(1))), 1);
}

absl::Status QueueFull(std::string_view why) {
  return WithRetryAfter(absl::ResourceExhaustedError(StrCat("the queue is full: ", why)),
                        absl::Seconds(1));
}

std::string EmbedRequest::Name(size_t input) const {
  const bool before = input < num_before;
  const std::string_view name = before ? field_before : field;
  const size_t count = before ? num_before : inputs.size() - num_before;
  return count == 1 ? std::string(name) : StrCat(name, "[", input - (before ? 0 : num_before), "]");
}

std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

absl::Status CancelStatus(CancelReason reason) {
  switch (reason) {
    case CancelReason::kClientGone:
      return absl::CancelledError("the client has gone");
    case CancelReason::kTooSlow:
      return absl::CancelledError(
          "the answer was not read fast enough: more than 1 MiB or 30 s were waiting");
    case CancelReason::kDeadline:
      return absl::DeadlineExceededError("the request's deadline has passed");
    case CancelReason::kDrain:
      return WithRetryAfter(absl::UnavailableError("the server is shutting down"),
                            absl::Seconds(1));
    case CancelReason::kEvicted:
      return QueueFull("others wait for whom less was waiting");
    case CancelReason::kBatchFailed:
      return absl::CancelledError("another input of the request has failed");
  }
  return absl::InternalError("unknown reason");
}

}  // namespace millrace
