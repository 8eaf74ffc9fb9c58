#include "loadtest/http_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "base/strings.h"
#include "loadtest/stream_chunk.h"

namespace millrace {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

constexpr size_t kReadSize = 4096;
constexpr size_t kLargestHeader = 64 << 10;
constexpr size_t kLargestError = 64 << 10;
// An error shows so much of a malformed response. Whoever prints it escapes it.
constexpr size_t kShownBytes = 200;
// The receive buffer of a slow reader. It must be set before the connection stands.
constexpr int kSlowBuffer = 4096;

std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

HttpConnection::HttpConnection(HttpLoadClient& client)
    : client_(client),
      socket_(client.io_, client.tls_),
      sse_([this](std::string_view data) { TakeEvent(data); }) {}

bool HttpConnection::IsStale() {
  Error error;
  char byte;
  socket_.tcp().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
  return error != asio::error::would_block;
}

void HttpConnection::Start(std::unique_ptr<Exchange> exchange, std::string bytes) {
  exchange_ = std::move(exchange);
  out_ = std::move(bytes);
  is_written_ = has_response_ = is_done_ = has_finish_ = false;
  filled_ = 0;
  other_body_.clear();
  stream_error_.clear();
  sse_.Reset();
  reader_.emplace(BodySink{this});
  usage_tokens_ = 0;
  client_.Started(this);
  if (client_.driver_.options().deadline > 0) StartDeadline();
  if (socket_.tcp().is_open()) {
    Write();
  } else {
    Connect(0);
  }
}

void HttpConnection::StartDeadline() {
  const double left =
      exchange_->record.intended + client_.driver_.options().deadline - client_.driver_.Now();
  deadline_.emplace(client_.io_, Nanoseconds(std::max(left, 0.0)));
  deadline_->async_wait([self = shared_from_this(), of = exchange_.get()](const Error& error) {
    // The connection may serve another exchange by now.
    if (!error && self->exchange_ && self->exchange_.get() == of) self->Abort(Outcome::kDeadline);
  });
}

void HttpConnection::Connect(size_t endpoint) {
  Error error;
  const tcp::endpoint& to = client_.endpoints_[endpoint];
  socket_.tcp().open(to.protocol(), error);
  if (error) {
    // The driver must not hear of it before Start has returned.
    asio::post(client_.io_, [self = shared_from_this(), error] {
      if (self->exchange_) self->Fail(StrCat("cannot open a socket: ", error.message()));
    });
    return;
  }
  Error ignored;
  socket_.tcp().non_blocking(true, ignored);
  socket_.tcp().set_option(tcp::no_delay(true), ignored);
  if (exchange_->request.slow) {
    socket_.tcp().set_option(asio::socket_base::receive_buffer_size(kSlowBuffer), ignored);
  }
  socket_.async_connect(to, [self = shared_from_this(), endpoint](const Error& failed) {
    if (!self->exchange_) return;
    if (!failed) return self->Write();
    Error closed;
    self->socket_.tcp().close(closed);
    if (endpoint + 1 < self->client_.endpoints_.size()) return self->Connect(endpoint + 1);
    self->Fail(StrCat("cannot connect: ", failed.message()));
  });
}

void HttpConnection::Write() {
  // An error shows when the response is read: the server may have answered before it closed.
  socket_.async_write(asio::buffer(out_), [self = shared_from_this()](const Error& error, size_t) {
    self->is_written_ = !error;
  });
  Read();
}

void HttpConnection::Read() {
  if (in_.size() < filled_ + kReadSize) in_.resize(filled_ + kReadSize);
  const size_t most = exchange_->request.slow
                          ? static_cast<size_t>(client_.driver_.options().slow_rate) / 10 + 1
                          : in_.size() - filled_;
  socket_.async_read_some(asio::buffer(in_.data() + filled_, std::min(most, in_.size() - filled_)),
                          [self = shared_from_this()](const Error& error, size_t bytes) {
                            if (self->exchange_) self->TakeRead(error, bytes);
                          });
}

void HttpConnection::TakeRead(const Error& error, size_t bytes) {
  if (error) return LostConnection(error);
  has_response_ = true;
  filled_ += bytes;
  events_ = 0;
  std::string wrong = Parse();
  const double now = client_.driver_.Now();
  if (events_ > 0) Count(now);
  if (!wrong.empty()) return Fail(std::move(wrong));
  if (reader_->is_done()) return EndOfResponse();
  const int64_t cancel_after = exchange_->request.cancel_after;
  if (cancel_after > 0 && exchange_->meter.tokens() >= cancel_after) {
    return Abort(Outcome::kCancelled);
  }
  ReadMore(bytes);
}

std::string HttpConnection::Parse() {
  size_t taken = 0;
  while (taken < filled_ && !reader_->is_done()) {
    Error error;
    const size_t used =
        reader_->put(asio::const_buffer(in_.data() + taken, filled_ - taken), error);
    taken += used;
    if (error == boost::beast::http::error::need_more) break;
    if (error) {
      return error == boost::beast::http::error::body_limit
                 ? "the server sent an event, or an error, that is too long"
                 : StrCat("the server's response is not HTTP: ", error.message());
    }
  }
  filled_ -= taken;
  if (filled_ > 0 && taken > 0) in_.erase(0, taken);
  return filled_ > kLargestHeader ? "the server's response is not HTTP: a line is too long" : "";
}

bool HttpConnection::TakeBody(std::string_view bytes) {
  if (reader_->status() == 200 && reader_->content_type() == "text/event-stream") {
    return sse_.Feed(bytes);
  }
  other_body_ += bytes;
  return other_body_.size() <= kLargestError;
}

void HttpConnection::TakeEvent(std::string_view data) {
  ThreadProgress::Add(client_.driver_.progress().events, 1);
  if (data == "[DONE]") {
    is_done_ = true;
    return;
  }
  StreamChunk chunk;
  std::string* const text = exchange_->keep_text ? &exchange_->record.text : nullptr;
  if (!ReadStreamChunk(data, chunk, text, exchange_->Thoughts())) {
    stream_error_ = StrCat("an event is not JSON: ", data.substr(0, kShownBytes));
    return;
  }
  has_finish_ |= chunk.has_finish;
  if (chunk.has_error) {
    stream_error_ = chunk.error.empty() ? "an error without a message" : std::move(chunk.error);
  }
  if (chunk.prompt_tokens) exchange_->record.prompt_tokens = *chunk.prompt_tokens;
  if (chunk.cached_tokens) exchange_->record.cached_tokens = *chunk.cached_tokens;
  if (!chunk.cached_by_tier.empty()) {
    exchange_->record.cached_by_tier = std::move(chunk.cached_by_tier);
  }
  const bool is_continuous = client_.driver_.options().usage == UsageReports::kContinuous;
  if (is_continuous && chunk.completion_tokens) {
    events_ += std::max<int64_t>(0, *chunk.completion_tokens - usage_tokens_);
    usage_tokens_ = std::max(usage_tokens_, *chunk.completion_tokens);
  } else if (chunk.has_text) {
    ++events_;
  }
  if (!chunk.completion_tokens) return;
  exchange_->counted_tokens = *chunk.completion_tokens;
  // An answer of special tokens alone has no text: they came, at the latest, when they were
  // counted.
  if (events_ == 0 && exchange_->meter.tokens() == 0) events_ = *chunk.completion_tokens;
}

void HttpConnection::Count(double now) {
  const bool is_first = exchange_->meter.tokens() == 0;
  exchange_->meter.Arrive(now, events_);
  ThreadProgress& progress = client_.driver_.progress();
  ThreadProgress::Add(progress.tokens, events_);
  if (!is_first) return;
  ThreadProgress::Add(progress.first_tokens, 1);
  ThreadProgress::Add(progress.ttft_us,
                      static_cast<int64_t>((now - exchange_->record.intended) * 1e6));
}

void HttpConnection::ReadMore(size_t bytes) {
  if (!exchange_->request.slow) return Read();
  const double pause = static_cast<double>(bytes) / client_.driver_.options().slow_rate;
  pace_.emplace(client_.io_, Nanoseconds(pause));
  pace_->async_wait([self = shared_from_this()](const Error& error) {
    if (!error && self->exchange_) self->Read();
  });
}

void HttpConnection::EndOfResponse() {
  if (reader_->status() != 200) {
    return End(Outcome::kFailed, BodyError(), reader_->keep_alive());
  }
  if (reader_->content_type() != "text/event-stream") {
    return Fail(StrCat("the server answered with ", reader_->content_type(),
                       " in place of a stream: ", other_body_.substr(0, kShownBytes)));
  }
  if (!stream_error_.empty()) return Fail(std::move(stream_error_));
  if (!is_done_ && !has_finish_) return Fail("the stream ended without [DONE]");
  End(Outcome::kCompleted, "", reader_->keep_alive() && filled_ == 0);
}

std::string HttpConnection::BodyError() const {
  StreamChunk chunk;
  const bool is_json = ReadStreamChunk(other_body_, chunk, nullptr, nullptr);
  return StrCat("HTTP ", reader_->status(), ": ",
                is_json && chunk.has_error ? chunk.error : other_body_.substr(0, kShownBytes));
}

void HttpConnection::LostConnection(const Error& error) {
  if (error == asio::error::eof && has_response_) {
    Error ended;
    reader_->put_eof(ended);
    if (!ended && reader_->is_done()) return EndOfResponse();
  }
  if (!has_response_ && has_served_ && SendAgain()) return;
  Fail(StrCat(has_response_ ? "the connection ended within the response: "
                            : "the connection ended before a response: ",
              error.message()));
}

// A server may close an idle connection just when it is used again: that is no failure of the
// request, which goes out on a new connection once.
bool HttpConnection::SendAgain() {
  has_served_ = false;
  Error ignored;
  socket_.tcp().close(ignored);
  is_written_ = false;
  filled_ = 0;
  Connect(0);
  return true;
}

void HttpConnection::Abort(Outcome outcome) { End(outcome, "", false); }

void HttpConnection::Fail(std::string error) { End(Outcome::kFailed, std::move(error), false); }

void HttpConnection::End(Outcome outcome, std::string error, bool is_reusable) {
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  if (deadline_) deadline_->cancel();
  if (pace_) pace_->cancel();
  is_reusable = is_reusable && is_written_ && !exchange_->request.slow;
  if (!is_reusable) {
    Error ignored;
    socket_.tcp().close(ignored);
  }
  has_served_ = true;
  std::unique_ptr<Exchange> exchange = std::move(exchange_);
  exchange->record.outcome = outcome;
  exchange->record.error = std::move(error);
  exchange->record.end = client_.driver_.Now();
  client_.Ended(self, std::move(exchange), is_reusable);
}

}  // namespace millrace
