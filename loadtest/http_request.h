// Requests in OpenAI's API, as bytes.
#ifndef MILLRACE_LOADTEST_HTTP_REQUEST_H_
#define MILLRACE_LOADTEST_HTTP_REQUEST_H_

#include <nlohmann/json.hpp>
#include <string>

#include "loadtest/options.h"
#include "loadtest/url.h"
#include "loadtest/workload.h"

namespace millrace {

class HttpRequestWriter {
 public:
  HttpRequestWriter(const Options& options, const ServerUrl& url);

  // Returns the header and body of a request for a stream.
  std::string Write(const Request& request) const;
  // Returns the request's body alone.
  std::string Body(const Request& request) const;

 private:
  const Options& options_;
  std::string head_;  // up to the value of Content-Length
  nlohmann::json extra_;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HTTP_REQUEST_H_
