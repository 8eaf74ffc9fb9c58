// JSON by appending: an answer is put together from few pieces, and a stream's chunks thousands of
// times a second.
#ifndef MILLRACE_SERVER_HTTP_JSON_JSON_WRITER_H_
#define MILLRACE_SERVER_HTTP_JSON_JSON_WRITER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

// Appends a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string& out, std::string_view text);

void AppendJsonNumber(std::string& out, int64_t value);

// Appends the shortest digits that read back as the same float, which is finite.
void AppendJsonFloat(std::string& out, float value);

// Appends any float. JSON has no infinities and no NaN: the log-probability of an impossible token
// is written as -9999.0, as vLLM does.
void AppendJsonLogprob(std::string& out, float value);

// Appends a list: [1,2,3].
void AppendJsonNumbers(std::string& out, std::span<const int32_t> values);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_JSON_JSON_WRITER_H_
