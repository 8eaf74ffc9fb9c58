#include "server/guard/frame_guard.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace millrace {

using http2::Bytes;
using http2::FrameHeader;

namespace {

constexpr uint32_t kMostSettings = 64;       // of one SETTINGS
constexpr uint32_t kMostGoAwayBytes = 4096;  // its debug data included
constexpr int kMostBlockFrames = 32;         // HEADERS and CONTINUATIONs of one block
constexpr uint32_t kSmallUpdate = 16;        // a WINDOW_UPDATE below this opens nothing of use
constexpr int64_t kSmallWindow = 4096;       // where less than this is open

}  // namespace

FrameGuard::FrameGuard(GuardShared& shared)
    : shared_(shared),
      limits_(shared.limits),
      resets_(limits_.resets),
      pings_(limits_.pings),
      settings_(limits_.settings),
      window_updates_(limits_.window_updates),
      idle_frames_(limits_.idle_frames) {}

FrameGuard::~FrameGuard() { shared_.streams -= streams_.size(); }

bool FrameGuard::Refuse(GuardReason reason, http2::ErrorCode code, std::string text) {
  if (!violation_) violation_ = {.reason = reason, .code = code, .text = std::move(text)};
  return false;
}

bool FrameGuard::Malformed(std::string text) {
  return Refuse(GuardReason::kProtocol, http2::kProtocolError, std::move(text));
}

bool FrameGuard::Spend(RateBudget& budget, SteadyTime now, GuardReason reason,
                       std::string_view text) {
  return budget.Spend(now) || Refuse(reason, http2::kEnhanceYourCalm, std::string(text));
}

// ---- From the client ----

size_t FrameGuard::FromClient(Bytes bytes, SteadyTime now) {
  size_t passed = 0;
  waiting_ = false;
  if (!preface_) {
    if (!OnPreface(bytes)) return 0;
    passed = http2::kPreface.size();
  }
  while (!violation_) {
    const Bytes rest = bytes.subspan(passed);
    if (client_left_ > 0) {
      const size_t some = std::min<size_t>(client_left_, rest.size());
      if (some == 0) break;
      OnMessageBytes(rest.first(some), now);
      client_left_ -= static_cast<uint32_t>(some);
      passed += some;
      if (client_left_ == 0 && stop_client_) break;
      continue;
    }
    if (stop_client_ || rest.size() < http2::kFrameHeaderBytes) break;
    const size_t some = ClientFrame(rest, now);
    if (some == 0) break;
    passed += some;
  }
  return passed;
}

bool FrameGuard::OnPreface(Bytes bytes) {
  const size_t have = std::min(bytes.size(), http2::kPreface.size());
  if (!std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(have),
                  http2::kPreface.begin(),
                  [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); })) {
    return Malformed("the connection does not begin with HTTP/2's preface");
  }
  return preface_ = have == http2::kPreface.size();
}

size_t FrameGuard::ClientFrame(Bytes bytes, SteadyTime now) {
  const FrameHeader header = http2::ReadFrameHeader(bytes.data());
  if (!greeted_ && (header.type != http2::kSettings || header.Has(http2::kAck))) {
    Malformed("the first frame is not SETTINGS");
    return 0;
  }
  if (!CheckSize(header)) return 0;
  switch (header.type) {
    case http2::kData:
      return OnData(header, bytes, now);
    case http2::kHeaders:
      return OnHeaders(header, bytes, now);
    case http2::kPushPromise:
      Malformed("a client must not send PUSH_PROMISE");
      return 0;
    case http2::kContinuation:
      Malformed("CONTINUATION without HEADERS before it");
      return 0;
    default:
      return OnControl(header, bytes, now);
  }
}

