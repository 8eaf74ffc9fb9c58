#include "server/http/openai/openai_request.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "server/http/json/api_error.h"
#include "server/http/json/json_reader.h"
#include "server/http/json/neutral_fields.h"
#include "server/http/json/request_fields_reader.h"
#include "server/http/openai/openai_messages.h"
#include "server/http/openai/openai_tools.h"
#include "server/http/openai/structured_output.h"
#include "server/http/openai/token_fields.h"

namespace millrace {
namespace {

// A string or a list of token ids; not empty.
std::optional<Prompt> ReadOnePrompt(FieldReader& fields, const std::string& name,
                                    const OrderedJson& value) {
  constexpr std::string_view kAllowed = "a non-empty string or list of token ids";
  if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
    return value.get<std::string>();
  }
  if (!value.is_array() || value.empty()) {
    fields.FailValue(name, value, kAllowed);
    return std::nullopt;
  }
  std::vector<Token> tokens;
  tokens.reserve(value.size());
  for (const OrderedJson& item : value) {
    const std::optional<int32_t> token = AsInt32(item);
    if (!token) {
      fields.FailValue(StrCat(name, "[", tokens.size(), "]"), item, "a token id");
      return std::nullopt;
    }
    tokens.push_back(*token);
  }
  return tokens;
}

// The field `name`: one prompt, or a list of at most `most`.
void ReadPrompts(FieldReader& fields, std::string_view name, size_t most,
                 std::vector<Prompt>& prompts) {
  const OrderedJson* field = fields.Find(name);
  if (field == nullptr) {
    return fields.FailMissing(name, "a non-empty string or list of token ids, or a list of these");
  }
  const bool list = field->is_array() && !field->empty() && !IsNumber(field->front());
  if (!list) {
    if (auto prompt = ReadOnePrompt(fields, std::string(name), *field))
      prompts.push_back(*std::move(prompt));
    return;
  }
  if (field->size() > most) {
    return fields.Fail(name, "invalid_value",
                       StrCat(name, " is a list of ", field->size(), "; allowed: at most ", most));
  }
  for (const OrderedJson& item : *field) {
    auto prompt = ReadOnePrompt(fields, StrCat(name, "[", prompts.size(), "]"), item);
    if (!prompt) return;
    prompts.push_back(*std::move(prompt));
  }
}

// Any integer of 64 bits, negative ones too, as OpenAI and vLLM take it.
void ReadSeed(FieldReader& fields, std::optional<uint64_t>& seed) {
  const OrderedJson* field = fields.Find("seed");
  if (field == nullptr) return;
  if (field->is_number_unsigned()) {
    seed = field->get<uint64_t>();
  } else if (field->is_number_integer()) {
    seed = static_cast<uint64_t>(field->get<int64_t>());
  } else if (const auto number = AsInt32(*field)) {  // 3.0
    seed = static_cast<uint64_t>(int64_t{*number});
  } else {
    fields.FailValue("seed", *field, "an integer of 64 bits");
  }
}

void ReadStream(FieldReader& fields, ApiRequest& request) {
  fields.Read("stream", request.stream);
  const OrderedJson* field = fields.Find("stream_options");
  if (field == nullptr) return;
  FieldReader options(*field, "stream_options.", fields.unknown_fields());
  options.Read("include_usage", request.include_usage);
  options.Read("continuous_usage_stats", request.continuous_usage);
  options.Refuse("include_obfuscation", {false});
  if (absl::Status status = options.Finish(); !status.ok()) return fields.Fail(std::move(status));
  if (request.stream) return;
  for (const auto& [name, wanted] :
       {std::pair("include_usage", request.include_usage),
        std::pair("continuous_usage_stats", request.continuous_usage)}) {
    if (!wanted) continue;
    fields.Fail("stream_options", "invalid_value",
                StrCat("stream_options.", name, " is true; allowed: only when stream is true"));
  }
}

// Reads how many answers each prompt gets.
void ReadChoices(FieldReader& fields, ApiRequest& request) {
  fields.Read("n", request.n);
  const auto prompts = static_cast<int32_t>(std::max<size_t>(request.prompts.size(), 1));
  if (request.n < 1 || request.n > kMaxChoices / prompts) {
    fields.FailValue("n", request.n, StrCat("1 to ", kMaxChoices / prompts));
  }
  request.options.n = request.n;
}

// The n likeliest of so many are the answer.
void ReadBestOf(FieldReader& fields, ApiRequest& request) {
  GenerateRequest& options = request.options;
  fields.Read("best_of", options.n);
  const auto most = kMaxChoices / static_cast<int32_t>(std::max<size_t>(request.prompts.size(), 1));
  if (options.n < request.n || options.n > most) {
    fields.FailValue("best_of", options.n, StrCat("n, which is ", request.n, ", to ", most));
  }
  options.mean_logprob = options.n > request.n;
  if (options.mean_logprob && request.stream) {
    fields.FailValue("best_of", options.n,
                     StrCat("n, which is ", request.n, ", when stream is true"));
  }
}

void ReadTimeout(FieldReader& fields, std::optional<absl::Time>& deadline) {
  std::optional<int32_t> milliseconds;
  fields.Read("timeout_ms", milliseconds);
  if (!milliseconds.has_value()) return;
  if (*milliseconds < 1 || *milliseconds > kMaxTimeoutMs) {
    fields.FailValue("timeout_ms", *milliseconds, StrCat("1 to ", kMaxTimeoutMs));
  }
  deadline = absl::Now() + absl::Milliseconds(*milliseconds);
}

// The prompt's log-probabilities come with a whole answer, as vLLM has it.
void ReadPromptLogprobs(FieldReader& fields, ApiRequest& request) {
  std::optional<int32_t>& wanted = request.prompt_logprobs;
  fields.Read("prompt_logprobs", wanted);
  if (!wanted) return;
  if (*wanted < 0 || *wanted > kMaxTopLogprobs) {
    fields.FailValue("prompt_logprobs", *wanted, StrCat("0 to ", kMaxTopLogprobs));
  } else if (request.stream) {
    fields.FailValue("prompt_logprobs", *wanted, "only when stream is false");
  }
}

// Reads the fields that completions and chats share.
void ReadCommon(FieldReader& fields, const DefaultsOf& defaults, ApiRequest& request) {
  GenerateRequest& options = request.options;
  ReadModel(fields, request.model);
  if (defaults) Apply(defaults(request.model), &options);
  ReadChoices(fields, request);
  ReadStream(fields, request);
  ReadRequestFields(fields, kOpenAiField, options);
  fields.Read("stop_token_ids", options.stop_token_ids);
  ReadTimeout(fields, options.deadline);
  fields.Read("return_token_ids", request.return_token_ids);
  ReadPromptLogprobs(fields, request);
  ReadTokenFields(fields, options);
  ReadSeed(fields, options.seed);
  ReadStop(fields, "stop", options.stop);
}

void ReadCompletion(FieldReader& fields, const DefaultsOf& defaults, ApiRequest& request) {
  GenerateRequest& options = request.options;
  fields.Read("suffix", options.suffix);
  const OrderedJson* prompt = fields.Find("prompt");
  if (prompt != nullptr && *prompt == "" && !options.suffix.empty()) {
    request.prompts.emplace_back(std::string());  // a text may begin with what is to be filled in
  } else {
    ReadPrompts(fields, "prompt", kMaxPrompts, request.prompts);
  }
  ReadCommon(fields, defaults, request);
  ReadBestOf(fields, request);
  // As in vLLM the smaller of the two defaults holds, OpenAI's and the model's.
  options.max_tokens = std::min(kDefaultCompletionTokens,
                                options.default_max_tokens.value_or(kDefaultCompletionTokens));
  fields.Read("max_tokens", options.max_tokens);
  fields.Read("echo", request.echo);
  if (request.echo && !options.suffix.empty()) {
    fields.FailValue("echo", true, "false beside suffix");
  }
  fields.Read("logprobs", request.logprobs);
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > kMaxCompletionLogprobs)) {
    fields.FailValue("logprobs", *request.logprobs, StrCat("0 to ", kMaxCompletionLogprobs));
  }
  if (!request.echo && *options.max_tokens < 1) {
    fields.FailValue("max_tokens", *options.max_tokens, "at least 1 (0 with echo)");
  }
  CheckNeutralFields(fields, kCompletionEndpoint);
}

