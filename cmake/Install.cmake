# `cmake --install` installs the server and the load generator, their manual pages and completions, which they print
# themselves, and the server's systemd unit. LibTorch
# and its plugin stay where they are: they are for tests, and ten times as large. `cpack -G DEB` makes a Debian package of the same.
if(MILLRACE_SANITIZE)
  return()
endif()
include(GNUInstallDirs)

# Installing builds nothing, so that tests may install what is there.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

set(_printed "${CMAKE_BINARY_DIR}/deploy")
file(MAKE_DIRECTORY "${_printed}")

# Installs a program with its manual page of this section and its completions.
function(_millrace_install program section)
  set(page "${_printed}/${program}.${section}")
  add_custom_command(
    OUTPUT "${page}.gz" "${_printed}/${program}.bash" "${_printed}/_${program}" "${_printed}/${program}.fish"
    COMMAND ${program} --print-man-page > "${page}"
    COMMAND gzip -9nf "${page}"
    COMMAND ${program} --print-completion bash > "${_printed}/${program}.bash"
    COMMAND ${program} --print-completion zsh > "${_printed}/_${program}"
    COMMAND ${program} --print-completion fish > "${_printed}/${program}.fish"
    DEPENDS ${program} VERBATIM)
  add_custom_target(install_files_${program} ALL DEPENDS "${page}.gz")
  install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(FILES "${page}.gz" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
  install(FILES "${_printed}/${program}.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME ${program})
  install(FILES "${_printed}/_${program}" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions")
  install(FILES "${_printed}/${program}.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
endfunction()
_millrace_install(millraced 8)
_millrace_install(millrace-loadtest 1)

install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/millrace" RENAME copyright)
install(FILES deploy/systemd/gpu.conf DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/millrace/examples")
# The unit names the program where it lies, which `cmake --install --prefix` may decide.
install(CODE "
  file(READ \"${CMAKE_SOURCE_DIR}/deploy/systemd/millraced.service\" unit)
  string(REPLACE \"ExecStart=/usr/bin/\" \"ExecStart=\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" unit \"\${unit}\")
  file(WRITE \"${_printed}/millraced.service\" \"\${unit}\")")
install(FILES "${_printed}/millraced.service" DESTINATION lib/systemd/system)

set(CPACK_PACKAGE_NAME millrace)
set(CPACK_PACKAGE_CONTACT "The Millrace authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server for large language models")
set(CPACK_PACKAGE_DESCRIPTION "Serves one language model with an OpenAI-compatible HTTP API and a gRPC API, on the CPU or an NVIDIA GPU.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_DEPENDS ca-certificates)
# dpkg-shlibdeps (the package dpkg-dev) finds the libraries that the program links.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prerm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
