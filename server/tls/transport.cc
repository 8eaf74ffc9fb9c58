#include "server/tls/transport.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include "server/tls/proxy_header.h"

namespace millrace {

namespace {

namespace net = boost::asio;

// A client that means it has answered the server's part of the handshake by then.
constexpr std::chrono::seconds kPromptHandshake(1);

AddressBytes BytesOf(const net::ip::address& address) {
  return address.is_v6() ? address.to_v6().to_bytes()
                         : net::ip::make_address_v6(net::ip::v4_mapped, address.to_v4()).to_bytes();
}

}  // namespace

bool TransportRules::IsProxy(const net::ip::address& address) const {
  if (proxies.empty()) return false;
  const AddressBytes bytes = BytesOf(address);
  return std::any_of(proxies.begin(), proxies.end(),
                     [&](const AddressRange& range) { return range.Contains(bytes); });
}

Transport::Transport(Socket socket, const TransportRules& rules, TlsProtocol protocol)
    : socket_(std::move(socket)), rules_(rules), protocol_(protocol) {
  error_code ignored;
  peer_ = socket_.remote_endpoint(ignored);
  awaits_header_ = rules.IsProxy(peer_.address());
  is_shaking_ = rules.tls != nullptr;
  direct_ = !is_beginning();
}

Transport::~Transport() { EndShaking(); }

void Transport::Start() {
  error_code ignored;  // a socket that is already dead shows it at the first read
  socket_.set_option(net::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  if (rules_.tls != nullptr) {
    session_.emplace(rules_.tls->context(), protocol_, native_handle(), rules_.tls->hellos());
  }
}

TransportFailure Transport::failure() const {
  if (has_bad_header_) return TransportFailure::kProxyHeader;
  return session_ ? session_->failure() : TransportFailure::kNone;
}

std::string_view Transport::failure_text() const {
  if (has_bad_header_) return "no PROXY header of version 2 came";
  return session_ ? std::string_view(session_->failure_text()) : std::string_view();
}

std::string_view Transport::client_name() const {
  return session_ ? std::string_view(session_->client_name()) : std::string_view();
}

std::shared_ptr<const std::vector<std::string>> Transport::client_identities() const {
  return session_ ? session_->client_identities() : nullptr;
}

size_t Transport::ReadIndirect(net::mutable_buffer buffer, error_code& error) {
  if (is_beginning()) {
    error = net::error::would_block;
    return 0;
  }
  if (session_ && session_->established()) {
    return session_->Read(buffer.data(), buffer.size(), error);
  }
  direct_ = true;
  error = net::error::connection_aborted;
  return 0;
}

size_t Transport::WriteTls(net::const_buffer buffer, error_code& error) {
  if (session_ && !is_shaking_ && session_->established()) {
    return session_->Write(buffer.data(), buffer.size(), error);
  }
  error = net::error::connection_aborted;
  return 0;
}

void Transport::WaitIndirect(Handler handler) {
  if (awaits_header_) {
    return socket_.async_wait(wait_read,
                              [this, handler = std::move(handler)](const error_code& error) {
                                if (!error) ReadHeader();
                                handler(error);
                              });
  }
  // A beginning that failed is for the next read to say.
  if (failure() != TransportFailure::kNone || session_->has_more()) {
    return net::post(socket_.get_executor(),
                     [handler = std::move(handler)] { handler(error_code()); });
  }
  const auto what = session_->wants_write() ? wait_write : wait_read;
  socket_.async_wait(what, [this, handler = std::move(handler)](const error_code& error) mutable {
    if (error || !is_shaking_) return handler(error);
    if (session_->TakeHello() && BeginShaking()) return Step(std::move(handler));
    is_shaking_ = session_->failure() == TransportFailure::kNone;
    handler(error);
  });
}

// Reads no byte of what follows the header.
void Transport::ReadHeader() {
  while (true) {
    const ProxyHeader header = ReadProxyHeader(header_);
    if (header.state == ProxyHeader::State::kIncomplete) {
      const size_t had = header_.size();
      header_.resize(header.size);
      error_code error;
      const size_t read =
          socket_.read_some(net::buffer(header_.data() + had, header_.size() - had), error);
      header_.resize(had + read);
      if (error == net::error::would_block) return;
      if (!error) continue;
      session_.reset();  // the client is gone, as the next read says
      direct_ = true;
    } else if (header.state == ProxyHeader::State::kBad) {
      session_.reset();
      has_bad_header_ = true;
    } else {
      is_proxied_ = header.source.has_value();
      if (is_proxied_) peer_ = *header.source;
      direct_ = !session_;
    }
    is_shaking_ = session_.has_value();
    awaits_header_ = false;
    header_ = std::vector<uint8_t>();
    return;
  }
}

bool Transport::BeginShaking() {
  if (counted_) return true;
  counted_since_ = Clock::Real().Now();
  if (rules_.tls->BeginHandshake(session_->hello_size())) {
    counted_ = session_->hello_size();
  } else {
    session_->Refuse("too many handshakes are under way");
  }
  return counted_.has_value();
}

void Transport::EndShaking() {
  if (counted_) rules_.tls->EndHandshake(*std::exchange(counted_, std::nullopt));
}

bool Transport::gives_way(SteadyTime now) const {
  if (!is_shaking_ || stepping_ || !session_) return false;
  if (session_->gave_way()) return true;
  return counted_ && rules_.tls->crowded() && now - counted_since_ > kPromptHandshake;
}

// A handshake takes a millisecond of computing: too long for a thread that streams tokens.
void Transport::Step(Handler handler) {
  stepping_ = true;
  net::post(
      rules_.tls->handshakes(), [this, handler = std::move(handler),
                                 context = net::make_work_guard(socket_.get_executor())]() mutable {
        session_->Handshake();
        const auto executor = context.get_executor();
        net::post(executor, [this, handler = std::move(handler)] {
          stepping_ = false;
          is_shaking_ = !session_->established() && session_->failure() == TransportFailure::kNone;
          if (!is_shaking_) EndShaking();
          error_code ignored;
          if (closed_) socket_.close(ignored);
          handler(error_code());
        });
      });
}

void Transport::shutdown(Socket::shutdown_type what, error_code& error) {
  if (!direct_ && !is_beginning() && session_ && session_->established())
    session_->SendCloseNotify();
  direct_ = true;
  socket_.shutdown(what, error);
}

// The number of a closed socket may be another one's at once: while a handshake has it, it stays.
void Transport::close(error_code& error) {
  closed_ = true;
  if (!stepping_) {
    socket_.close(error);
  } else {
    socket_.shutdown(Socket::shutdown_both, error);
  }
}

}  // namespace millrace
