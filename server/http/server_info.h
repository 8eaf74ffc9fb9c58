// What SGLang's routers ask a worker about itself.
#ifndef MILLRACE_SERVER_HTTP_SERVER_INFO_H_
#define MILLRACE_SERVER_HTTP_SERVER_INFO_H_

#include <string>

#include "engine/served_model.h"

namespace millrace {

// Returns the body of /server_info and /get_server_info: names and sizes that the routers read. The
// model's name stands in the place of its path, which no client learns.
std::string ServerInfoJson(ServedModel& model);

// Returns the body of /model_info and /get_model_info, likewise.
std::string ModelInfoJson(ServedModel& model);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_SERVER_INFO_H_
