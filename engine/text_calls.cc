#include "engine/text_calls.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "engine/prepare.h"
#include "engine/request/tenant.h"
#include "text/detokenizer.h"

namespace millrace {
namespace {

constexpr size_t kMaxTokenStrs = 1 << 20;  // some 32 bytes each, however short
constexpr size_t kTokensPerLook = 4096;    // between looks whether a call is still wanted
constexpr size_t kBytesPerToken = 4;       // of work that ended without a result

}  // namespace

struct TextCalls::Call {
  std::shared_ptr<const Tenant> tenant;
  SteadyTime deadline;
  bool worked = false;  // work began; written on the pool alone
  std::atomic<bool> cancelled = false;
  std::atomic<CancelReason> reason = CancelReason::kClientGone;  // written before `cancelled`

  void Cancel(CancelReason why) {
    reason = why;
    cancelled = true;
  }
  absl::Status Check(SteadyTime now) const {
    if (cancelled) return CancelStatus(reason);
    return now >= deadline ? CancelStatus(CancelReason::kDeadline) : absl::OkStatus();
  }
};

// ---- The work, on the text pool ----

absl::StatusOr<TokenizeResult> TextCalls::TokensOf(const TokenizeRequest& request,
                                                   Call& call) const {
  call.worked = true;
  MILLRACE_ASSIGN_OR_RETURN(
      std::vector<Token> tokens,
      parts_.text->PromptTokens(request, Tokenizer::kMaxTextBytes, call.deadline, &call.cancelled));
  TokenizeResult result{.tokens = std::move(tokens)};
  if (!request.return_token_strs) return result;
  if (result.tokens.size() > kMaxTokenStrs) {
    return absl::InvalidArgumentError(StrCat("return_token_strs is true for ", result.tokens.size(),
                                             " tokens; allowed: at most ", kMaxTokenStrs));
  }
  for (const Token token : result.tokens) {
    result.token_strs.emplace_back(parts_.text->tokenizer().TokenBytes(token));
  }
  return result;
}

absl::StatusOr<std::string> TextCalls::TextOf(const DetokenizeRequest& request, Call& call) const {
  const Tokenizer& tokenizer = parts_.text->tokenizer();
  // An id beyond the tokenizer's, in a padded vocabulary, has no text.
  const int32_t known = std::max(tokenizer.vocab_size(), parts_.info.vocab_size);
  MILLRACE_RETURN_IF_ERROR(ValidateTokens(request.field, request.tokens, known));
  size_t text_bytes = 0;
  for (const Token token : request.tokens) text_bytes += tokenizer.TokenBytes(token).size();
  if (text_bytes > Tokenizer::kMaxTextBytes) {
    return absl::InvalidArgumentError(StrCat(request.field, " has ", text_bytes,
                                             " bytes of text; allowed: at most ",
                                             Tokenizer::kMaxTextBytes));
  }
  call.worked = true;
  Detokenizer detokenizer(&tokenizer, /*skip_special=*/false);
  std::string text;
  for (size_t i = 0; i < request.tokens.size(); ++i) {
    if (i % kTokensPerLook == 0) MILLRACE_RETURN_IF_ERROR(call.Check(parts_.clock.Now()));
    text += detokenizer.Add(request.tokens[i]);
  }
  text += detokenizer.Flush();
  return text;
}

// ---- In and out ----

absl::Status TextCalls::Enter(const std::shared_ptr<Call>& call) {
  // With the lock held, so that nothing comes in behind WaitIdle.
  const std::lock_guard lock(mutex_);
  MILLRACE_RETURN_IF_ERROR(parts_.admission.CheckTakesWork());
  if (call->tenant != nullptr) {
    MILLRACE_RETURN_IF_ERROR(call->tenant->Enter(1, parts_.clock.Now()));
  }
  alive_.insert(call);
  return absl::OkStatus();
}

// Called before the client learns of the end, so that its next call finds capacity.
void TextCalls::Leave(const std::shared_ptr<Call>& call, int64_t tokens) {
  if (call->tenant != nullptr) call->tenant->LeaveText(tokens, parts_.clock.Now());
  const std::lock_guard lock(mutex_);
  alive_.erase(call);
  if (alive_.empty()) idle_.notify_all();
}

bool TextCalls::WaitIdle(SteadyTime deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [this] { return alive_.empty(); });
}

void TextCalls::CancelAll(CancelReason reason) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Call>& call : alive_) call->Cancel(reason);
}

template <typename Result>
std::function<void()> TextCalls::Start(const std::shared_ptr<Call>& call, size_t bytes,
                                       std::function<absl::StatusOr<Result>(Call&)> work,
                                       std::function<int64_t(const Result&)> tokens,
                                       std::function<void(absl::StatusOr<Result>)> done) {
  if (absl::Status status = Enter(call); !status.ok()) {
    done(std::move(status));
    return [] {};
  }
  auto run = [this, call, bytes, work = std::move(work), tokens = std::move(tokens), done] {
    const absl::Status wanted = call->Check(parts_.clock.Now());
    absl::StatusOr<Result> result = wanted.ok() ? work(*call) : absl::StatusOr<Result>(wanted);
    if (absl::IsCancelled(result.status())) result = CancelStatus(call->reason);
    const auto worked = static_cast<int64_t>(call->worked ? bytes / kBytesPerToken : 0);
    Leave(call, result.ok() ? tokens(*result) : worked);
    done(std::move(result));
  };
  absl::Status status =
      parts_.pool->Submit(ShareOf(call->tenant.get()), bytes, std::move(run),
                          [call](SteadyTime now) { return !call->Check(now).ok(); });
  if (!status.ok()) {
    if (call->tenant != nullptr) call->tenant->GiveBack();
    Leave(call, 0);
    done(std::move(status));
    return [] {};
  }
  return [call] { call->Cancel(CancelReason::kClientGone); };
}

// ---- On the caller's thread ----

std::function<void()> TextCalls::Tokenize(
    TokenizeRequest request, std::function<void(absl::StatusOr<TokenizeResult>)> done) {
  absl::Status status = CheckPromptBytes(request.field, request.prompt);
  if (status.ok() && std::holds_alternative<Chat>(request.prompt)) {
    status = ValidatePrompt(request.field, request.prompt, /*vocab_size=*/0);
  }
  if (!status.ok()) {
    done(std::move(status));
    return [] {};
  }
  const size_t bytes = PromptBytes(request.prompt);
  auto call = std::make_shared<Call>();
  call->tenant = std::move(request.tenant);
  call->deadline = parts_.ToSteady(request.deadline).value_or(SteadyTime::max());
  return Start<TokenizeResult>(
      call, bytes, [this, request = std::move(request)](Call& of) { return TokensOf(request, of); },
      [](const TokenizeResult& result) { return static_cast<int64_t>(result.tokens.size()); },
      std::move(done));
}

std::function<void()> TextCalls::Detokenize(DetokenizeRequest request,
                                            std::function<void(absl::StatusOr<std::string>)> done) {
  const size_t bytes = request.tokens.size() * sizeof(Token);
  const auto tokens = static_cast<int64_t>(request.tokens.size());
  auto call = std::make_shared<Call>();
  call->tenant = std::move(request.tenant);
  call->deadline = parts_.ToSteady(request.deadline).value_or(SteadyTime::max());
  return Start<std::string>(
      call, bytes, [this, request = std::move(request)](Call& of) { return TextOf(request, of); },
      [tokens](const std::string&) { return tokens; }, std::move(done));
}

}  // namespace millrace
