// Reads one HTTP response, piece for piece.
#ifndef MILLRACE_LOADTEST_HTTP_RESPONSE_H_
#define MILLRACE_LOADTEST_HTTP_RESPONSE_H_

#include <boost/beast/http/basic_parser.hpp>
#include <string>
#include <string_view>

#include "base/strings.h"

namespace millrace {

// Hands each piece of the body to `Sink` as it comes, without keeping it. Sink(std::string_view)
// returns whether it wants more.
template <typename Sink>
class HttpResponseReader : public boost::beast::http::basic_parser<false> {
 public:
  explicit HttpResponseReader(Sink sink) : sink_(std::move(sink)) {
    eager(true);
    body_limit(boost::none);
    header_limit(64 << 10);
  }

  int status() const { return status_; }
  // Returns the media type in lower case, without parameters.
  const std::string& content_type() const { return content_type_; }

 private:
  using Error = boost::beast::error_code;
  using Text = boost::beast::string_view;
  template <typename T>
  using Optional = boost::optional<T>;

  void on_request_impl(boost::beast::http::verb, Text, Text, int, Error&) override {}
  void on_response_impl(int code, Text, int, Error&) override { status_ = code; }
  void on_field_impl(boost::beast::http::field name, Text, Text value, Error&) override {
    if (name != boost::beast::http::field::content_type) return;
    const std::string_view whole(value.data(), value.size());
    content_type_ = Trim(whole.substr(0, whole.find(';')));
    for (char& c : content_type_) c = absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  void on_header_impl(Error&) override {}
  void on_body_init_impl(const Optional<std::uint64_t>&, Error&) override {}
  std::size_t on_body_impl(Text body, Error& error) override { return Take(body, error); }
  void on_chunk_header_impl(std::uint64_t, Text, Error&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, Text body, Error& error) override {
    return Take(body, error);
  }
  void on_finish_impl(Error&) override {}

  std::size_t Take(Text body, Error& error) {
    if (!sink_(std::string_view(body.data(), body.size()))) {
      error = boost::beast::http::error::body_limit;
    }
    return body.size();
  }

  Sink sink_;
  int status_ = 0;
  std::string content_type_;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HTTP_RESPONSE_H_
