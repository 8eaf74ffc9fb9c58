// The schemas of /openapi.json: of bodies, answers and events.
//
// They stand in openapi/*.json, with these shorthands:
//   "$ref": "Name"         another schema
//   "=kMaxPrompts"         the constant of that name
//   "x-include": [names]   takes over the properties of the schemas "+Name", and of the readers'
//                          tables: "fields:openai" (engine/request/request_fields.h),
//                          "neutral:chat" (neutral_fields.h)
// A property of a request that is not required may also be null, and no other ones may come.
// openapi_test.cc holds them to the readers: the fields that a reader looks for are those that its
// schema names.
#ifndef MILLRACE_SERVER_HTTP_OPENAPI_OPENAPI_SCHEMAS_H_
#define MILLRACE_SERVER_HTTP_OPENAPI_OPENAPI_SCHEMAS_H_

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "config/settings.h"

namespace millrace {

struct OpenApiFile {
  std::string_view name;
  std::string_view json;
};

// Returns the files of openapi/, which are a part of the program.
std::span<const OpenApiFile> OpenApiFiles();

// Returns components.schemas.
nlohmann::ordered_json OpenApiSchemas(UnknownFields unknown);

// Returns the examples of bodies: lists by the name of a request's schema.
nlohmann::ordered_json OpenApiExamples();

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAPI_OPENAPI_SCHEMAS_H_
