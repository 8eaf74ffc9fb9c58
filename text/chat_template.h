// A model's own chat template, which turns a conversation into the prompt that the model was
// trained on.
//
// Templates are written in Jinja for Hugging Face's transformers; this renders them byte for byte
// as transformers (a Jinja ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks and loop
// controls) does. README.md names the few things that are refused.
#ifndef MILLRACE_TEXT_CHAT_TEMPLATE_H_
#define MILLRACE_TEXT_CHAT_TEMPLATE_H_

#include <atomic>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"

namespace millrace {

// The texts of a model's special tokens; one that is absent is an undefined variable.
struct SpecialTokenTexts {
  std::optional<std::string> bos;  // bos_token in the template…
  std::optional<std::string> eos;
  std::optional<std::string> unk;
  std::optional<std::string> pad;
};

struct ChatTemplateOptions {
  // Ends the prompt with the header of the answer.
  bool add_generation_prompt = true;
  // Ends the prompt inside the last message, right after its content: an answer goes on with it.
  bool continue_final_message = false;
  // The time that strftime_now gives.
  absl::Time now = absl::UnixEpoch();
  absl::TimeZone zone = absl::UTCTimeZone();
  // Rendering ends with DeadlineExceeded when the clock reaches this.
  SteadyTime deadline = SteadyTime::max();
  const std::atomic<bool>* cancelled = nullptr;  // looked at often; set: it ends with Cancelled
  const Clock* clock = &Clock::Real();
};

// Immutable: any number of threads may render it at once.
class ChatTemplate {
 public:
  // Parses a template. InvalidArgument "chat template: line N: …" if the source is malformed, too
  // large, nested too deep, or uses what is not supported.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source, SpecialTokenTexts tokens,
                                            TemplateLimits limits = {});

  // Renders a conversation. `messages` is an array of objects; `extra` an object of further
  // variables (`tools`, `enable_thinking`…), which may hide any of the standard ones. `Json` is
  // nlohmann::json or nlohmann::ordered_json: a template that prints whole objects (tools) shows
  // their members in the order that it keeps. Errors: InvalidArgument "chat template: line N: …"
  // when the template refuses the conversation (raise_exception), uses it wrongly or exceeds the
  // limits, or when it does not write the content that is to be continued; DeadlineExceeded.
  template <typename Json>
  absl::StatusOr<std::string> Render(const Json& messages, const Json& extra,
                                     const ChatTemplateOptions& options) const;

 private:
  ChatTemplate(jinja::Block block, SpecialTokenTexts tokens, TemplateLimits limits);

  std::shared_ptr<const jinja::Block> block_;
  SpecialTokenTexts tokens_;
  TemplateLimits limits_;
};

// Returns a message's content as one string, which is what most templates expect: a string stays as
// it is; the texts of a list of {"type": "text", "text": …} are joined with line feeds, as other
// servers do; null is empty. InvalidArgument, naming the part from `field` on
// ("messages[1].content[0].type is …"), for anything else.
template <typename Json>
absl::StatusOr<std::string> FlattenContent(std::string_view field, const Json& content);

}  // namespace millrace

#endif  // MILLRACE_TEXT_CHAT_TEMPLATE_H_
