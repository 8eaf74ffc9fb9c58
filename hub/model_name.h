// Parses names of models at the hub, and checks which file names are safe to take from it.
#ifndef MILLRACE_HUB_MODEL_NAME_H_
#define MILLRACE_HUB_MODEL_NAME_H_

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// "org/name", "org/name:FILE.gguf", or "org/name:TAG" for the GGUF file whose name has the tag.
struct HubModelName {
  std::string repository;  // "org/name"
  std::string file;        // the part after the colon; may be empty
};

// Returns nullopt if `text` cannot name a repository by the hub's rules: two parts of letters,
// digits, -, _ and ., at most 96 characters, no "--" or "..", neither - nor . at an end.
std::optional<HubModelName> ParseHubModelName(std::string_view text);

// Returns whether a name from the hub is safe as a path: relative, without "..", of printable
// characters.
bool IsSafeFileName(std::string_view name);

// Returns whether a branch, tag or commit is safe as a path in the cache.
bool IsSafeRevision(std::string_view revision);

// Returns whether `text` is 40 lower-case hexadecimal digits.
bool IsCommit(std::string_view text);

// Returns whether an etag, which names a file's contents and its blob in the cache, consists of
// letters, digits, - and _.
bool IsSafeEtag(std::string_view etag);

// Returns `text` with every byte that is not a letter, a digit or one of -_.~ as %XX.
// `keep_slashes` keeps / too.
std::string PercentEncoded(std::string_view text, bool keep_slashes);

}  // namespace millrace

#endif  // MILLRACE_HUB_MODEL_NAME_H_
