// Writes the tiny models that tests/reference's programs give to transformers and llama.cpp:
// `write_tiny_folders DIR` those of ReferenceFolders, `write_tiny_folders DIR families` a twin of
// every family, `write_tiny_folders DIR gguf` the GGUF files of those that have one.
#include <cstdio>
#include <string>
#include <string_view>

#include "formats/twins/family_twins.h"
#include "formats/twins/hf_test_util.h"

int main(int argc, char** argv) {
  const std::string_view kind = argc == 3 ? argv[2] : "";
  if (argc != 2 && kind != "families" && kind != "gguf") {
    std::fputs("usage: write_tiny_folders DIR [families|gguf]\n", stderr);
    return 2;
  }
  if (!kind.empty()) {
    for (const auto& twins : {millrace::FamilyTwins(), millrace::PoolerTwins(),
                              millrace::EncoderTwins(), millrace::ClassifierTwins()}) {
      for (const millrace::FamilyTwin& twin : twins) {
        const std::string path = std::string(argv[1]) + "/" + twin.name;
        if (kind == "families") {
          millrace::WriteTwinFolder(twin, path);
        } else if (twin.in_gguf) {
          millrace::WriteTwinGguf(twin, path + ".gguf");
        }
      }
    }
    return 0;
  }
  for (const millrace::ReferenceFolder& folder : millrace::ReferenceFolders()) {
    millrace::WriteHfFolder(folder.model, std::string(argv[1]) + "/" + folder.name, folder.form);
  }
  return 0;
}
