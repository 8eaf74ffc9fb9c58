# How our targets are made: one language level, one set of warnings, one way to switch sanitizers on.
#
#   millrace_library(NAME n SRCS a.cc b.cc DEPS x absl::status [PRIVATE_DEPS y])   without SRCS: headers only
#   millrace_executable(NAME n SRCS ... DEPS ...)
#   millrace_plugin(NAME n SRCS ... DEPS ...)      a shared library for dlopen; of executors_torch: build/libmillrace_torch.so
#   millrace_test(NAME n_test SRCS a_test.cc b_test.cc DEPS n [LABELS unit] [TIMEOUT 300] [ARGS ...] [THREADS])
#   millrace_bench(NAME n_bench SRCS a_bench.cc DEPS n)
#   millrace_fuzz(NAME n_fuzz SRCS a_fuzz.cc DEPS n)
#
# millrace_test makes one program and one ctest of it, labelled `unit` unless LABELS says `server` (the whole daemon, with the
# fake executor) or `model` (needs the default model's file, which the environment names in MILLRACE_MODEL). The sanitizer runs
# leave `model` out. Benchmarks are built only when asked for by name or by `benches`.
#
# The build with ThreadSanitizer has only the tests of base, engine, hub, scheduler and server, and those that say THREADS: the
# others run on one thread.
#
# Programs find plugins beside themselves, tests in the build folder.
#
# The build with AddressSanitizer and UBSan is clang's, and has the programs of millrace_fuzz as well (clang's libFuzzer), by the target
# `fuzzers`. scripts/fuzz.sh runs them.
#
# A test or benchmark that says GPU runs on a GPU machine alone: it is built by `gpu_tests` or `gpu_benches`, and ctest does not run
# it. A library may hold .cu files where MILLRACE_HAS_CUDA is on.

set(MILLRACE_SANITIZE "" CACHE STRING "Sanitizers of the whole build: empty, address,undefined or thread")
set_property(CACHE MILLRACE_SANITIZE PROPERTY STRINGS "" "address,undefined" "thread")
if(NOT MILLRACE_SANITIZE MATCHES "^(|address,undefined|thread)$")
  message(FATAL_ERROR "MILLRACE_SANITIZE is \"${MILLRACE_SANITIZE}\"; allowed: empty, address,undefined, thread")
endif()
# Its fuzz targets are libFuzzer's, which only clang++ has.
if(MILLRACE_SANITIZE STREQUAL "address,undefined" AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "MILLRACE_SANITIZE is address,undefined, which takes -DCMAKE_CXX_COMPILER=clang++")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release (-O2) or Debug" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# -Wrestrict misfires on std::string's operator+ in g++ 12 (GCC bug 105651); a designated initializer leaves the other members
# at their declared defaults, which is what it is for.
set(_millrace_warnings -Wall -Wextra -Werror -Wno-restrict -Wno-missing-field-initializers)

# Constexpr functions of the standard library may be called from device code.
set(_millrace_cuda_options -Xcompiler=-Wall,-Wextra,-Werror -Werror=all-warnings --expt-relaxed-constexpr)

# Targets that link libraries of threads would have this of their own, and could not share precompiled headers with the others.
add_compile_options(-pthread)

if(MILLRACE_SANITIZE)
  # Asserts stay on, and -O1 keeps the stacks readable. The optimizer's guesses about uninitialized values are wrong once it
  # has been fed instrumented code; the sanitizers look at the real ones.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  list(APPEND _millrace_warnings -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds)
  if(MILLRACE_SANITIZE STREQUAL "address,undefined")
    list(APPEND _millrace_warnings -Wno-unknown-warning-option -Wno-unused-command-line-argument)
  endif()
  add_compile_options(-fsanitize=${MILLRACE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MILLRACE_SANITIZE})
  if(MILLRACE_SANITIZE STREQUAL "thread")
    # It does not know fences. Asio's stand around its handlers, which belong to one thread each or stand beside locks that order them.
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
    # By this macro protobuf's maps have two members more, which Debian's library, built without it, does not know. The standard library
    # needs to be told in another way.
    add_compile_options(-U__SANITIZE_THREAD__)
    add_compile_definitions(_GLIBCXX_TSAN=1)
  endif()
