// A client that says exactly what the test wants, byte by byte.
#ifndef MILLRACE_SERVER_HTTP_HTTP_CLIENT_TEST_UTIL_H_
#define MILLRACE_SERVER_HTTP_HTTP_CLIENT_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace millrace {

struct ClientResponse {
  int status = 0;                              // 0: the connection ended before it
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// Blocks in every call, up to 20 s; after that, or without a connection, what it reads is empty.
class RawClient {
 public:
  // `receive_buffer`: bytes the system keeps for what is not read; 0 for its default. `from`: the
  // client's address; null for the system's choice.
  explicit RawClient(uint16_t port, int receive_buffer = 0, const char* from = nullptr);
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { Close(); }

  // False: the server has closed.
  bool Send(std::string_view bytes);
  // A request with Host and, if there is a body, Content-Type and Content-Length.
  bool Request(std::string_view method, std::string_view path, std::string_view body = "",
               std::string_view headers = "");

  ClientResponse Read(bool head_request = false);
  // The header alone; the body is left to ReadSome.
  ClientResponse ReadHeader();
  // At least one byte more; "" at the end.
  std::string ReadSome();
  std::string ReadToEnd();
  // Returns whether the server closes, with nothing more to read.
  bool AtEnd() { return ReadSome().empty(); }

  // Waits until the server, which is in this process, has read all but `unread` bytes of what was
  // sent. False: it has not, in 20 s.
  bool WaitUntilServerRead(size_t unread) const;

  void ShutdownSend();
  void Close();
  // Ends with RST instead of FIN.
  void Reset();

 private:
  bool Fill();
  std::string Take(size_t bytes);
  std::string TakeLine();

  int fd_ = -1;
  std::string buffer_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_HTTP_CLIENT_TEST_UTIL_H_