void ReadChatLogprobs(FieldReader& fields, std::optional<int32_t>& logprobs) {
  bool wanted = false;
  int32_t top = 0;
  fields.Read("logprobs", wanted);
  fields.Read("top_logprobs", top);
  if (top < 0 || top > kMaxTopLogprobs) {
    fields.FailValue("top_logprobs", top, StrCat("0 to ", kMaxTopLogprobs));
  } else if (top > 0 && !wanted) {
    fields.FailValue("top_logprobs", top, "only when logprobs is true");
  }
  if (wanted) logprobs = top;
}

// max_tokens is the older name; both may come if they agree.
void ReadChatMaxTokens(FieldReader& fields, std::optional<int32_t>& max_tokens) {
  std::optional<int32_t> newer;
  fields.Read("max_tokens", max_tokens);
  fields.Read("max_completion_tokens", newer);
  if (max_tokens && *max_tokens < 1) fields.FailValue("max_tokens", *max_tokens, "at least 1");
  if (newer && *newer < 1) fields.FailValue("max_completion_tokens", *newer, "at least 1");
  if (max_tokens && newer && max_tokens != newer) {
    fields.FailValue("max_tokens", *max_tokens,
                     "the same as max_completion_tokens, or only one of them");
  }
  if (newer) max_tokens = newer;
}

