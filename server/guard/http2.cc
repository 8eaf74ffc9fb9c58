#include "server/guard/http2.h"

namespace millrace::http2 {
namespace {

void Append32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

}  // namespace

void AppendFrameHeader(std::string& out, const FrameHeader& header) {
  for (int shift = 16; shift >= 0; shift -= 8) {
    out += static_cast<char>(header.length >> shift & 0xff);
  }
  out += static_cast<char>(header.type);
  out += static_cast<char>(header.flags);
  Append32(out, header.stream);
}

void AppendGoAway(std::string& out, uint32_t last_stream, ErrorCode code, std::string_view reason) {
  AppendFrameHeader(out, {.length = static_cast<uint32_t>(8 + reason.size()), .type = kGoAway});
  Append32(out, last_stream);
  Append32(out, code);
  out += reason;
}

void AppendRstStream(std::string& out, uint32_t stream, ErrorCode code) {
  AppendFrameHeader(out, {.length = 4, .type = kRstStream, .stream = stream});
  Append32(out, code);
}

}  // namespace millrace::http2
