// HTTP/2 on the wire (RFC 9113): frame headers, their constants, and the frames that the guard
// itself sends.
#ifndef MILLRACE_SERVER_GUARD_HTTP2_H_
#define MILLRACE_SERVER_GUARD_HTTP2_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace::http2 {

using Bytes = std::span<const uint8_t>;

inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr size_t kFrameHeaderBytes = 9;
inline constexpr int64_t kLargestWindow = 0x7fffffff;

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

constexpr uint32_t kLargestStream = 0x7fffffff;

enum Flag : uint8_t {
  kAck = 0x1,        // of SETTINGS and PING
  kEndStream = 0x1,  // of DATA and HEADERS
  kEndHeaders = 0x4,
  kPadded = 0x8,
  kHasPriority = 0x20,
};

enum Setting : uint16_t {
  kHeaderTableSize = 1,
  kEnablePush = 2,
  kInitialWindowSize = 4,
  kMaxFrameSize = 5,
};

enum ErrorCode : uint32_t {
  kNoError = 0,
  kProtocolError = 1,
  kFrameSizeError = 6,
  kRefusedStream = 7,
  kCancel = 8,
  kEnhanceYourCalm = 11,
};

inline uint16_t Read16(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }
inline uint32_t Read32(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}

struct FrameHeader {
  uint32_t length = 0;  // of the payload
  uint8_t type = 0;
  uint8_t flags = 0;
  uint32_t stream = 0;

  bool Has(Flag flag) const { return (flags & flag) != 0; }
};

// Reads the kFrameHeaderBytes at `at`.
inline FrameHeader ReadFrameHeader(const uint8_t* at) {
  return {.length = Read32(at) >> 8,
          .type = at[3],
          .flags = at[4],
          .stream = Read32(at + 5) & 0x7fffffff};
}

// Append a frame.
void AppendFrameHeader(std::string& out, const FrameHeader& header);
void AppendGoAway(std::string& out, uint32_t last_stream, ErrorCode code, std::string_view reason);
void AppendRstStream(std::string& out, uint32_t stream, ErrorCode code);

}  // namespace millrace::http2

#endif  // MILLRACE_SERVER_GUARD_HTTP2_H_