endif()

# Most of the time that a file takes to compile goes into its headers and the templates that it uses of them. So eight files are
# compiled as one (scripts/batches.py says which may go together), in the plain build after headers of others that are compiled once
# (precompiled.h). Who changes one file after the other may prefer OFF; that each file includes what it uses is checked by `make lint`.
find_program(MILLRACE_PYTHON python3)
option(MILLRACE_BATCHES "Compile several files as one, after precompiled headers" ON)

# _millrace_batch(target library|test|none DEPENDENCIES...) has the target's sources compiled in batches, after the precompiled headers of
# libraries, of tests, or none. Sources that have compile options of their own are left alone.
function(_millrace_batch target headers)
  if(NOT MILLRACE_BATCHES OR NOT MILLRACE_PYTHON)
    return()
  endif()
  if("torch_cpu" IN_LIST ARGN)  # Its folder of headers has another version of other libraries' headers.
    set(headers none)
  endif()
  set_property(GLOBAL APPEND PROPERTY MILLRACE_BATCHED ${target})
  set_property(GLOBAL APPEND PROPERTY MILLRACE_BATCHED_${headers} ${target})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A type in an unnamed namespace is no longer in the main file. Sanitizer builds judge no warnings: there the optimizer sees more.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  if(MILLRACE_SANITIZE)
    target_compile_options(${target} PRIVATE -Wno-error)
  endif()
endfunction()

