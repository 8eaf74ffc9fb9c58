// Puts conversations so that a model's chat template writes all of them.
#ifndef MILLRACE_ENGINE_TEXT_TEMPLATE_MESSAGES_H_
#define MILLRACE_ENGINE_TEXT_TEMPLATE_MESSAGES_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/request/request.h"
#include "engine/text/template_traits.h"
#include "text/tools/output_format.h"

namespace millrace {

// Returns whether there are tools, calls or results in the conversation.
bool UsesTools(const Chat& chat);

// Returns the messages as the template takes them. `output` says how calls are written where the
// template does not write them.
nlohmann::ordered_json TemplateMessages(const Chat& chat, const TemplateTraits& traits,
                                        const OutputFormat& output);

// Adds the variables that the template wants beside the messages: the tools, which are JSON or
// empty, and the date.
void AddToolsVariables(const std::string& tools, const TemplateTraits& traits,
                       nlohmann::ordered_json* variables);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_TEMPLATE_MESSAGES_H_