bool FrameGuard::CheckSize(const FrameHeader& header) {
  const auto refuse = [&] {
    return Refuse(GuardReason::kFrameSize, http2::kFrameSizeError,
                  StrCat("a frame of type ", int{header.type}, " has ", header.length, " bytes"));
  };
  if (header.length > max_frame_) return refuse();
  const bool zero = header.stream == 0;
  switch (header.type) {
    case http2::kData:
    case http2::kHeaders:
      return !zero || Malformed("DATA or HEADERS of stream 0");
    case http2::kPriority:
      if (header.length != 5) return refuse();
      return !zero || Malformed("PRIORITY of stream 0");
    case http2::kRstStream:
      if (header.length != 4) return refuse();
      return !zero || Malformed("RST_STREAM of stream 0");
    case http2::kSettings:
      if (header.length % 6 != 0 || header.length > kMostSettings * 6) return refuse();
      if (header.Has(http2::kAck) && header.length > 0) return refuse();
      return zero || Malformed("SETTINGS of a stream");
    case http2::kPing:
      if (header.length != 8) return refuse();
      return zero || Malformed("PING of a stream");
    case http2::kGoAway:
      if (header.length < 8 || header.length > kMostGoAwayBytes) return refuse();
      return zero || Malformed("GOAWAY of a stream");
    case http2::kWindowUpdate:
      return header.length == 4 || refuse();
    default:
      return true;
  }
}

size_t FrameGuard::OnHeaders(const FrameHeader& header, Bytes bytes, SteadyTime now) {
  // Finds the end of the block.
  size_t end = 0;
  Bytes whole;
  block_.clear();
  for (int frames = 1;; ++frames) {
    const Bytes rest = bytes.subspan(end);
    if (rest.size() < http2::kFrameHeaderBytes) break;
    const FrameHeader part = http2::ReadFrameHeader(rest.data());
    if (frames > 1 && (part.type != http2::kContinuation || part.stream != header.stream)) {
      Malformed("a header block is interrupted by another frame");
      return 0;
    }
    const size_t size = http2::kFrameHeaderBytes + part.length;
    if (part.length > max_frame_) {
      Refuse(GuardReason::kFrameSize, http2::kFrameSizeError, "a CONTINUATION is too large");
      return 0;
    }
    if (end + size > limits_.header_block_bytes || frames > kMostBlockFrames) {
      Refuse(GuardReason::kHeaderBytes, http2::kEnhanceYourCalm,
             StrCat("a header block is too large; allowed: ", limits_.header_block_bytes,
                    " bytes, in at most ", kMostBlockFrames, " frames"));
      return 0;
    }
    if (rest.size() < size) break;
    Bytes payload = rest.subspan(http2::kFrameHeaderBytes, part.length);
    if (frames == 1) {
      const size_t padded = part.Has(http2::kPadded) ? 1 : 0;
      const size_t before = padded + (part.Has(http2::kHasPriority) ? 5 : 0);
      const size_t after = padded == 1 && !payload.empty() ? payload[0] : 0;
      if (before + after > payload.size()) {
        Malformed("the padding of HEADERS is longer than the frame");
        return 0;
      }
      payload = payload.subspan(before, payload.size() - before - after);
    }
    end += size;
    const bool last = part.Has(http2::kEndHeaders);
    if (last && frames == 1) {
      whole = payload;
    } else {
      block_.append(payload.begin(), payload.end());
    }
    if (!last) continue;
    if (frames > 1) whole = {reinterpret_cast<const uint8_t*>(block_.data()), block_.size()};
    block_began_ = SteadyTime();
    return OnBlock(header, whole, now) ? end : 0;
  }
  if (block_began_ == SteadyTime()) block_began_ = now;
  return 0;
}

bool FrameGuard::OnBlock(const FrameHeader& header, Bytes block, SteadyTime now) {
  const auto stream = streams_.find(header.stream);
  const bool opens = header.stream > last_stream_;
  if (opens && header.stream % 2 == 0) return Malformed("a client's stream has an even number");
  if (!opens && stream != streams_.end() && !header.Has(http2::kEndStream)) {
    return Malformed("second HEADERS of a stream without END_STREAM");
  }
  // Trailers of a stream that the server has ended meanwhile.
  if (!opens && stream == streams_.end() &&
      !Spend(idle_frames_, now, GuardReason::kIdleFrames, "too many HEADERS of closed streams")) {
    return false;
  }
  const std::optional<uint64_t> size = sizes_.Add(block, limits_.header_list_bytes);
  if (!size) return Malformed("a header block is not valid HPACK");
  if (*size > limits_.header_list_bytes) {
    return Refuse(GuardReason::kHeaderBytes, http2::kEnhanceYourCalm,
                  StrCat("the fields of a header block are too large; allowed: ",
                         limits_.header_list_bytes, " bytes"));
  }
  if (opens && !OpenStream(header.stream, now)) return false;
  if (!header.Has(http2::kEndStream)) return true;
  if (const auto it = streams_.find(header.stream); it != streams_.end()) {
    it->second.client_done = true;
    EndMessage(it->second);
  }
  return true;
}

