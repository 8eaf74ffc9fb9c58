// /openapi.json: the description of a listener's routes, in OpenAPI 3.1.
#ifndef MILLRACE_SERVER_HTTP_OPENAPI_H_
#define MILLRACE_SERVER_HTTP_OPENAPI_H_

#include <span>
#include <string>
#include <string_view>

#include "config/settings.h"

namespace millrace {

// Describes a route, beyond what the table of routes has (routes.cc).
struct ApiOperation {
  std::string_view path;  // as the document names it: "/v1/models/{model}"
  std::string_view method;
  std::string_view summary;
  std::string_view request = {};     // the schema of the body; empty: none
  std::string_view response = {};    // the schema of the answer; empty: text
  std::string_view stream = {};      // the schema of an event, where `stream` asks for events
  std::string_view media = {};       // of an answer that is not JSON, "text/css,image/svg+xml"
  std::string_view body_media = {};  // of a body that is not JSON
};

// Returns all operations, of every listener.
std::span<const ApiOperation> ApiOperations();

// A route as the document needs it.
struct DocumentedRoute {
  std::string_view path;  // one that ends in a slash stands for all that begin so
  std::string_view method;
  bool needs_key;
  bool serving;            // asks the model
  std::string_view scope;  // what a key needs: "infer"; empty: any key
};

// Returns the document. Every route is in it; one without an operation has no summary.
std::string OpenApiJson(std::span<const DocumentedRoute> routes, UnknownFields unknown);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAPI_H_
