#include "server/http/json/neutral_fields.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace {
namespace {

constexpr size_t kMostPairs = 16;  // of labels

constexpr unsigned kGenerate = kCompletionEndpoint | kChatEndpoint;
constexpr unsigned kOpenAi = kGenerate | kResponsesEndpoint;
constexpr unsigned kTalk = kChatEndpoint | kResponsesEndpoint;

// Which values of a field ask for nothing. null always does.
enum class Rule {
  kListed,       // the listed ones: documented defaults
  kBoolean,      // either: what the field would change does not exist here
  kString,       // every string: a label that changes no answer
  kStringPairs,  // every object of at most 16 pairs of strings: labels, too
  kObject,       // every object: a hint, or labels
  kObjects,      // every list of objects: hints
  kCount,        // every integer from 1: a bound on what this server never does
};

struct NeutralField {
  std::string_view name;
  unsigned endpoints;
  std::string_view listed;  // a JSON list
  Rule rule = Rule::kListed;
};

// A completion has no tools, whose calls could run in parallel, and no reasoning to separate:
// either value of these fields gives the same answer.
constexpr NeutralField kFields[] = {
    // OpenAI's.
    {"access_programs", kResponsesEndpoint, "[]"},
    {"audio", kChatEndpoint, "[]"},
    {"background", kResponsesEndpoint, "[false]"},
    {"client_metadata", kResponsesEndpoint, "", Rule::kObject},
    {"context_management", kResponsesEndpoint, "", Rule::kObjects},
    {"conversation", kResponsesEndpoint, "[]"},
    {"function_call", kChatEndpoint, R"(["none", "auto"])"},
    {"functions", kChatEndpoint, "[[]]"},
    {"image", kResponsesEndpoint, "[]"},
    {"max_tool_calls", kResponsesEndpoint, "", Rule::kCount},
    {"metadata", kOpenAi, "", Rule::kStringPairs},
    {"modalities", kChatEndpoint, R"([["text"]])"},
    {"moderation", kTalk, "[]"},
    {"parallel_tool_calls", kCompletionEndpoint, "", Rule::kBoolean},
    {"prompt", kResponsesEndpoint, "[]"},
    {"prompt_cache_key", kOpenAi, "", Rule::kString},
    {"prompt_cache_options", kTalk, "", Rule::kObject},
    {"prompt_cache_retention", kTalk, R"(["in_memory", "24h"])"},
    {"safety_identifier", kOpenAi, "", Rule::kString},
    {"service_tier", kOpenAi, R"(["auto", "default", "flex", "priority", "scale"])"},
    {"store", kGenerate, "", Rule::kBoolean},
    {"top_logprobs", kResponsesEndpoint, "[0]"},
    {"truncation", kResponsesEndpoint, R"(["auto", "disabled"])"},
    {"user", kOpenAi | kEmbeddingEndpoint | kScoringEndpoint, "", Rule::kString},
    {"verbosity", kChatEndpoint, R"(["low", "medium", "high"])"},
    {"web_search_options", kChatEndpoint, "[]"},

    // Anthropic's.
    {"compaction", kMessagesEndpoint, "", Rule::kObject},
    {"container", kMessagesEndpoint, "[[]]"},
    {"context_management", kMessagesEndpoint, "", Rule::kObject},
    {"diagnostics", kMessagesEndpoint, "", Rule::kObject},
    {"inference_geo", kMessagesEndpoint, "[[]]"},
    {"mcp_servers", kMessagesEndpoint, "[[]]"},
    {"message", kMessagesEndpoint, "[[]]"},
    {"metadata", kMessagesEndpoint, "", Rule::kObject},
    {"prefill", kMessagesEndpoint, "[[]]"},
    {"service_tier", kMessagesEndpoint, R"(["auto", "standard_only"])"},
    {"speed", kMessagesEndpoint, R"(["standard", "fast"])"},
    {"thread", kMessagesEndpoint, "[false]"},
    {"user_profile_id", kMessagesEndpoint, "", Rule::kString},
    {"workspace_id", kMessagesEndpoint, "", Rule::kString},

    // vLLM's.
    {"add_special_tokens", kChatEndpoint | kChatTokenizeEndpoint, "[false]"},
    {"add_special_tokens", kCompletionEndpoint | kEmbeddingEndpoint, "[true]"},
    {"cache_salt", kGenerate | kEmbeddingEndpoint, "[]"},
    {"chat_template", kChatEndpoint | kEmbeddingEndpoint | kChatTokenizeEndpoint, "[]"},
    {"documents", kChatEndpoint | kChatTokenizeEndpoint, "[[]]"},
    {"ec_transfer_params", kGenerate, "[]"},
    {"echo", kChatEndpoint, "[false]"},
    {"embed_dtype", kEmbeddingEndpoint, R"(["float32"])"},
    {"endianness", kEmbeddingEndpoint, R"(["native", "little"])"},
    {"guided_decoding_backend", kGenerate, "[]"},
    {"guided_whitespace_pattern", kGenerate, "[]"},
    {"kv_transfer_params", kGenerate, "[]"},
    {"length_penalty", kGenerate, "[1]"},
    {"logits_processors", kGenerate, "[[]]"},
    {"logprob_token_ids", kGenerate, "[]"},
    {"media_io_kwargs", kChatEndpoint | kChatTokenizeEndpoint, "[{}]"},
    {"messages", kEmbeddingEndpoint, "[]"},
    {"mm_processor_kwargs",
     kChatEndpoint | kEmbeddingEndpoint | kChatTokenizeEndpoint | kScoringEndpoint, "[{}]"},
    {"normalize", kEmbeddingEndpoint, "[]"},
    {"prompt_embeds", kCompletionEndpoint, "[]"},
    {"repetition_detection", kGenerate, "[]"},
    {"request_id", kGenerate | kEmbeddingEndpoint | kScoringEndpoint, "[]"},
    {"return_mm_kwargs", kGenerate, "[true]"},
    {"return_prompt_text", kChatEndpoint, "[false]"},
    {"return_token_offsets", kGenerate, "[false]"},
    {"return_tokens_as_token_ids", kGenerate, "[false]"},
    {"routed_experts_prompt_start", kGenerate, "[0]"},
    {"session_id", kGenerate, "[]"},
    {"spaces_between_special_tokens", kGenerate, "[true]"},
    {"stream_interval", kGenerate, "[1]"},
    {"truncate_prompt_tokens", kGenerate, "[]"},
    {"truncation_side", kGenerate, "[]"},
    {"truncation_side", kEmbeddingEndpoint | kScoringEndpoint, R"(["right"])"},
    {"use_activation", kEmbeddingEndpoint, "[]"},
    {"use_beam_search", kGenerate, "[false]"},
    {"vllm_xargs", kGenerate, "[{}]"},
    {"watermarking", kGenerate, "[false]"},

    // SGLang's. Its router sends several of them in every request.
    {"custom_logit_processor", kGenerate, "[]"},
    {"custom_params", kGenerate, "[]"},
    {"lora_path", kGenerate, "[]"},
    {"no_stop_trim", kGenerate, "[false]"},
    {"return_hidden_states", kGenerate, "[false]"},
    {"rid", kGenerate, "[]"},
    {"sampling_seed", kGenerate, "[]"},
    {"separate_reasoning", kCompletionEndpoint, "", Rule::kBoolean},
    {"session_params", kGenerate, "[]"},
    {"stop_regex", kGenerate, "[]"},
    {"stream_reasoning", kGenerate, "", Rule::kBoolean},
};

struct ParsedField {
  const NeutralField* field;
  OrderedJson listed;
};

const std::vector<ParsedField>& Table() {
  static const auto& table = *new std::vector<ParsedField>([] {
    std::vector<ParsedField> parsed;
    for (const NeutralField& field : kFields) {
      parsed.push_back(
          {&field, field.listed.empty() ? OrderedJson() : OrderedJson::parse(field.listed)});
    }
    return parsed;
  }());
  return table;
}

void CheckStringPairs(FieldReader& fields, std::string_view name) {
  const OrderedJson* value = fields.Find(name);
  if (value == nullptr) return;
  const bool pairs =
      value->is_object() && value->size() <= kMostPairs &&
      std::all_of(value->begin(), value->end(), [](const OrderedJson& v) { return v.is_string(); });
  if (!pairs) fields.FailValue(name, *value, "at most 16 pairs of strings");
}

void CheckObject(FieldReader& fields, std::string_view name) {
  const OrderedJson* value = fields.Find(name);
  if (value != nullptr && !value->is_object()) fields.FailValue(name, *value, "an object");
}

void CheckObjects(FieldReader& fields, std::string_view name) {
  const OrderedJson* value = fields.Find(name);
  if (value == nullptr) return;
  const bool objects =
      value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const OrderedJson& v) { return v.is_object(); });
  if (!objects) fields.FailValue(name, *value, "a list of objects");
}

