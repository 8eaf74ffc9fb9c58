#include "server/guard/refusals.h"

#include <string_view>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kSpeaksHttp2 =
    "This port speaks gRPC, which is HTTP/2. HTTP/1.1 is served on another port (--http-port).";
constexpr std::string_view kSpeaksTls = "This port speaks TLS.";

std::string BadRequest(std::string_view text) {
  return StrCat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n",
                "Content-Length: ", text.size() + 1, "\r\nConnection: close\r\n\r\n", text, "\n");
}

}  // namespace

bool LooksLikeHttp1(http2::Bytes bytes) {
  size_t letters = 0;
  while (letters < bytes.size() && bytes[letters] >= 'A' && bytes[letters] <= 'Z') ++letters;
  return letters >= 3 && letters <= 7 && letters + 1 < bytes.size() && bytes[letters] == ' ' &&
         bytes[letters + 1] == '/';
}

std::string Http1Refusal() { return BadRequest(kSpeaksHttp2); }

std::string NoProxyHeaderRefusal() {
  return BadRequest("Connections of --trusted-proxies begin with a PROXY header of version 2.");
}

std::string PlaintextRefusal() { return BadRequest(kSpeaksTls); }

}  // namespace millrace
