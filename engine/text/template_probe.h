// Finds out what a chat template writes, by rendering short conversations.
#ifndef MILLRACE_ENGINE_TEXT_TEMPLATE_PROBE_H_
#define MILLRACE_ENGINE_TEXT_TEMPLATE_PROBE_H_

#include <string_view>

#include "engine/text/template_traits.h"
#include "text/chat_template.h"
#include "text/tools/output_format.h"

namespace millrace {

// Tries the ways of putting a conversation, the plainest first, until everything in it is in the
// prompt. `source` is the template's text, in which names of variables are found; `output` says how
// the model writes calls and reasoning.
TemplateTraits ProbeTemplate(std::string_view source, const ChatTemplate& chat_template,
                             const OutputFormat& output);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_TEMPLATE_PROBE_H_
