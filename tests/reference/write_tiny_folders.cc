// Writes the tiny models that make_tiny_reference.py asks transformers about: `write_tiny_folders
// DIR`.
#include <cstdio>
#include <string>

#include "formats/hf_test_util.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_tiny_folders DIR\n", stderr);
    return 2;
  }
  for (const millrace::ReferenceFolder& folder : millrace::ReferenceFolders()) {
    millrace::WriteHfFolder(folder.model, std::string(argv[1]) + "/" + folder.name, folder.form);
  }
  return 0;
}
