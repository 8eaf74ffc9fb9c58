// FrameGuard's other half: messages inside DATA, what the server sends, and times.
#include <algorithm>
#include <utility>

#include "server/guard/frame_guard.h"

namespace millrace {

using http2::Bytes;
using http2::FrameHeader;

namespace {

bool Came(SteadyTime time) { return time != SteadyTime(); }

}  // namespace

// ---- Messages ----

void FrameGuard::OnMessageBytes(Bytes bytes, SteadyTime now) {
  if (data_stream_ == 0) return;
  const auto found = streams_.find(data_stream_);
  if (found == streams_.end()) return;  // it ended meanwhile
  Stream& stream = found->second;
  const bool last = bytes.size() == client_left_;
  // The last pad_left_ bytes of the frame's remainder are padding.
  size_t some = bytes.size();
  const size_t content = client_left_ - std::min(client_left_, pad_left_);
  some = std::min(some, content);
  bytes = bytes.first(some);
  while (!bytes.empty()) {
    if (stream.prefix_bytes < 5) {  // a flag, and the length in four bytes
      if (stream.prefix_bytes == 0) {
        stream.had_message = true;
        stream.message_began = now;
        stream.message_left = 0;
        stream.message_bytes = 0;
      } else {
        stream.message_left = stream.message_left << 8 | bytes[0];
      }
      ++stream.prefix_bytes;
      bytes = bytes.subspan(1);
    } else {
      const size_t part = std::min<size_t>(bytes.size(), stream.message_left);
      stream.message_left -= static_cast<uint32_t>(part);
      stream.message_bytes += part;
      bytes = bytes.subspan(part);
    }
    if (stream.prefix_bytes == 5 && stream.message_left == 0) EndMessage(stream);
  }
  if (last && data_ends_) return EndMessage(stream);
  if (stream.prefix_bytes == 0) return;
  if (stream.charge == nullptr) {
    stream.charge = std::make_unique<BodyBudget::Body>(shared_.messages);
  }
  const uint64_t uncharged =
      stream.message_bytes - std::min(stream.message_bytes, stream.charge->bytes());
  if (!stream.charge->Charge(uncharged, now)) {
    ResetStream(data_stream_, stream, GuardReason::kMessageBytes, http2::kEnhanceYourCalm);
  }
}

void FrameGuard::EndMessage(Stream& stream) {
  stream.prefix_bytes = 0;
  stream.message_left = 0;
  stream.message_bytes = 0;
  stream.charge.reset();
}

// A call begins with a message, but for one that the server answers before it has come. Behind the
// first one there may be no other, or one that comes whenever the client has something to say.
bool FrameGuard::AwaitsMessage(const Stream& stream) {
  if (stream.prefix_bytes > 0) return true;
  return !stream.had_message && !stream.client_done && !stream.answering;
}

void FrameGuard::CheckMessage(uint32_t id, Stream& stream, SteadyTime now) {
  if (stream.charge != nullptr && stream.charge->evicted()) {
    return ResetStream(id, stream, GuardReason::kMessageBytes, http2::kEnhanceYourCalm);
  }
  if (!AwaitsMessage(stream)) return;
  // Where the server has no window open, the client is not to blame.
  if (stream.upload_window <= 0 || upload_window_ <= 0) {
    if (!stream.had_message) stream.message_began = now;
    return;
  }
  const Duration late = now - stream.message_began - limits_.message_grace;
  if (static_cast<double>(stream.message_bytes) <
      ToSeconds(late) * limits_.message_bytes_per_second) {
    ResetStream(id, stream, GuardReason::kMessageRate, http2::kCancel);
  }
}

// ---- From the server ----

size_t FrameGuard::FromServer(Bytes bytes, SteadyTime /*now*/) {
  size_t passed = 0;
  while (true) {
    const Bytes rest = bytes.subspan(passed);
    if (server_left_ > 0) {
      const size_t some = std::min<size_t>(server_left_, rest.size());
      if (some == 0) break;
      server_left_ -= static_cast<uint32_t>(some);
      passed += some;
      continue;
    }
    if (stop_server_ && !server_in_headers_) break;
    if (rest.size() < http2::kFrameHeaderBytes) break;
    const size_t some = ServerFrame(rest);
    if (some == 0) break;
    passed += some;
  }
  return passed;
}

size_t FrameGuard::ServerFrame(Bytes bytes) {
  const FrameHeader header = http2::ReadFrameHeader(bytes.data());
  const size_t size = http2::kFrameHeaderBytes + header.length;
  switch (header.type) {
    case http2::kData: {
      window_ -= header.length;
      pings_.Earn(1);
      window_updates_.Earn(4);
      const auto stream = streams_.find(header.stream);
      if (stream != streams_.end()) stream->second.window -= header.length;
      break;
    }
    case http2::kHeaders: {
      pings_.Earn(1);
      const auto stream = streams_.find(header.stream);
      if (stream != streams_.end()) stream->second.answering = true;
      server_in_headers_ = !header.Has(http2::kEndHeaders);
      break;
    }
    case http2::kContinuation:
      server_in_headers_ = !header.Has(http2::kEndHeaders);
      break;
    case http2::kSettings: {
      if (bytes.size() < size) return 0;
      if (header.Has(http2::kAck)) {
        client_settings_ = std::max(client_settings_ - 1, 0);
        return size;
      }
      ++server_settings_;
      OnServerSettings(bytes.subspan(http2::kFrameHeaderBytes, header.length));
      return size;
    }
    case http2::kWindowUpdate: {
      if (bytes.size() < size) return 0;
      if (header.length < 4) return size;  // tells nothing
      const uint32_t more = http2::Read32(bytes.data() + http2::kFrameHeaderBytes) & 0x7fffffff;
      if (header.stream == 0) upload_window_ += more;
      const auto stream = streams_.find(header.stream);
      if (stream != streams_.end()) stream->second.upload_window += more;
      return size;
    }
    case http2::kPing:
      if (header.Has(http2::kAck)) {
        client_pings_ = std::max(client_pings_ - 1, 0);
      } else {
        ++server_pings_;
      }
      break;
    default:
      break;
  }
  const bool ends = header.type == http2::kRstStream ||
                    ((header.type == http2::kData || header.type == http2::kHeaders) &&
                     header.Has(http2::kEndStream));
  if (ends) {
    if (streams_.contains(header.stream)) resets_.Earn(1);
    CloseStream(header.stream);
  }
  server_left_ = header.length;
  return http2::kFrameHeaderBytes;
}

void FrameGuard::OnServerSettings(Bytes payload) {
  for (; payload.size() >= 6; payload = payload.subspan(6)) {
    const uint32_t value = http2::Read32(payload.data() + 2);
    switch (http2::Read16(payload.data())) {
      // A client goes by the old value until it has read this: the larger one holds.
      case http2::kMaxFrameSize:
        max_frame_ = std::max(max_frame_, value);
        break;
      case http2::kHeaderTableSize:
        sizes_.SetTableLimit(std::max(value, uint32_t{4096}));
        break;
      case http2::kInitialWindowSize: {
        const int64_t more = int64_t{value} - std::exchange(initial_upload_window_, value);
        for (auto& [id, stream] : streams_) stream.upload_window += more;
        break;
      }
      default:
        break;
    }
  }
}

// ---- Streams and times ----

void FrameGuard::CloseStream(uint32_t id) { shared_.streams -= streams_.erase(id); }

void FrameGuard::ResetStream(uint32_t id, Stream& stream, GuardReason reason,
                             http2::ErrorCode code) {
  if (std::exchange(stream.resetting, true)) return;
  resets_to_send_.push_back({.stream = id, .reason = reason, .code = code});
}

std::vector<FrameGuard::Reset> FrameGuard::TakeResets() {
  for (const Reset& reset : resets_to_send_) CloseStream(reset.stream);
  return std::exchange(resets_to_send_, {});
}

void FrameGuard::CheckTimes(SteadyTime now) {
  if (Came(block_began_) && now - block_began_ > limits_.header_timeout) {
    Refuse(GuardReason::kHeaderTimeout, http2::kEnhanceYourCalm,
           "a header block did not come in time");
    return;
  }
  bool answering = false;
  for (auto& [id, stream] : streams_) {
    CheckMessage(id, stream, now);
    answering = answering || stream.answering;
    if (!stream.answering || stream.window > 0) continue;
    if (!Came(stream.blocked)) stream.blocked = now;
    if (now - stream.blocked > limits_.write_timeout) {
      ResetStream(id, stream, GuardReason::kWriteTimeout, http2::kCancel);
    }
  }
  if (window_ > 0 || !answering) {
    blocked_ = SteadyTime();
    return;
  }
  if (!Came(blocked_)) blocked_ = now;
  if (now - blocked_ > limits_.write_timeout) {
    Refuse(GuardReason::kWriteTimeout, http2::kEnhanceYourCalm,
           "the connection's window was not opened in time");
  }
}

}  // namespace millrace
