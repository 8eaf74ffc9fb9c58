#include "base/file_stamp.h"

#include <sys/stat.h>

#include "base/strings.h"

namespace millrace {

std::string FileStamp(const std::string& path) {
  struct stat stat = {};
  if (::stat(path.c_str(), &stat) != 0) return "";
  return StrCat(stat.st_dev, " ", stat.st_ino, " ", stat.st_size, " ", stat.st_mtim.tv_sec, " ",
                stat.st_mtim.tv_nsec, " ", stat.st_ctim.tv_sec, " ", stat.st_ctim.tv_nsec);
}

}  // namespace millrace
