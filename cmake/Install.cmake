# What `cmake --install` installs: the program, its manual page and completions, which it prints itself, and its systemd unit. LibTorch
# and its plugin stay where they are: they are for tests, and ten times as large. `cpack -G DEB` makes a Debian package of the same.
if(MILLRACE_SANITIZE)
  return()
endif()
include(GNUInstallDirs)

# Installing builds nothing, so that tests may install what is there.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

set(_printed "${CMAKE_BINARY_DIR}/deploy")
file(MAKE_DIRECTORY "${_printed}")
add_custom_command(
  OUTPUT "${_printed}/millraced.8.gz" "${_printed}/millraced.bash" "${_printed}/_millraced" "${_printed}/millraced.fish"
  COMMAND millraced --print-man-page > "${_printed}/millraced.8"
  COMMAND gzip -9nf "${_printed}/millraced.8"
  COMMAND millraced --print-completion bash > "${_printed}/millraced.bash"
  COMMAND millraced --print-completion zsh > "${_printed}/_millraced"
  COMMAND millraced --print-completion fish > "${_printed}/millraced.fish"
  DEPENDS millraced VERBATIM)
add_custom_target(install_files ALL DEPENDS "${_printed}/millraced.8.gz")

install(TARGETS millraced RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(FILES "${_printed}/millraced.8.gz" DESTINATION "${CMAKE_INSTALL_MANDIR}/man8")
install(FILES "${_printed}/millraced.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME millraced)
install(FILES "${_printed}/_millraced" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions")
install(FILES "${_printed}/millraced.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
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
# What the program links is asked of dpkg-shlibdeps (the package dpkg-dev).
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prerm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