bool FrameGuard::OpenStream(uint32_t id, SteadyTime now) {
  if (streams_.size() >= limits_.streams) {
    return Refuse(GuardReason::kStreams, http2::kEnhanceYourCalm,
                  StrCat("too many streams at once; allowed: ", limits_.streams));
  }
  last_stream_ = id;
  Stream& stream = streams_[id];
  stream.window = initial_window_;
  stream.upload_window = initial_upload_window_;
  stream.message_began = now;
  ++shared_.streams;
  return true;
}

size_t FrameGuard::OnData(const FrameHeader& header, Bytes bytes, SteadyTime now) {
  size_t pad = 0;
  size_t head = http2::kFrameHeaderBytes;
  if (header.Has(http2::kPadded)) {
    if (bytes.size() < head + 1) return 0;
    pad = bytes[head++];
    if (pad + 1 > header.length) {
      Malformed("the padding of DATA is longer than the frame");
      return 0;
    }
  }
  if (header.stream > last_stream_) {
    Malformed("DATA of a stream that was not opened");
    return 0;
  }
  const auto found = streams_.find(header.stream);
  Stream* const stream = found == streams_.end() ? nullptr : &found->second;
  const bool ends = header.Has(http2::kEndStream);
  const uint32_t left = header.length - static_cast<uint32_t>(head - http2::kFrameHeaderBytes);
  if (stream == nullptr) {
    if (!Spend(closed_data_, now, GuardReason::kIdleFrames, "too much DATA of closed streams")) {
      return 0;
    }
  } else if (stream->client_done) {
    Malformed("DATA after END_STREAM");
    return 0;
  }
  if (left == pad && !(ends && stream != nullptr) &&
      !Spend(idle_frames_, now, GuardReason::kIdleFrames, "too many empty DATA frames")) {
    return 0;
  }
  upload_window_ -= header.length;
  if (stream != nullptr) stream->upload_window -= header.length;
  data_stream_ = stream == nullptr ? 0 : header.stream;
  client_left_ = left;
  pad_left_ = static_cast<uint32_t>(pad);
  data_ends_ = ends;
  if (stream != nullptr && ends) {
    stream->client_done = true;
    if (left == 0) EndMessage(*stream);
  }
  return head;
}

size_t FrameGuard::OnControl(const FrameHeader& header, Bytes bytes, SteadyTime now) {
  const size_t size = http2::kFrameHeaderBytes + header.length;
  if (header.type > http2::kContinuation) {  // an extension: it passes as it comes
    if (!Spend(idle_frames_, now, GuardReason::kIdleFrames, "too many frames of unknown types")) {
      return 0;
    }
    data_stream_ = 0;
    client_left_ = header.length;
    return http2::kFrameHeaderBytes;
  }
  if (bytes.size() < size) return 0;
  const Bytes payload = bytes.subspan(http2::kFrameHeaderBytes, header.length);
  bool passes = false;
  switch (header.type) {
    case http2::kRstStream:
      passes = OnRstStream(header.stream, now);
      break;
    case http2::kSettings:
      passes = OnSettings(header, payload, now);
      break;
    case http2::kPing:
      passes = OnPing(header, now);
      break;
    case http2::kWindowUpdate:
      passes = OnWindowUpdate(header.stream, http2::Read32(payload.data()) & 0x7fffffff, now);
      break;
    default:  // PRIORITY, GOAWAY
      passes = Spend(idle_frames_, now, GuardReason::kIdleFrames, "too many PRIORITY frames");
  }
  return passes ? size : 0;
}

