#include "server/http/http_client_test_util.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "base/strings.h"
#include "server/tls/unread_test_util.h"

namespace millrace {

RawClient::RawClient(uint16_t port, int receive_buffer, const char* from)
    : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  const timeval timeout{.tv_sec = 20};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (receive_buffer > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (from != nullptr && (inet_pton(AF_INET, from, &address.sin_addr) != 1 ||
                          bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)) {
    Close();
    return;
  }
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Close();
}

bool RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(sent);
  }
  return true;
}

bool RawClient::Request(std::string_view method, std::string_view path, std::string_view body,
                        std::string_view headers) {
  std::string text = StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers);
  if (!body.empty()) {
    text += StrCat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  }
  return Send(StrCat(text, "\r\n", body));
}

bool RawClient::WaitUntilServerRead(size_t unread) const { return WaitUntilRead(fd_, unread); }

bool RawClient::Fill() {
  std::array<char, 65536> bytes;
  const ssize_t received = recv(fd_, bytes.data(), bytes.size(), 0);
  if (received > 0) buffer_.append(bytes.data(), received);
  return received > 0;
}

std::string RawClient::Take(size_t bytes) {
  while (buffer_.size() < bytes && Fill()) {
  }
  std::string taken = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  return taken;
}

std::string RawClient::TakeLine() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return "";
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

ClientResponse RawClient::ReadHeader() {
  ClientResponse response;
  const std::string first = TakeLine();
  if (first.size() < 12) return response;
  response.status = std::atoi(first.c_str() + 9);
  for (std::string line = TakeLine(); !line.empty(); line = TakeLine()) {
    const size_t colon = line.find(": ");
    response.headers[absl::AsciiStrToLower(line.substr(0, colon))] = line.substr(colon + 2);
  }
  return response;
}

ClientResponse RawClient::Read(bool head_request) {
  ClientResponse response = ReadHeader();
  if (head_request || response.status == 0 || response.status == 204 || response.status == 100) {
    return response;
  }
  if (response.headers.contains("transfer-encoding")) {
    for (;;) {
      const size_t length = std::strtoul(TakeLine().c_str(), nullptr, 16);
      response.body += Take(length);
      TakeLine();
      if (length == 0) return response;
    }
  }
  if (response.headers.contains("content-length")) {
    response.body = Take(std::stoul(response.headers["content-length"]));
  } else {
    response.body = ReadToEnd();
  }
  return response;
}

std::string RawClient::ReadSome() {
  if (buffer_.empty()) Fill();
  return std::exchange(buffer_, "");
}

std::string RawClient::ReadToEnd() {
  while (Fill()) {
  }
  return std::exchange(buffer_, "");
}

void RawClient::ShutdownSend() { shutdown(fd_, SHUT_WR); }

void RawClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void RawClient::Reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

}  // namespace millrace
