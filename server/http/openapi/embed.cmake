# Writes the files of FOLDER into OUTPUT, a C++ source that defines OpenApiFiles.
#   cmake -DOUTPUT=openapi_files.cc -DFOLDER=openapi -P embed.cmake
file(GLOB files "${FOLDER}/*.json")
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME_WE)
  file(READ "${file}" text)
  string(APPEND rows "    {\"${name}\", R\"json(${text})json\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by server/http/openapi/embed.cmake.
#include \"server/http/openapi/openapi_schemas.h\"

namespace millrace {

std::span<const OpenApiFile> OpenApiFiles() {
  static constexpr OpenApiFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace millrace
")
