# Writes the files of FOLDER into OUTPUT, a C++ source that defines FindConsoleFile. index.html is "/", the others "/console/NAME".
#   cmake -DOUTPUT=console_files.cc -DFOLDER=page -P embed.cmake
set(types "html=text/html" "css=text/css" "js=text/javascript" "svg=image/svg+xml")
file(GLOB files "${FOLDER}/*")
list(SORT files)
set(arrays "")
set(rows "")
set(number 0)
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME)
  get_filename_component(extension "${file}" LAST_EXT)
  string(SUBSTRING "${extension}" 1 -1 extension)
  set(type "")
  foreach(entry IN LISTS types)
    if(entry MATCHES "^${extension}=(.*)$")
      set(type "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  if(type STREQUAL "")
    message(FATAL_ERROR "server/console: ${name} has a type that embed.cmake does not know")
  endif()
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
  if(name STREQUAL "index.html")
    set(path "/")
  else()
    set(path "/console/${name}")
  endif()
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {\n${bytes}\n};\n")
  string(APPEND rows "    {\"${path}\", \"${type}; charset=utf-8\", {reinterpret_cast<const char*>(kFile${number}), sizeof(kFile${number})}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by server/console/embed.cmake.
#include \"server/console/console_files.h\"

namespace millrace {
namespace {

${arrays}
}  // namespace

const ConsoleFile* FindConsoleFile(std::string_view path) {
  static const ConsoleFile kFiles[] = {
${rows}  };
  for (const ConsoleFile& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace millrace
")
