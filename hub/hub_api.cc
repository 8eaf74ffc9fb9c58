#include "hub/hub_api.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "hub/model_name.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kHub);
constexpr size_t kMaxListBytes = 32 << 20;
constexpr size_t kMaxFiles = 100'000;
constexpr int64_t kMaxFileBytes = int64_t{1} << 44;
constexpr int64_t kLongestPauseSeconds = 120;
// Limit for metadata responses: minutes suffice even on a slow line, where a file may take hours.
constexpr auto kAnswerTime = std::chrono::minutes(5);
// payload: the seconds requested by the hub
constexpr std::string_view kPauseUrl = "millrace/hub-pause";

// Sleeps for `time`. Returns Cancelled when `stop` becomes true.
absl::Status Pause(Duration time, const std::atomic<bool>& stop) {
  constexpr auto kStep = std::chrono::milliseconds(50);
  const SteadyTime end = Clock::Real().Now() + time;
  while (Clock::Real().Now() < end) {
    if (stop) return absl::CancelledError("stopped");
    std::this_thread::sleep_for(std::min<Duration>(kStep, end - Clock::Real().Now()));
  }
  return absl::OkStatus();
}

std::optional<Duration> RequestedPause(const absl::Status& status) {
  const auto payload = status.GetPayload(AbslView(kPauseUrl));
  if (!payload.has_value()) return std::nullopt;
  const auto seconds = ParseNumber<int64_t>(std::string(*payload));
  if (!seconds.has_value()) return std::nullopt;  // a date
  return std::chrono::seconds(std::clamp<int64_t>(*seconds, 0, kLongestPauseSeconds));
}

// Strips `W/"etag"` and `"etag"` to etag.
std::string Bare(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

}  // namespace

absl::Status WithAttempts(const HubOptions& options, int attempts,
                          absl::FunctionRef<absl::Status()> once) {
  Duration pause = options.first_pause;
  for (int attempt = 1;; ++attempt, pause *= 2) {
    absl::Status status = once();
    if (!absl::IsUnavailable(status) || attempt >= attempts) return status;
    const Duration wait = RequestedPause(status).value_or(pause);
    kLog.Warning(std::string(status.message()), "; trying again in ", ToSeconds(wait), " s (",
                 attempt, " of ", attempts - 1, ")");
    MILLRACE_RETURN_IF_ERROR(Pause(wait, *options.stop));
  }
}

HubApi::HubApi(const HubOptions& options, std::string repository, std::string revision)
    : options_(options),
      repository_(std::move(repository)),
      revision_(std::move(revision)),
      client_(options.stop) {}

std::string HubApi::ResolveUrl(const std::string& commit, const std::string& name) const {
  return StrCat(options_.endpoint, "/", repository_, "/resolve/", commit, "/",
                PercentEncoded(name, /*keep_slashes=*/true));
}

absl::Status HubApi::Refusal(const HttpReply& response) const {
  const int status = response.status;
  const std::string code = response.Header("x-error-code").value_or("");
  const std::string detail = Printable(response.Header("x-error-message").value_or(""), 200);
  const std::string subject = StrCat("hub: ", repository_, ": ");
  const std::string tail =
      StrCat(" (HTTP ", status, detail.empty() ? "" : StrCat(": ", detail), ")");
  if (!response.url.starts_with(StrCat(options_.endpoint, "/")) && status < 500) {
    // The hub's link led here. It may have expired, and a new request gives a new link.
    return absl::UnavailableError(StrCat(subject, "the hub's storage refuses a file", tail));
  }
  if (code == "GatedRepo") {
    return absl::PermissionDeniedError(
        StrCat(subject, "is gated: ask for access at ", options_.endpoint, "/", repository_,
               ", and set HF_TOKEN to a token of that account", tail));
  }
  if (code == "RevisionNotFound") {
    return absl::NotFoundError(StrCat(subject, "has no revision \"", revision_,
                                      "\": name a branch, a tag or a commit", tail));
  }
  if (code == "EntryNotFound") {
    return absl::NotFoundError(StrCat(subject, "a file of the model is missing", tail));
  }
  if (code == "RepoNotFound" || status == 401 || status == 404) {
    return absl::NotFoundError(
        StrCat(subject, "there is no such model, or it is private: check the name",
               options_.token.empty() ? ", and for a private one set HF_TOKEN"
                                      : ", and that the token of HF_TOKEN may read it",
               tail));
  }
  if (status == 403) {
    return absl::PermissionDeniedError(StrCat(
        subject, "access is refused: HF_TOKEN must be a token that may read the model", tail));
  }
  if (status == 408 || status == 429 || status >= 500) {
    absl::Status error = absl::UnavailableError(
        StrCat(subject, status == 429 ? "the hub limits requests" : "the hub fails", tail));
    if (const auto seconds = response.Header("retry-after")) {
      error.SetPayload(AbslView(kPauseUrl), absl::Cord(*seconds));
    }
    return error;
  }
  return absl::FailedPreconditionError(
      StrCat(subject, "the response is not a hub's: check HF_ENDPOINT and the proxy", tail));
}