bool FrameGuard::OnRstStream(uint32_t stream, SteadyTime now) {
  if (stream > last_stream_) return Malformed("RST_STREAM of a stream that was not opened");
  if (!Spend(resets_, now, GuardReason::kResets,
             StrCat("too many streams were reset; allowed: ", limits_.resets.burst, ", and ",
                    limits_.resets.per_second, " more each second"))) {
    return false;
  }
  if (!shared_.resets.Spend(now)) {
    resets_.Earn(1);  // it comes again
    waiting_ = true;
    return false;
  }
  CloseStream(stream);
  return true;
}

bool FrameGuard::OnSettings(const FrameHeader& header, Bytes payload, SteadyTime now) {
  if (header.Has(http2::kAck)) {
    if (server_settings_ > 0) {
      --server_settings_;
      return true;
    }
    return Spend(idle_frames_, now, GuardReason::kSettings, "too many SETTINGS acknowledgements");
  }
  if (client_settings_ >= limits_.unanswered_frames) {
    waiting_ = true;
    return false;
  }
  if (!Spend(settings_, now, GuardReason::kSettings, "too many SETTINGS frames")) return false;
  for (; !payload.empty(); payload = payload.subspan(6)) {
    const uint32_t value = http2::Read32(payload.data() + 2);
    switch (http2::Read16(payload.data())) {
      case http2::kEnablePush:
        if (value > 1) return Malformed("ENABLE_PUSH is neither 0 nor 1");
        break;
      case http2::kInitialWindowSize: {
        if (value > http2::kLargestWindow) return Malformed("INITIAL_WINDOW_SIZE is too large");
        const int64_t more = int64_t{value} - std::exchange(initial_window_, value);
        for (auto& [id, stream] : streams_) stream.window += more;
        break;
      }
      case http2::kMaxFrameSize:
        if (value < 16384 || value > 0xffffff) return Malformed("MAX_FRAME_SIZE is out of range");
        break;
      default:
        break;
    }
  }
  ++client_settings_;
  greeted_ = true;
  return true;
}

bool FrameGuard::OnPing(const FrameHeader& header, SteadyTime now) {
  if (header.Has(http2::kAck)) {
    if (server_pings_ > 0) {
      --server_pings_;
      return true;
    }
    return Spend(idle_frames_, now, GuardReason::kPings, "too many PING acknowledgements");
  }
  if (client_pings_ >= limits_.unanswered_frames) {
    waiting_ = true;
    return false;
  }
  // gRPC's clients know this text and ping less often then.
  if (!Spend(pings_, now, GuardReason::kPings, "too_many_pings")) return false;
  ++client_pings_;
  return true;
}

bool FrameGuard::OnWindowUpdate(uint32_t id, uint32_t bytes, SteadyTime now) {
  if (bytes == 0) return Malformed("WINDOW_UPDATE of 0 bytes");
  if (id > last_stream_) return Malformed("WINDOW_UPDATE of a stream that was not opened");
  if (!Spend(window_updates_, now, GuardReason::kWindowUpdates, "too many WINDOW_UPDATE frames")) {
    return false;
  }
  int64_t* window = &window_;
  if (id == 0) {
    blocked_ = SteadyTime();
  } else {
    const auto stream = streams_.find(id);
    if (stream == streams_.end()) return true;
    stream->second.blocked = SteadyTime();
    window = &stream->second.window;
  }
  // Where little is open it costs the server a DATA frame that carries next to nothing. Elsewhere
  // it costs nothing: gRPC's own clients give back the bytes of each short message.
  if (bytes < kSmallUpdate && *window < kSmallWindow &&
      !Spend(idle_frames_, now, GuardReason::kWindowUpdates,
             "too many small WINDOW_UPDATE frames")) {
    return false;
  }
  *window += bytes;
  return *window <= http2::kLargestWindow || Malformed("a window is larger than 2^31 - 1 bytes");
}

}  // namespace millrace