# Compiles the headers that these targets share, and more of them that are given.
function(_millrace_precompile kind options package)
  get_property(targets GLOBAL PROPERTY MILLRACE_BATCHED_${kind})
  if(NOT targets)
    return()
  endif()
  set(owner millrace_${kind}_headers)
  file(WRITE "${CMAKE_BINARY_DIR}/${kind}_headers.cc" "")
  add_library(${owner} OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/${kind}_headers.cc")
  target_compile_options(${owner} PRIVATE ${options})
  set_target_properties(${owner} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_libraries(${owner} PRIVATE ${package})
  target_precompile_headers(${owner} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/precompiled.h" ${ARGN})
  foreach(target IN LISTS targets)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endforeach()
endfunction()

# Forms the batches of all targets. Call when every target stands.
function(millrace_form_batches)
  get_property(targets GLOBAL PROPERTY MILLRACE_BATCHED)
  if(NOT targets)
    return()
  endif()
  if(NOT MILLRACE_SANITIZE)
    _millrace_precompile(library -fPIC absl::statusor)
    _millrace_precompile(test "-fPIE;-O0" GTest::gmock <gmock/gmock.h> <gtest/gtest.h>)
  endif()

  set(list "")
  foreach(target IN LISTS targets)
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    list(FILTER sources INCLUDE REGEX "^[^/$].*[.]cc$")
    foreach(source IN LISTS sources)
      string(APPEND list "${target} ${folder}/${source}\n")
      get_source_file_property(options "${folder}/${source}" TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
      if(options)
        set_property(SOURCE "${folder}/${source}" TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  endforeach()
  file(WRITE "${CMAKE_BINARY_DIR}/batches.txt" "${list}")
  execute_process(COMMAND "${MILLRACE_PYTHON}" "${PROJECT_SOURCE_DIR}/scripts/batches.py" 8 "${CMAKE_BINARY_DIR}/batches.txt"
                  OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${lines}")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^((.*)_[0-9]+) (.*)$" line "${line}")
    set_property(SOURCE "${CMAKE_MATCH_3}" TARGET_DIRECTORY ${CMAKE_MATCH_2} PROPERTY UNITY_GROUP "${CMAKE_MATCH_1}")
  endforeach()
endfunction()

# millrace_not_for_tsan(a.cc ...): sources that ThreadSanitizer must not look into, because they are made of gRPC's templates.
# gRPC itself is not instrumented, and locks in ways that ThreadSanitizer cannot see; its templates, if they were, would be
# reported for races that they do not have. So they are kept in few files, which hold none of our shared state.
function(millrace_not_for_tsan)
  if(MILLRACE_SANITIZE STREQUAL "thread")
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=thread)
  endif()
endfunction()

find_program(MILLRACE_CCACHE ccache)
if(MILLRACE_CCACHE)
  # ccache takes files with precompiled headers only if told so. Paths are relative to the source folder, so that clones share results.
  set(_ccache "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_ccache} "CCACHE_SLOPPINESS=pch_defines,time_macros" "${MILLRACE_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${_ccache} "${MILLRACE_CCACHE}")
endif()

define_property(TARGET PROPERTY MILLRACE_TEST BRIEF_DOCS "Set on tests and benchmarks: these may use googletest and benchmark")
add_custom_target(tests)    # Every test program.
add_custom_target(benches)  # Every benchmark.
add_custom_target(fuzzers)  # Every fuzz target.
add_custom_target(gpu_tests)
add_custom_target(gpu_benches)

# Writes the paths of the programs of gpu_tests and gpu_benches to gpu_tests.txt and gpu_benches.txt, for `make gpu-bundle`. Call
# when every target stands.
function(millrace_list_gpu_programs)
  foreach(kind tests benches)
    get_target_property(programs gpu_${kind} MANUALLY_ADDED_DEPENDENCIES)
    set(text "")
    if(programs)
      foreach(program IN LISTS programs)
        string(APPEND text "$<TARGET_FILE:${program}>\n")
      endforeach()
    endif()
    file(GENERATE OUTPUT "${CMAKE_BINARY_DIR}/gpu_${kind}.txt" CONTENT "${text}")
  endforeach()
endfunction()

function(_millrace_parse function)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GPU;THREADS" "NAME;TIMEOUT" "SRCS;DEPS;PRIVATE_DEPS;LABELS;ARGS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME)
    message(FATAL_ERROR "${function}(NAME ...): takes NAME SRCS DEPS PRIVATE_DEPS LABELS TIMEOUT ARGS GPU THREADS, got: ${ARGN}")
  endif()
  foreach(key GPU THREADS NAME TIMEOUT SRCS DEPS PRIVATE_DEPS LABELS ARGS)
    set(arg_${key} "${arg_${key}}" PARENT_SCOPE)
  endforeach()
endfunction()

# Sources include from the root; what is generated lies under the build folder at the same paths.
function(_millrace_common target)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${_millrace_warnings}>" "$<$<COMPILE_LANGUAGE:CUDA>:${_millrace_cuda_options}>")
  if(MILLRACE_SANITIZE STREQUAL "address,undefined")
    if(target MATCHES "^(config|engine|hub|loadtest|millrace|nodes|server_daemon|server_doctor|server_grpc$)")
      # The optimizer takes more than half of the time of this build, and saves time only in what computes or is fuzzed.
      target_compile_options(${target} PRIVATE -O0)
    elseif(target MATCHES "^(base|formats|text|server)" AND NOT target MATCHES "_(test|bench)$")
      # libFuzzer learns from these.
      target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
  endif()
endfunction()

function(millrace_library)
  _millrace_parse(millrace_library ${ARGN})
  set(compiled ${arg_SRCS})
  list(FILTER compiled EXCLUDE REGEX "[.]h$")
  if(NOT compiled)
    add_library(${arg_NAME} INTERFACE)
    target_include_directories(${arg_NAME} INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
    target_link_libraries(${arg_NAME} INTERFACE ${arg_DEPS} ${arg_PRIVATE_DEPS})
    return()
  endif()
  add_library(${arg_NAME} STATIC ${arg_SRCS})
  _millrace_common(${arg_NAME})
  _millrace_batch(${arg_NAME} library ${arg_DEPS} ${arg_PRIVATE_DEPS})
  target_link_libraries(${arg_NAME} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
endfunction()

function(millrace_executable)
  _millrace_parse(millrace_executable ${ARGN})
  add_executable(${arg_NAME} ${arg_SRCS})
  _millrace_common(${arg_NAME})
  _millrace_batch(${arg_NAME} none)
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} ${arg_PRIVATE_DEPS})
  set_target_properties(${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" BUILD_RPATH "$ORIGIN")
endfunction()

# A plugin shows only the functions that its sources declare visible, and nothing of the libraries linked into it.
function(millrace_plugin)
  _millrace_parse(millrace_plugin ${ARGN})
  add_library(${arg_NAME} MODULE ${arg_SRCS})
  _millrace_common(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} ${arg_PRIVATE_DEPS})
  target_link_options(${arg_NAME} PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
  string(REGEX REPLACE "^[a-z]+_" "millrace_" file ${arg_NAME})
  set_target_properties(${arg_NAME} PROPERTIES CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
                                               OUTPUT_NAME ${file} BUILD_RPATH "$ORIGIN")
endfunction()

function(millrace_test)
  _millrace_parse(millrace_test ${ARGN})
  if(NOT MILLRACE_TESTS OR (MILLRACE_SANITIZE STREQUAL "thread" AND NOT arg_THREADS AND
                            NOT arg_NAME MATCHES "^(base|engine|hub|scheduler|server)_"))
    return()
  endif()
  add_executable(${arg_NAME} ${arg_SRCS})
  _millrace_common(${arg_NAME})
  if(arg_GPU)
    _millrace_batch(${arg_NAME} none)
  else()
    # The optimizer takes half of the time of a test, which itself runs no hot loop.
    target_compile_options(${arg_NAME} PRIVATE -O0)
    _millrace_batch(${arg_NAME} test ${arg_DEPS} ${arg_PRIVATE_DEPS})
  endif()
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} ${arg_PRIVATE_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${arg_NAME} PROPERTIES MILLRACE_TEST ON BUILD_RPATH "${PROJECT_BINARY_DIR}")
  if(arg_GPU)
    set_target_properties(${arg_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(gpu_tests ${arg_NAME})
    return()
  endif()
  add_dependencies(tests ${arg_NAME})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(MILLRACE_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")  # They compute more slowly.
    math(EXPR arg_TIMEOUT "2 * ${arg_TIMEOUT}")
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} ${arg_ARGS} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  # Names of files are free to be the same in other tests, and in other build folders.
  set(own "${PROJECT_BINARY_DIR}/test_files/${arg_NAME}")
  file(MAKE_DIRECTORY "${own}")
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" ENVIRONMENT "TEST_TMPDIR=${own}/"
                       TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT})  # The long ones first.
endfunction()

function(millrace_bench)
  _millrace_parse(millrace_bench ${ARGN})
  if(NOT MILLRACE_TESTS)
    return()
  endif()
  add_executable(${arg_NAME} EXCLUDE_FROM_ALL ${arg_SRCS})
  _millrace_common(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} ${arg_PRIVATE_DEPS})
  set_target_properties(${arg_NAME} PROPERTIES MILLRACE_TEST ON)
  if(arg_GPU)  # These have a main of their own, and travel to machines that have no benchmark library.
    add_dependencies(gpu_benches ${arg_NAME})
  else()
    target_link_libraries(${arg_NAME} PRIVATE benchmark::benchmark_main)
    add_dependencies(benches ${arg_NAME})
  endif()
endfunction()

function(millrace_fuzz)
  if(NOT MILLRACE_SANITIZE STREQUAL "address,undefined")
    return()
  endif()
  _millrace_parse(millrace_fuzz ${ARGN})
  add_executable(${arg_NAME} EXCLUDE_FROM_ALL ${arg_SRCS})
  _millrace_common(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} ${arg_PRIVATE_DEPS})
  target_link_options(${arg_NAME} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${arg_NAME} PROPERTIES MILLRACE_TEST ON RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
  add_dependencies(fuzzers ${arg_NAME})
endfunction()