void ReadChatRequest(FieldReader& fields, bool auto_tool_choice, const DefaultsOf& defaults,
                     ApiRequest& request) {
  Chat chat = ReadChat(fields).value_or(Chat());
  ReadChatTools(fields, auto_tool_choice, chat, request.options);
  ReadReasoning(fields, request.include_reasoning, chat, request.options);
  const OrderedJson* choice = fields.Find("tool_choice");
  request.named_call =
      choice != nullptr && choice->is_object() && !choice->contains("allowed_tools");
  request.prompts.emplace_back(std::move(chat));
  ReadCommon(fields, defaults, request);
  ReadChatMaxTokens(fields, request.options.max_tokens);
  ReadChatLogprobs(fields, request.logprobs);
  ReadPrediction(fields, request.options.prediction);
  CheckNeutralFields(fields, kChatEndpoint);
}

}  // namespace

void ReadModel(FieldReader& fields, std::string& model) {
  fields.Read("model", model);
  if (const OrderedJson* field = fields.Find("model"); field != nullptr && model.empty()) {
    fields.FailValue("model", *field, "the name of a model that is served");
  }
}

void ReadEmbedOptions(FieldReader& fields, EmbedRequest& request) {
  fields.Read("truncate_prompt_tokens", request.truncate_prompt_tokens);
  fields.Read("priority", request.priority);
  ReadTimeout(fields, request.deadline);
}

void ReadStop(FieldReader& fields, std::string_view name, std::vector<std::string>& stop) {
  const OrderedJson* field = fields.Find(name);
  if (field == nullptr) return;
  if (field->is_string()) return stop.push_back(field->get<std::string>());
  if (!field->is_array()) return fields.FailValue(name, *field, "a string or a list of strings");
  if (field->size() > kMaxStopStrings) {
    return fields.Fail(
        name, "invalid_value",
        StrCat(name, " is a list of ", field->size(), "; allowed: at most ", kMaxStopStrings));
  }
  for (const OrderedJson& item : *field) {
    if (!item.is_string()) {
      return fields.FailValue(StrCat(name, "[", stop.size(), "]"), item, "a string");
    }
    stop.push_back(item.get<std::string>());
  }
}