void CheckCount(FieldReader& fields, std::string_view name) {
  int32_t count = 1;
  fields.Read(name, count);
  if (count < 1) fields.FailValue(name, count, "at least 1");
}

}  // namespace

void CheckNeutralFields(FieldReader& fields, Endpoint endpoint) {
  bool either = false;
  std::string text;
  for (const auto& [field, listed] : Table()) {
    if ((field->endpoints & endpoint) == 0) continue;
    switch (field->rule) {
      case Rule::kListed:
        fields.Refuse(field->name, listed);
        break;
      case Rule::kBoolean:
        fields.Read(field->name, either);
        break;
      case Rule::kString:
        fields.Read(field->name, text);
        break;
      case Rule::kStringPairs:
        CheckStringPairs(fields, field->name);
        break;
      case Rule::kObject:
        CheckObject(fields, field->name);
        break;
      case Rule::kObjects:
        CheckObjects(fields, field->name);
        break;
      case Rule::kCount:
        CheckCount(fields, field->name);
        break;
    }
  }
}

std::vector<std::pair<std::string, nlohmann::ordered_json>> NeutralFieldSchemas(Endpoint endpoint) {
  using Schema = nlohmann::ordered_json;
  std::vector<std::pair<std::string, Schema>> schemas;
  for (const auto& [field, listed] : Table()) {
    if ((field->endpoints & endpoint) == 0) continue;
    Schema schema;
    switch (field->rule) {
      case Rule::kListed:
        schema = listed.empty() ? Schema{{"type", "null"}} : Schema{{"enum", listed}};
        schema["description"] = "Only with a value that asks for nothing.";
        break;
      case Rule::kBoolean:
        schema = {{"type", "boolean"}, {"description", "Changes nothing."}};
        break;
      case Rule::kString:
        schema = {{"type", "string"}, {"description", "A label, which changes nothing."}};
        break;
      case Rule::kStringPairs:
        schema = {{"type", "object"},
                  {"maxProperties", kMostPairs},
                  {"additionalProperties", {{"type", "string"}}},
                  {"description", "Labels, which change nothing."}};
        break;
      case Rule::kObject:
        schema = {{"type", "object"}, {"description", "Changes nothing."}};
        break;
      case Rule::kObjects:
        schema = {{"type", "array"},
                  {"items", {{"type", "object"}}},
                  {"description", "Changes nothing."}};
        break;
      case Rule::kCount:
        schema = {{"type", "integer"},
                  {"minimum", 1},
                  {"maximum", INT32_MAX},
                  {"description", "Changes nothing."}};
        break;
    }
    schemas.emplace_back(field->name, std::move(schema));
  }
  return schemas;
}

}  // namespace millrace
