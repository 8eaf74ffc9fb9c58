#include "server/http/refused_fields.h"

#include <string_view>
#include <utility>
#include <vector>

namespace millrace {
namespace {

// A field, and as a JSON list the values that change nothing (null always does): its documented
// defaults.
struct Refused {
  std::string_view name;
  std::string_view neutral;
};

constexpr Refused kOpenAiCompletion[] = {
    {"suffix", R"([""])"},
};

constexpr Refused kOpenAiChat[] = {
    {"audio", "[]"},
    {"function_call", R"(["none", "auto"])"},
    {"functions", "[[]]"},
    {"modalities", R"([["text"]])"},
    {"moderation", "[]"},
    {"parallel_tool_calls", "[true]"},
    {"prediction", "[]"},
    {"prompt_cache_key", "[]"},
    {"prompt_cache_options", "[{}]"},
    {"prompt_cache_retention", R"(["in_memory"])"},
    {"reasoning_effort", R"(["none"])"},
    {"response_format", R"([{"type": "text"}])"},
    {"safety_identifier", "[]"},
    {"tool_choice", R"(["none", "auto"])"},
    {"tools", "[[]]"},
    {"verbosity", R"(["medium"])"},
    {"web_search_options", "[]"},
};

constexpr Refused kVllmBoth[] = {
    {"allowed_token_ids", "[]"},
    {"bad_words", "[[]]"},
    {"cache_salt", "[]"},
    {"ec_transfer_params", "[]"},
    {"guided_choice", "[]"},
    {"guided_decoding_backend", "[]"},
    {"guided_grammar", "[]"},
    {"guided_json", "[]"},
    {"guided_regex", "[]"},
    {"guided_whitespace_pattern", "[]"},
    {"kv_transfer_params", "[]"},
    {"length_penalty", "[1]"},
    {"logits_processors", "[[]]"},
    {"logprob_token_ids", "[]"},
    {"prompt_logprobs", "[]"},
    {"repetition_detection", "[]"},
    {"request_id", "[]"},
    {"return_mm_kwargs", "[true]"},
    {"return_token_offsets", "[false]"},
    {"return_tokens_as_token_ids", "[false]"},
    {"routed_experts_prompt_start", "[0]"},
    {"session_id", "[]"},
    {"spaces_between_special_tokens", "[true]"},
    {"stream_interval", "[1]"},
    {"structured_outputs", "[]"},
    {"thinking_token_budget", "[-1]"},
    {"truncate_prompt_tokens", "[]"},
    {"truncation_side", "[]"},
    {"use_beam_search", "[false]"},
    {"vllm_xargs", "[{}]"},
    {"watermarking", "[false]"},
};

constexpr Refused kVllmCompletion[] = {
    {"add_special_tokens", "[true]"},
    {"prompt_embeds", "[]"},
    {"response_format", R"([{"type": "text"}])"},
};

constexpr Refused kVllmChat[] = {
    {"echo", "[false]"},
    {"include_reasoning", "[true]"},
    {"return_prompt_text", "[false]"},
};

constexpr Refused kVllmTemplate[] = {
    {"add_special_tokens", "[false]"}, {"chat_template", "[]"},         {"documents", "[[]]"},
    {"media_io_kwargs", "[{}]"},       {"mm_processor_kwargs", "[{}]"},
};

constexpr Refused kVllmTokenizeTools[] = {{"tools", "[[]]"}};

constexpr Refused kEmbedding[] = {
    {"add_special_tokens", "[true]"},
    {"cache_salt", "[]"},
    {"chat_template", "[]"},
    {"embed_dtype", R"(["float32"])"},
    {"endianness", R"(["native", "little"])"},
    {"messages", "[]"},
    {"mm_processor_kwargs", "[{}]"},
    {"normalize", "[]"},
    {"request_id", "[]"},
    {"truncation_side", R"(["right"])"},
    {"use_activation", "[]"},
};

using Table = std::vector<std::pair<std::string_view, Json>>;

template <size_t... kSizes>
Table Parsed(const Refused (&... lists)[kSizes]) {
  Table table;
  const auto add = [&table](const auto& list) {
    for (const Refused& field : list) table.emplace_back(field.name, Json::parse(field.neutral));
  };
  (add(lists), ...);
  return table;
}

void RefuseAll(FieldReader& fields, const Table& table) {
  for (const auto& [name, neutral] : table) fields.Refuse(name, neutral);
}

}  // namespace

void RefuseCompletionFields(FieldReader& fields) {
  static const auto& kTable = *new Table(Parsed(kOpenAiCompletion, kVllmBoth, kVllmCompletion));
  RefuseAll(fields, kTable);
}

void RefuseChatFields(FieldReader& fields) {
  static const auto& kTable = *new Table(Parsed(kOpenAiChat, kVllmBoth, kVllmChat, kVllmTemplate));
  RefuseAll(fields, kTable);
}

void RefuseEmbeddingFields(FieldReader& fields) {
  static const auto& kTable = *new Table(Parsed(kEmbedding));
  RefuseAll(fields, kTable);
}

void RefuseChatTokenizeFields(FieldReader& fields) {
  static const auto& kTable = *new Table(Parsed(kVllmTemplate, kVllmTokenizeTools));
  RefuseAll(fields, kTable);
}

}  // namespace millrace