absl::StatusOr<ApiRequest> ParseApiRequest(ApiKind kind, std::string_view body,
                                           const DefaultsOf& defaults, UnknownFields unknown,
                                           bool auto_tool_choice) {
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBodyAsWritten(body));
  ApiRequest request;
  request.kind = kind;
  FieldReader fields(json, "", unknown);
  if (kind == ApiKind::kCompletion) {
    ReadCompletion(fields, defaults, request);
  } else {
    ReadChatRequest(fields, auto_tool_choice, defaults, request);
  }
  ReadStructuredOutput(fields, request.options);
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  request.options.echo = request.echo || request.return_token_ids || request.prompt_logprobs;
  // An empty optional is less than any number.
  request.options.logprobs = std::max(request.logprobs, request.prompt_logprobs);
  return request;
}

absl::StatusOr<ApiEmbeddingRequest> ParseEmbeddingRequest(std::string_view body,
                                                          UnknownFields unknown) {
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBody(body));
  FieldReader fields(json, "", unknown);
  ApiEmbeddingRequest request;
  ReadModel(fields, request.model);
  ReadPrompts(fields, "input", kMaxEmbeddingInputs, request.request.inputs);
  std::string format = "float";
  fields.Read("encoding_format", format);
  request.base64 = format == "base64";
  if (!request.base64 && format != "float") {
    fields.FailValue("encoding_format", format, "float, base64");
  }
  fields.Read("dimensions", request.request.dimensions);
  ReadEmbedOptions(fields, request.request);
  CheckNeutralFields(fields, kEmbeddingEndpoint);
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<ApiTokenizeRequest> ParseTokenizeRequest(std::string_view body,
                                                        UnknownFields unknown) {
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBodyAsWritten(body));
  FieldReader fields(json, "", unknown);
  ApiTokenizeRequest parsed;
  TokenizeRequest& request = parsed.request;
  ReadModel(fields, parsed.model);
  fields.Read("return_token_strs", request.return_token_strs);
  const bool chat = fields.Find("messages") != nullptr;
  if (chat && fields.Find("prompt") != nullptr) {
    fields.Fail("messages", "invalid_value", "prompt and messages are both there; allowed: one");
  } else if (chat) {
    if (auto chat = ReadChat(fields)) {
      GenerateRequest unused;
      ReadChatTools(fields, /*auto_allowed=*/true, *chat, unused);
      chat->forced_tool.reset();
      request.prompt = *std::move(chat);
    }
    request.add_special_tokens = false;  // the template writes its own
    CheckNeutralFields(fields, kChatTokenizeEndpoint);
  } else {
    const OrderedJson* prompt = fields.Find("prompt");
    if (prompt == nullptr) {
      fields.FailMissing("prompt", "a string, or messages in its place");
    } else if (!prompt->is_string()) {
      fields.FailValue("prompt", *prompt, "a string");
    } else {
      request.prompt = prompt->get<std::string>();
    }
    bool add_special_tokens = true;
    fields.Read("add_special_tokens", add_special_tokens);
    request.add_special_tokens = add_special_tokens;
  }
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  return parsed;
}

absl::StatusOr<ApiDetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                            UnknownFields unknown) {
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBody(body));
  FieldReader fields(json, "", unknown);
  ApiDetokenizeRequest request;
  ReadModel(fields, request.model);
  if (fields.Find("tokens") == nullptr) fields.FailMissing("tokens", "a list of token ids");
  fields.Read("tokens", request.tokens);
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  return request;
}

}  // namespace millrace