absl::StatusOr<HttpReply> HubApi::SendOnce(const HttpRequest& request, HttpClient::Sink sink) {
  absl::StatusOr<HttpReply> response = client_.Send(request, sink);
  if (!response.ok()) {
    if (absl::IsAborted(response.status()) || absl::IsCancelled(response.status())) {
      return response.status();
    }
    return Annotate(response.status(), StrCat("hub: ", repository_));
  }
  // A redirect that is not followed has all that is needed in its headers.
  if (response->status >= 400 || response->status < 200 ||
      (response->status >= 300 && request.leave_host)) {
    return Refusal(*response);
  }
  return response;
}

absl::StatusOr<HubRevision> HubApi::Revision(int attempts) {
  const HttpRequest request{.url = StrCat(options_.endpoint, "/api/models/", repository_,
                                          "/revision/", PercentEncoded(revision_, false)),
                            .token = options_.token,
                            .time_limit = kAnswerTime};
  std::string body;
  MILLRACE_RETURN_IF_ERROR(WithAttempts(options_, attempts, [&] {
    body.clear();
    absl::Status status = SendOnce(request, [&](const HttpReply&, std::string_view piece) {
                            body += piece;
                            return body.size() <= kMaxListBytes;
                          }).status();
    if (!absl::IsAborted(status)) return status;
    return absl::FailedPreconditionError(StrCat("hub: ", repository_,
                                                ": the list of files has more "
                                                "than ",
                                                kMaxListBytes, " bytes"));
  }));
  const std::string before = StrCat("hub: ", repository_, ": ");
  absl::StatusOr<Json> json = ParseJson(body, JsonLimits{});
  if (!json.ok() || !json->is_object()) {
    return absl::FailedPreconditionError(
        StrCat(before, "the response is not a hub's: check HF_ENDPOINT and the proxy"));
  }
  const JsonFields fields(*json, before);
  HubRevision revision;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view commit, fields.String("sha"));
  if (!IsCommit(commit)) return fields.Bad("sha", "is no commit");
  revision.commit = commit;
  if (IsCommit(revision_) && commit != revision_) {
    return fields.Bad("sha", StrCat("is ", commit, ", but the requested commit is ", revision_));
  }
  const Json* files = fields.Find("siblings");
  if (files == nullptr || !files->is_array() || files->size() > kMaxFiles) {
    return fields.Bad("siblings", StrCat("must be a list of at most ", kMaxFiles, " files"));
  }
  for (const Json& file : *files) {
    const auto name = file.is_object() ? file.find("rfilename") : file.end();
    // Skips names that would lead out of the cache.
    if (name != file.end() && name->is_string() && IsSafeFileName(name->get<std::string>())) {
      revision.files.push_back(name->get<std::string>());
    }
  }
  return revision;
}

absl::StatusOr<HubFile> HubApi::File(const std::string& commit, const std::string& name) {
  const HttpRequest request{.url = ResolveUrl(commit, name),
                            .head = true,
                            .token = options_.token,
                            .leave_host = false,
                            .time_limit = kAnswerTime};
  HttpReply response;
  MILLRACE_RETURN_IF_ERROR(WithAttempts(options_, options_.attempts, [&]() -> absl::Status {
    MILLRACE_ASSIGN_OR_RETURN(
        response, SendOnce(request, [](const HttpReply&, std::string_view) { return true; }));
    return absl::OkStatus();
  }));
  const bool redirected = response.status >= 300;
  HubFile file{.name = name};
  auto etag = response.Header("x-linked-etag");
  if (!etag.has_value()) etag = response.Header("etag");
  file.etag = Bare(etag.value_or(""));
  auto size = response.Header("x-linked-size");
  if (!size.has_value() && !redirected) size = response.Header("content-length");
  const auto bytes = ParseNumber<int64_t>(size.value_or(""));
  if (!IsSafeEtag(file.etag) || !bytes || *bytes < 0 || *bytes > kMaxFileBytes) {
    return absl::FailedPreconditionError(
        StrCat("hub: ", repository_, ": ", Printable(name),
               " comes without an ETag or a size as a hub gives them: check HF_ENDPOINT and the "
               "proxy"));
  }
  if (response.Header("x-repo-commit").value_or(commit) != commit) {
    return absl::FailedPreconditionError(
        StrCat("hub: ", repository_, ": ", Printable(name), " comes from another commit"));
  }
  file.bytes = *bytes;
  return file;
}

absl::Status HubApi::Fetch(const std::string& commit, const std::string& name, int64_t begin,
                           int64_t end, HttpClient::Sink sink) {
  return SendOnce({.url = ResolveUrl(commit, name),
                   .token = options_.token,
                   .range = std::pair(begin, end)},
                  sink)
      .status();
}

}  // namespace millrace
