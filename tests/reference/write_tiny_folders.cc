// Writes the tiny models that make_tiny_reference.py and make_family_reference.py give to
// transformers: `write_tiny_folders DIR` those of ReferenceFolders, `write_tiny_folders DIR
// families` a twin of every family.
#include <cstdio>
#include <string>
#include <string_view>

#include "formats/family_twins.h"
#include "formats/hf_test_util.h"

int main(int argc, char** argv) {
  const bool families = argc == 3 && argv[2] == std::string_view("families");
  if (argc != 2 && !families) {
    std::fputs("usage: write_tiny_folders DIR [families]\n", stderr);
    return 2;
  }
  if (families) {
    for (const auto& twins : {millrace::FamilyTwins(), millrace::PoolerTwins(),
                              millrace::EncoderTwins(), millrace::ClassifierTwins()}) {
      for (const millrace::FamilyTwin& twin : twins) {
        millrace::WriteTwinFolder(twin, std::string(argv[1]) + "/" + twin.name);
      }
    }
    return 0;
  }
  for (const millrace::ReferenceFolder& folder : millrace::ReferenceFolders()) {
    millrace::WriteHfFolder(folder.model, std::string(argv[1]) + "/" + folder.name, folder.form);
  }
  return 0;
}
