#include "server/http/json/foreign_fields.h"

#include <algorithm>

#include "base/strings.h"

namespace millrace {
namespace {

struct ForeignField {
  std::string_view name;
  std::string_view
      fields;  // ours of the same purpose; the first that the request may have is meant
  std::string_view note = "";  // in their place, or about the difference
};

constexpr std::string_view kMost = "max_tokens, max_output_tokens";
constexpr std::string_view kNoSampler = "there is no such sampler here";

constexpr ForeignField kFields[] = {
    // llama.cpp's.
    {"n_predict", kMost},
    {"repeat_penalty", "repetition_penalty", "it counts the prompt and the whole answer"},
    {"repeat_last_n", "repetition_penalty", "it counts the prompt and the whole answer"},
    {"n_probs", "top_logprobs, logprobs"},
    {"grammar", "guided_grammar"},
    {"t_max_predict_ms", "timeout_ms"},
    {"cache_prompt", "", "prompts are cached unless --enable-prefix-caching=false is set"},
    {"id_slot", "", "requests have no slots; a prompt is found in the cache by its text"},
    {"slot_id", "", "requests have no slots; a prompt is found in the cache by its text"},
    {"n_keep", "", "prompts that are too long are refused, not cut"},
    {"samplers", "", "samplers apply in one order"},
    {"penalize_nl", "", kNoSampler},
    {"mirostat", "", kNoSampler},
    {"mirostat_tau", "", kNoSampler},
    {"mirostat_eta", "", kNoSampler},
    {"tfs_z", "", kNoSampler},
    {"dynatemp_range", "", kNoSampler},
    {"dry_multiplier", "", kNoSampler},
    {"xtc_probability", "", kNoSampler},

    // Ollama's.
    {"options", "", "its members are fields of the request itself, as temperature is"},
    {"keep_alive", "", "a model stays loaded as long as the server runs"},
    {"num_predict", kMost},
    {"num_ctx", "", "the server's --max-model-len sets it"},
    {"num_keep", "", "prompts that are too long are refused, not cut"},
    {"format", "response_format, text"},
    {"think", "reasoning_effort, reasoning, thinking"},
    {"system", "instructions, messages", "with the role system"},
    {"template", "", "the model's chat template is used; --chat-template names another"},
    {"raw", "", "/v1/completions takes prompts as they are"},

    // TGI's, and transformers'.
    {"inputs", "prompt, messages, input"},
    {"parameters", "", "its members are fields of the request itself, as temperature is"},
    {"max_new_tokens", kMost},
    {"max_length", kMost, "it counts the answer alone"},
    {"do_sample", "temperature", "0 asks for the likeliest token"},
    {"num_return_sequences", "n"},
    {"stop_words", "stop, stop_sequences"},

    // Between the protocols that are served.
    {"max_completion_tokens", kMost},
    {"max_output_tokens", "max_tokens"},
    {"max_tokens", "max_output_tokens"},
    {"stop_sequences", "stop"},
    {"stop", "stop_sequences"},
    {"instructions", "system, messages"},
    {"input", "messages, prompt"},
    {"messages", "input, prompt"},
    {"prompt", "messages, input"},
    {"reasoning", "reasoning_effort, thinking"},
    {"reasoning_effort", "reasoning, output_config", "which has effort"},
    {"thinking", "reasoning_effort, reasoning"},
    {"response_format", "text, output_config", "which has format"},
    {"output_config", "response_format, text"},
};

}  // namespace

std::string HintOfForeignField(std::string_view name, const std::vector<std::string>& known) {
  const auto* const found = std::find_if(std::begin(kFields), std::end(kFields),
                                         [&](const ForeignField& f) { return f.name == name; });
  if (found == std::end(kFields)) return "";
  if (found->fields.empty()) return StrCat("; ", found->note);
  for (const std::string_view field : SplitList(found->fields)) {
    if (std::find(known.begin(), known.end(), field) == known.end()) continue;
    return StrCat("; did you mean ", field, "?",
                  found->note.empty() ? "" : StrCat(" (", found->note, ")"));
  }
  return "";
}

}  // namespace millrace
