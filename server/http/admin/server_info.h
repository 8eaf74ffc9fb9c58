// The answers to SGLang's routers, which ask a worker about itself.
#ifndef MILLRACE_SERVER_HTTP_ADMIN_SERVER_INFO_H_
#define MILLRACE_SERVER_HTTP_ADMIN_SERVER_INFO_H_

#include <string>

#include "engine/served_model.h"

namespace millrace {

// Returns the body of /server_info and /get_server_info: names and sizes that the routers read. The
// model's name stands in the place of its path, which no client learns.
std::string ServerInfoJson(ServedModel& model);

// Returns the body of /model_info and /get_model_info, likewise.
std::string ModelInfoJson(ServedModel& model);

// Returns the body of /tokenizer_info: what lm-eval, which renders conversations by itself, must
// know. Of a model of tensors, which has no tokenizer, it is an empty object.
std::string TokenizerInfoJson(ServedModel& model);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ADMIN_SERVER_INFO_H_
