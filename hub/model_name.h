// How a model of the hub is named, and which names of files are taken from there.
#ifndef MILLRACE_HUB_MODEL_NAME_H_
#define MILLRACE_HUB_MODEL_NAME_H_

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// "org/name", "org/name:FILE.gguf", or "org/name:TAG" for the GGUF file whose name has the tag.
struct HubModelName {
  std::string repository;  // "org/name"
  std::string file;        // what stands behind the colon; may be empty
};

// Nothing for what cannot be the name of a repository, by the hub's own rules: two parts of
// letters, digits, -, _ and ., at most 96 characters, no "--" or "..", neither - nor . at an end.
std::optional<HubModelName> ParseHubModelName(std::string_view text);

// Names come from the hub, and become paths: relative, without "..", of printable characters.
bool IsSafeFileName(std::string_view name);

// A branch, a tag or a commit, which becomes a path in the cache too.
bool IsSafeRevision(std::string_view revision);

// 40 lower-case hexadecimal digits.
bool IsCommit(std::string_view text);

// Names the contents of a file, and the file in the cache that holds them: letters, digits, - and
// _.
bool IsSafeEtag(std::string_view etag);

// Every byte that is not a letter, a digit or one of -_.~ as %XX; `keep_slashes` leaves / alone.
std::string PercentEncoded(std::string_view text, bool keep_slashes);

}  // namespace millrace

#endif  // MILLRACE_HUB_MODEL_NAME_H_
