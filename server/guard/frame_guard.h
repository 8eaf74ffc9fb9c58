// Checks both directions of one HTTP/2 connection, frame by frame, and bounds what its client can
// make the server behind it do or hold. Knows no socket.
#ifndef MILLRACE_SERVER_GUARD_FRAME_GUARD_H_
#define MILLRACE_SERVER_GUARD_FRAME_GUARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/guard/body_budget.h"
#include "server/guard/header_sizes.h"
#include "server/guard/http2.h"
#include "server/guard/limits.h"
#include "server/guard/rate_budget.h"

namespace millrace {

// The state that all connections of an entrance share.
struct GuardShared {
  explicit GuardShared(const GuardLimits& limits)
      : limits(limits), resets(limits.all_resets), messages(limits.all_message_bytes) {}

  const GuardLimits limits;
  SharedRateBudget resets;
  BodyBudget messages;
  std::atomic<size_t> streams = 0;
};

class FrameGuard {
 public:
  struct Violation {
    GuardReason reason;
    http2::ErrorCode code;
    std::string text;  // for the client
  };
  // A stream that the guard ends: both sides must be sent a RST_STREAM.
  struct Reset {
    uint32_t stream;
    GuardReason reason;
    http2::ErrorCode code;  // for the client
  };

  explicit FrameGuard(GuardShared& shared);
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;
  ~FrameGuard();

  // Checks what came from the client: `bytes` begins where the call before ended. Returns how many
  // of them are to be sent on. Fewer than all: what follows is incomplete, or must wait (see
  // waiting), or is a violation. Frames but DATA are let through whole, header blocks with their
  // CONTINUATIONs.
  size_t FromClient(http2::Bytes bytes, SteadyTime now);
  // The same for what comes from the server, which is trusted.
  size_t FromServer(http2::Bytes bytes, SteadyTime now);

  // Looks for what takes too long. Called now and then.
  void CheckTimes(SteadyTime now);

  // Returns what the client did; nothing more of it is let through then.
  const std::optional<Violation>& violation() const { return violation_; }
  // Takes the streams that are to be reset.
  std::vector<Reset> TakeResets();

  // Returns whether the client's next frame must wait, for the server's answers to earlier ones or
  // for the budget that all connections share.
  bool waiting() const { return waiting_; }

  // Returns whether a frame of another's may be put after the bytes that were let through last.
  bool ClientAtBoundary() const { return client_left_ == 0; }
  bool ServerAtBoundary() const { return server_left_ == 0 && !server_in_headers_; }
  // Has FromClient or FromServer end at the next boundary, so that a frame can be put there.
  void StopClientAtBoundary(bool stop) { stop_client_ = stop; }
  void StopServerAtBoundary(bool stop) { stop_server_ = stop; }

  // Returns whether the client's preface and first SETTINGS have been let through.
  bool greeted() const { return greeted_; }
  size_t streams() const { return streams_.size(); }
  uint32_t last_stream() const { return last_stream_; }

 private:
  struct Stream {
    bool client_done = false;
    bool answering = false;      // the server has sent HEADERS
    bool resetting = false;      // the guard has decided to reset it
    int64_t window = 0;          // of the server's DATA
    int64_t upload_window = 0;   // of the client's DATA
    SteadyTime blocked;          // since when it is seen to be used up; epoch: it is not
    uint8_t prefix_bytes = 0;    // of the message's prefix that have come
    uint32_t message_left = 0;   // of the message
    uint64_t message_bytes = 0;  // that have come of it
    SteadyTime message_began;    // without a message: when the headers came, or the window opened
    bool had_message = false;    // one has begun
    std::unique_ptr<BodyBudget::Body> charge;  // if the message came in several pieces
  };

  // Each returns the bytes of the frame that may go on now, 0 if none.
  size_t ClientFrame(http2::Bytes bytes, SteadyTime now);
  size_t OnHeaders(const http2::FrameHeader& header, http2::Bytes bytes, SteadyTime now);
  size_t OnData(const http2::FrameHeader& header, http2::Bytes bytes, SteadyTime now);
  size_t OnControl(const http2::FrameHeader& header, http2::Bytes bytes, SteadyTime now);
  size_t ServerFrame(http2::Bytes bytes);
  void OnServerSettings(http2::Bytes payload);

  // Each returns false if the frame must not go on.
  bool OnPreface(http2::Bytes bytes);
  bool CheckSize(const http2::FrameHeader& header);
  bool OnRstStream(uint32_t stream, SteadyTime now);
  bool OnSettings(const http2::FrameHeader& header, http2::Bytes payload, SteadyTime now);
  bool OnPing(const http2::FrameHeader& header, SteadyTime now);
  bool OnWindowUpdate(uint32_t stream, uint32_t bytes, SteadyTime now);
  bool OnBlock(const http2::FrameHeader& header, http2::Bytes block, SteadyTime now);
  bool OpenStream(uint32_t id, SteadyTime now);

  // Reads message prefixes out of a stream's DATA.
  void OnMessageBytes(http2::Bytes bytes, SteadyTime now);
  void CheckMessage(uint32_t id, Stream& stream, SteadyTime now);
  // Returns whether a message is to come, or to go on coming.
  static bool AwaitsMessage(const Stream& stream);
  void EndMessage(Stream& stream);

  void CloseStream(uint32_t id);
  void ResetStream(uint32_t id, Stream& stream, GuardReason reason, http2::ErrorCode code);
  // Records a violation; returns false.
  bool Refuse(GuardReason reason, http2::ErrorCode code, std::string text);
  bool Malformed(std::string text);
  // Takes one event from a budget, or refuses.
  bool Spend(RateBudget& budget, SteadyTime now, GuardReason reason, std::string_view text);

  GuardShared& shared_;
  const GuardLimits& limits_;

  // The client's direction.
  bool preface_ = false;  // it has come
  bool greeted_ = false;
  uint32_t client_left_ = 0;  // bytes of the DATA or unknown frame that is passing
  uint32_t pad_left_ = 0;     // of these at the end, padding
  uint32_t data_stream_ = 0;  // whose DATA it is
  bool data_ends_ = false;    // with END_STREAM
  uint32_t last_stream_ = 0;
  bool stop_client_ = false;
  bool waiting_ = false;
  SteadyTime block_began_;  // epoch: no header block is incomplete
  HeaderSizes sizes_;
  std::string block_;  // of several frames, put together
  uint32_t max_frame_ = 16384;

  // The server's direction.
  uint32_t server_left_ = 0;
  bool server_in_headers_ = false;
  int64_t upload_window_ = 65535;  // of the client's DATA, of the connection
  int64_t initial_upload_window_ = 65535;
  bool stop_server_ = false;
  int64_t window_ = 65535;  // of the connection
  int64_t initial_window_ = 65535;
  SteadyTime blocked_;

  int client_pings_ = 0;  // not yet answered
  int client_settings_ = 0;
  int server_pings_ = 0;
  int server_settings_ = 0;

  std::unordered_map<uint32_t, Stream> streams_;
  RateBudget resets_;
  RateBudget pings_;
  RateBudget settings_;
  RateBudget window_updates_;
  RateBudget idle_frames_;
  RateBudget closed_data_{{.burst = 4096, .per_second = 64}};

  std::optional<Violation> violation_;
  std::vector<Reset> resets_to_send_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_FRAME_GUARD_H_
