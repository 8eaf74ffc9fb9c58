// Converts between Beast's messages and ours: request headers in, response headers out.
#ifndef MILLRACE_SERVER_HTTP_TRANSPORT_WIRE_H_
#define MILLRACE_SERVER_HTTP_TRANSPORT_WIRE_H_

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/api/http_message.h"

namespace millrace {

using HttpHeader = boost::beast::http::request_header<boost::beast::http::fields>;

// Reads a request's header. An error: it has too many fields, or means different things to
// different readers (two Hosts, a Transfer-Encoding that is not chunked).
std::optional<ApiError> ReadHead(const HttpHeader& header, size_t max_fields,
                                 HttpRequestHead& head);

// Returns the error that a request which Beast could not parse gets.
ApiError MalformedError(const boost::beast::error_code& error);

// How a body's end is told.
enum class Framing { kLength, kChunked, kClose, kNone };

// Appends the first line and the header. `length`: of the body, with kLength. `more_lines`: further
// lines of the header, each with its line end.
void AppendResponseHead(std::string& out, const HttpResponse& response, std::string_view request_id,
                        Framing framing, size_t length, bool keep_alive,
                        std::string_view more_lines = {});

// Begin and end a chunk of Transfer-Encoding: chunked. The text appended between the two calls is
// its content; CloseChunk removes the chunk if there is none.
size_t OpenChunk(std::string& out);
void CloseChunk(std::string& out, size_t opened);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_TRANSPORT_WIRE_H_
