# The house: which folder may see which. This file is the one place where that is said, and it is enforced each time CMake
# configures, for what targets link and for what sources #include. An edge that the table lacks ends the configuration with an
# error that names both sides.
#
#   millrace_folder(FOLDER SEES <ours> USES <outside libraries> [TESTS <ours>])
#
# Each of <ours> opens one thing:
#   a        all of a/, with the folders inside it
#   a/b      all of the folder a/b
#   a/b.h    that header alone, and of a/'s targets only the one named `a`
#   a/*      the headers that lie directly in a/, without the folders inside it
# A folder at the top sees itself whole. A row with a slash (executors/torch) replaces the row of the folder around it, for the
# files beneath it and for the targets named after it (executors_torch, executors_torch_*): it sees its own files and exactly what
# it lists, of the folder around it too. TESTS opens more to sources named *_test.cc, *_bench.cc, *_fuzz.cc and *_test_util.*, and to
# the targets that millrace_test, millrace_bench and millrace_fuzz make; these may use googletest and benchmark as well.

macro(millrace_folder folder)
  cmake_parse_arguments(_row "" "" "SEES;USES;TESTS" ${ARGN})
  list(APPEND MILLRACE_ROWS ${folder})
  set(MILLRACE_USES_${folder} ${_row_USES})
  _millrace_header_regex(MILLRACE_SEES_${folder} ${folder} ${_row_SEES})
  _millrace_header_regex(MILLRACE_TESTS_${folder} ${folder} ${_row_SEES} ${_row_TESTS})
endmacro()

# Sets `out` to a regular expression of the headers that these entries open.
function(_millrace_header_regex out)
  set(parts)
  foreach(entry IN LISTS ARGN)
    string(REPLACE "." "[.]" part "${entry}")
    if(entry MATCHES "/[*]$")
      string(REPLACE "/*" "/[^/]+$" part "${part}")
    elseif(entry MATCHES "[.](h|cuh|inc)$")
      string(APPEND part "$")
    else()
      string(APPEND part "/")
    endif()
    list(APPEND parts "${part}")
  endforeach()
  list(JOIN parts "|" regex)
  set(${out} "^(${regex})" PARENT_SCOPE)
endfunction()

# Every device's executor may include these.
set(_device base plan executors/* executors/models executors/weights)
set(_kernel kernels/*)
# What executors call. A folder of kernels that is named after an architecture stays closed: kernels/ chooses.
set(_launched kernels/* kernels/attention kernels/collective kernels/elementwise kernels/gemm/* kernels/moe kernels/norm
              kernels/recurrent kernels/sampling kernels/step)

millrace_folder(base            SEES                               USES absl spdlog crypto)
millrace_folder(config          SEES base                          USES absl yaml)
# Of formats/, json/ and tensors/ know no file format and model/ no file; gguf/ and huggingface/ do not know each other, and
# tokenizers/ no model. twins/ is for tests. The folder itself opens models of every format.
millrace_folder(formats             SEES base                      USES absl)
millrace_folder(formats/json        SEES base                      USES absl json)
millrace_folder(formats/files       SEES base formats/json         TESTS formats USES absl)
millrace_folder(formats/tensors     SEES base                      TESTS formats USES absl)
millrace_folder(formats/model       SEES base formats/tensors      USES absl)
millrace_folder(formats/gguf        SEES base formats/files formats/tensors TESTS formats USES absl)
millrace_folder(formats/families    SEES base formats/gguf formats/json formats/model formats/tensors TESTS formats USES absl)
millrace_folder(formats/huggingface SEES base formats/families formats/files formats/json formats/model formats/tensors
                                    TESTS formats                  USES absl)
# A distributed checkpoint is no model yet: it knows neither families nor folders of Hugging Face's.
millrace_folder(formats/distributed SEES base formats/files formats/json TESTS formats USES absl)
millrace_folder(formats/tokenizers  SEES base formats/gguf formats/json TESTS formats USES absl)
millrace_folder(formats/twins       SEES base formats              USES absl)
millrace_folder(hub             SEES base formats/gguf/gguf_split.h formats/json
                                USES absl curl)

# Tests compare the kernels that read the blocks of model files with the host's readers. Both look up the same tables of numbers.
millrace_folder(kernels             SEES formats/tensors/iq_grids.inc TESTS formats USES cuda)
# The tuner times a linear with the gate that follows it, on weights that it draws.
millrace_folder(kernels/gemm        SEES ${_kernel} kernels/elementwise/gated_activation.h kernels/weights/fill.h
                                    TESTS kernels                  USES cuda)
# Fused prologues and epilogues compute what the kernels of norms and gates compute, by the same functions.
# grouped/ uses what dense/ computes linears of one weight with, and four_bit/ compiles grouped/ for more types.
millrace_folder(kernels/gemm/sm90          SEES ${_kernel} kernels/elementwise/gate.cuh TESTS kernels USES cuda)
millrace_folder(kernels/gemm/sm90/dense    SEES ${_kernel} kernels/gemm/gemm_desc.h kernels/gemm/linear.h kernels/gemm/sm90/*
                                           kernels/norm/norm_rule.cuh TESTS kernels USES cuda)
millrace_folder(kernels/gemm/sm90/grouped  SEES ${_kernel} kernels/elementwise/gate.cuh kernels/gemm/four_bit.cuh kernels/gemm/four_bit.h
                                           kernels/gemm/grouped.h kernels/gemm/grouped_linear.h kernels/gemm/sm90/*
                                           kernels/gemm/sm90/dense TESTS kernels USES cuda)
millrace_folder(kernels/gemm/sm90/four_bit SEES kernels/gemm/sm90/grouped TESTS kernels USES cuda)
millrace_folder(kernels/attention   SEES ${_kernel} TESTS kernels  USES cuda)
# An all-reduce ends with the norm that follows it, by the functions of the kernel that only norms. Ranks exchange what they sampled.
millrace_folder(kernels/collective  SEES ${_kernel} kernels/norm/norm_rule.cuh kernels/norm/rms_norm.h
                                    kernels/sampling/sample.h
                                    TESTS kernels                  USES cuda)
# A norm may be the kernel that sums a mixture's experts, by the function of the kernel that only sums them.
millrace_folder(kernels/norm        SEES ${_kernel} kernels/moe/combine.h kernels/moe/mixture_sum.cuh
                                    TESTS kernels                  USES cuda)
millrace_folder(kernels/elementwise SEES ${_kernel} TESTS kernels  USES cuda)
# Gates of the convolution and of the output are those of gated linears; a head's norm is that of a row.
millrace_folder(kernels/recurrent   SEES ${_kernel} kernels/elementwise/gate.cuh kernels/norm/norm_rule.cuh
                                    TESTS kernels                  USES cuda)
millrace_folder(kernels/sampling    SEES ${_kernel} TESTS kernels  USES cuda)
# An assignment fills what grouped linears read. A router may compute the norm before it, by the functions of the kernel that only norms.
millrace_folder(kernels/moe         SEES ${_kernel} kernels/gemm/grouped.h kernels/elementwise/cluster.cuh
                                    kernels/norm/rms_norm.h kernels/norm/token_norm.cuh
                                    TESTS kernels                  USES cuda)

# What the scheduler and the executors share: neither knows anything else of the other.
millrace_folder(plan            SEES base                          USES absl)
millrace_folder(speculative     SEES base                          USES absl)
millrace_folder(scheduler       SEES base plan speculative         USES absl)

millrace_folder(executors         SEES base formats kernels plan USES absl)
millrace_folder(executors/weights SEES base formats executors/*    USES absl)
millrace_folder(executors/models  SEES base formats plan executors/* executors/weights
                                  TESTS executors/cpu USES absl)
millrace_folder(executors/host    SEES base plan formats/model/layer_config.h executors/* USES absl)
millrace_folder(executors/cpu     SEES ${_device} formats executors/host USES absl)
# The kernels know no op and no model.
millrace_folder(executors/cpu/kernels  SEES executors/host/avx2_math.h executors/host/avx512_math.h executors/host/processor.h
                                       executors/host/sampling_kernels.h formats/tensors
                                       TESTS executors/cpu formats USES absl)
millrace_folder(executors/cuda    SEES ${_device} formats ${_launched} TESTS executors/cpu USES absl cuda)
millrace_folder(executors/cuda/device  SEES base kernels/* kernels/step USES absl cuda)
# Weights know the ops' types, and no op of the GPU.
millrace_folder(executors/cuda/weights SEES base executors/* executors/cuda/device executors/weights formats/model formats/tensors
                                       kernels/* kernels/gemm/* kernels/weights
                                       TESTS executors/cuda executors/models formats USES absl cuda)
millrace_folder(executors/torch   SEES ${_device} formats executors/host
                                  TESTS executors/cpu              USES absl torch)
millrace_folder(executors/fake    SEES base plan executors/*   USES absl)

millrace_folder(proto           SEES                               USES protobuf grpc)
millrace_folder(text            SEES base formats                  USES absl json)
# Grammars know texts and tokens, as bytes: no tokenizer.
millrace_folder(text/grammar    SEES base                          TESTS formats text/tokenizer USES absl json)
millrace_folder(text/jinja      SEES base formats/json             USES absl json utf8proc)
millrace_folder(text/tools      SEES base formats/json             USES absl json)
millrace_folder(text/tokenizer  SEES base formats text/utf8.h      TESTS text/detokenizer.h USES absl json onig utf8proc)

# The engine reads GenerationConfig, a plain value of formats/, for its sampling defaults, and loads a model's tokenizer from it.
millrace_folder(engine             SEES base formats plan text scheduler speculative executors/executor.h executors/tensor_model.h
                                   USES absl)
# The folders inside it know no thread of the engine, and request/ none of the others.
millrace_folder(engine/request     SEES base plan formats/generation_config.h text/grammar text/tools USES absl)
millrace_folder(engine/metrics     SEES base config engine/request scheduler USES absl prometheus)
millrace_folder(engine/text        SEES base engine/request formats/json scheduler text TESTS engine USES absl json)
millrace_folder(engine/constraints SEES base engine/request engine/text formats/json plan text TESTS engine formats USES absl json)
millrace_folder(engine/answer      SEES base engine/request plan speculative text TESTS formats USES absl)

# The processes that share a model: they hand plans on, and executors see them as executors/nodes.h.
# Strangers reach their port, too: it stands behind the guard that the gRPC endpoint has.
millrace_folder(nodes           SEES base plan executors/nodes.h proto server/guard server/tls
                                USES absl crypto grpc prometheus)

set(_endpoint base config engine server/frontend.h)
millrace_folder(server          SEES base config formats plan hub/hub.h hub/cached_models.h hub/http_client.h engine scheduler executors/factory.h executors/device_spec.h
                                executors/nodes.h executors/models/memory_plan.h nodes/node_group.h
                                TESTS proto USES absl crypto json prometheus protobuf)
millrace_folder(server/console  SEES                               USES)
# The two endpoints of the Open Inference Protocol share server/kserve.
millrace_folder(server/kserve   SEES ${_endpoint}                  USES absl)
# Of the HTTP endpoint, api/ has what endpoints are and what is checked before one is called, protocols (openai/, messages/,
# responses/, kserve/, admin/, openapi/) register theirs, and transport/ calls them without knowing any. The folder itself joins them.
set(_http ${_endpoint} formats/json server/http/api server/http/json)
millrace_folder(server/http           SEES ${_http} server/guard server/http server/tls USES absl boost json)
millrace_folder(server/http/json      SEES base config engine formats/json text/utf8.h USES absl json)
millrace_folder(server/http/api       SEES ${_http} TESTS server/http USES absl)
millrace_folder(server/http/openai    SEES ${_http} text/grammar text/utf8.h TESTS server/http USES absl json)
millrace_folder(server/http/messages  SEES ${_http} server/http/openai USES absl json)
millrace_folder(server/http/responses SEES ${_http} server/http/openai TESTS server/http USES absl json)
millrace_folder(server/http/kserve    SEES ${_http} executors/tensor_model.h server/kserve TESTS server/http USES absl)
millrace_folder(server/http/openapi   SEES ${_http} server/http/openai TESTS server/http USES absl json)
# /v1/models has errors of Anthropic's shape for its clients.
millrace_folder(server/http/admin     SEES ${_http} server/console server/http/messages TESTS server/http USES absl json)
millrace_folder(server/http/transport SEES ${_http} server/guard server/tls TESTS server/http USES absl boost prometheus)
# TLS sees sockets and bytes: no protocol above it.
millrace_folder(server/tls      SEES base                          USES absl boost crypto prometheus)
# The guard sees bytes: no protocol but HTTP/2's frames, and no server.
millrace_folder(server/guard    SEES base server/tls               USES absl boost prometheus)
millrace_folder(server/grpc     SEES ${_endpoint} text/grammar proto server/guard server/kserve executors/tensor_model.h USES absl grpc protobuf)
millrace_folder(server/tracing  SEES base engine/request/trace.h hub/http_client.h proto USES absl prometheus)
# Events of the prefix cache go out as the plain values that the scheduler makes of them: neither the scheduler nor the engine knows
# that there are sockets.
millrace_folder(server/kv_events SEES base config/value.h plan engine/block_event_sink.h formats/json scheduler/block_events.h scheduler/block_hash.h
                                USES absl json prometheus zmq)
# The bench runs a model without a server: the settings, an executor and the engine thread.
millrace_folder(server/bench    SEES base config engine scheduler server/* executors/executor.h executors/factory.h
                                USES absl json)
# The converter writes folders, and loads one to check it.
millrace_folder(server/convert  SEES base config executors/executor.h executors/factory.h formats plan text
                                USES absl json)

# The load generator is a client: it knows the protocols and nothing of the server.
millrace_folder(loadtest        SEES base proto                    USES absl boost crypto grpc json)

millrace_folder(tests           SEES base formats text proto server TESTS executors scheduler
                                USES grpc gtest json)

# Outside libraries: the headers that belong to each, and its link targets.
macro(_millrace_outside name header_regex link_regex)
  list(APPEND MILLRACE_OUTSIDE ${name})
  set(MILLRACE_HEADER_${name} "${header_regex}")
  set(MILLRACE_LINK_${name} "${link_regex}")
endmacro()

_millrace_outside(absl       "^absl/"                                     "^absl::")
_millrace_outside(benchmark  "^benchmark/"                                "^benchmark::")
_millrace_outside(boost      "^boost/"                                    "^Boost::")
_millrace_outside(crypto     "^openssl/"                                  "^OpenSSL::")
_millrace_outside(cuda       "^(cuda|cublas|cub/|cupti|thrust/|cooperative_groups|nvtx|generated_nvtx|driver_types|vector_types)" "^CUDA::")
_millrace_outside(curl       "^curl/"                                     "^CURL::")
_millrace_outside(grpc       "^(grpc|grpcpp)/"                            "^gRPC::")
_millrace_outside(gtest      "^(gtest|gmock)/"                            "^GTest::")
_millrace_outside(json       "^nlohmann/"                                 "^nlohmann_json::")
_millrace_outside(onig       "^onig"                                      "^PkgConfig::ONIG$")
_millrace_outside(prometheus "^prometheus/"                               "^prometheus-cpp::")
_millrace_outside(protobuf   "^google/(protobuf|rpc)/"                    "^protobuf::")
_millrace_outside(spdlog     "^(spdlog|fmt)/"                             "^(spdlog|fmt)::")
_millrace_outside(torch      "^(torch|ATen|c10|caffe2)/"                  "^(torch|c10)")
_millrace_outside(utf8proc   "^utf8proc"                                  "^PkgConfig::UTF8PROC$")
_millrace_outside(yaml       "^yaml-cpp/"                                 "^yaml-cpp")
_millrace_outside(zmq        "^zmq"                                       "^PkgConfig::ZMQ$")

# The language and the system, open to every folder. A header with .h is listed by name, so that a library that was not
# admitted cannot come in unseen.
string(CONCAT MILLRACE_SYSTEM_HEADER
  "^([a-z0-9_]+|(sys|linux|netinet|arpa|net|asm|cxxabi)/.*|cxxabi[.]h|"
  "(assert|byteswap|cpuid|ctype|dirent|dlfcn|elf|endian|errno|execinfo|fcntl|features|fenv|float|getopt|glob|immintrin|inttypes|"
  "limits|link|locale|malloc|math|netdb|poll|pthread|sched|semaphore|setjmp|signal|spawn|stdarg|stddef|stdint|stdio|stdlib|"
  "string|strings|sysexits|syslog|termios|time|ucontext|unistd|wchar|x86intrin)[.]h)$")
set(MILLRACE_SYSTEM_LINK "^(Threads::Threads|dl|m|rt|pthread|-pthread|atomic)$")

# Sets `out` to the row that holds for a path relative to the root, or for a target's name with its first _ read as /: "" if
# there is none.
function(_millrace_row path out)
  set(best "")
  foreach(row IN LISTS MILLRACE_ROWS)
    string(LENGTH "${row}" length)
    string(LENGTH "${best}" best_length)
    if("${path}/" MATCHES "^${row}[/_]" AND length GREATER best_length)
      set(best ${row})
    endif()
  endforeach()
  set(${out} "${best}" PARENT_SCOPE)
endfunction()

# Sets `out` to the row of one of our targets: its folder's, or the one inside it that the target is named after.
function(_millrace_target_row target out)
  get_target_property(dir ${target} SOURCE_DIR)
  file(RELATIVE_PATH dir "${MILLRACE_ROOT}" "${dir}")
  string(REPLACE "_" "/" as_path "${target}")
  _millrace_row("${dir}" row)
  _millrace_row("${as_path}" name_row)
  if(NOT row STREQUAL "" AND name_row MATCHES "^${row}/")
    set(row ${name_row})
  endif()
  set(${out} "${row}" PARENT_SCOPE)
  set(${out}_dir "${dir}" PARENT_SCOPE)
endfunction()

# Appends `text` to the caller's `violations`.
macro(_millrace_violation text)
  set(violations ${violations} "${text}" PARENT_SCOPE)
  list(APPEND violations "${text}")
endmacro()

# ---- Links ----

function(_millrace_check_target target)
  _millrace_target_row(${target} row)
  if(row STREQUAL "")
    if(row_dir STREQUAL "")
      return()  # The root's own utility targets link nothing of ours.
    endif()
    _millrace_violation("target ${target}: folder ${row_dir}/ has no row in cmake/Folders.cmake")
    return()
  endif()

  set(uses ${MILLRACE_USES_${row}})
  set(sees "${MILLRACE_SEES_${row}}")
  get_target_property(is_test ${target} MILLRACE_TEST)
  if(is_test OR target MATCHES "_test_util$")
    list(APPEND uses gtest benchmark)
    set(sees "${MILLRACE_TESTS_${row}}")
  endif()
  string(REGEX REPLACE "/.*" "" own "${row}")

  set(links)
  foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
    get_target_property(value ${target} ${property})
    if(value)
      list(APPEND links ${value})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES links)

  foreach(link IN LISTS links)
    string(REGEX REPLACE "^[$]<(LINK_ONLY|BUILD_INTERFACE):(.*)>$" "\\2" link "${link}")
    if(link STREQUAL "" OR link MATCHES "^::@" OR link MATCHES "${MILLRACE_SYSTEM_LINK}")
      continue()
    endif()
    set(ours FALSE)
    if(TARGET ${link})
      get_target_property(imported ${link} IMPORTED)
      if(NOT imported)
        set(ours TRUE)
      endif()
    endif()
    if(ours)
      _millrace_target_row(${link} link_row)
      string(REGEX REPLACE "/.*" "" folder "${link_row}")
      # A target is as visible as a header of its row's would be; of a folder that is open for single headers alone, its own one.
      if("${link_row}/_" MATCHES "${sees}" OR (folder STREQUAL own AND link_row STREQUAL folder))
        continue()
      endif()
      if(NOT sees MATCHES "[(|]${folder}/")
        _millrace_violation("${row}/ may not see ${link_row}/: target ${target} links ${link}")
      elseif(NOT link STREQUAL folder)
        _millrace_violation("${row}/ may see only a few headers of ${folder}/, so of its targets only ${folder}: target ${target} links ${link}")
      endif()
      continue()
    endif()
    set(library "")
    foreach(outside IN LISTS MILLRACE_OUTSIDE)
      if(link MATCHES "${MILLRACE_LINK_${outside}}")
        set(library ${outside})
        break()
      endif()
    endforeach()
    if(library STREQUAL "")
      _millrace_violation("${row}/ may not use ${link}: no outside library in cmake/Folders.cmake has that name (target ${target})")
    elseif(NOT library IN_LIST uses)
      _millrace_violation("${row}/ may not use the library ${library}: target ${target} links ${link}")
    endif()
  endforeach()
endfunction()

function(_millrace_check_links directory)
  get_directory_property(targets DIRECTORY "${directory}" BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    _millrace_check_target(${target})
  endforeach()
  get_directory_property(children DIRECTORY "${directory}" SUBDIRECTORIES)
  foreach(child IN LISTS children)
    _millrace_check_links("${child}")
  endforeach()
  set(violations ${violations} PARENT_SCOPE)
endfunction()

# ---- Includes ----

# file:line of an #include, found only once it is known to be wrong.
function(_millrace_where file header out)
  file(READ "${MILLRACE_ROOT}/${file}" text)
  string(REPLACE ";" "," text "${text}")
  string(FIND "${text}" "\"${header}\"" at)
  if(at EQUAL -1)
    string(FIND "${text}" "<${header}>" at)
  endif()
  string(SUBSTRING "${text}" 0 ${at} before)
  string(REGEX MATCHALL "\n" newlines "${before}")
  list(LENGTH newlines line)
  math(EXPR line "${line} + 1")
  set(${out} "${file}:${line}" PARENT_SCOPE)
endfunction()

function(_millrace_check_file file row)
  set(uses ${MILLRACE_USES_${row}})
  set(sees "${MILLRACE_SEES_${row}}")
  if(file MATCHES "_(test|bench|fuzz)[.](cc|cu)$|_test_util[.](h|cc)$")
    list(APPEND uses gtest benchmark)
    set(sees "${MILLRACE_TESTS_${row}}")
  endif()
  file(STRINGS "${MILLRACE_ROOT}/${file}" lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]")
      continue()
    endif()
    set(header "${CMAKE_MATCH_1}")
    if(header MATCHES "${MILLRACE_SYSTEM_HEADER}")
      continue()
    endif()

    # Ours: the first part of the path is a folder. What protoc generates belongs to proto/.
    set(path "${header}")
    if(header MATCHES "[.]pb[.]h$" AND NOT header MATCHES "^google/")
      set(path "proto/${header}")
    endif()
    string(REGEX REPLACE "/.*" "" folder "${path}")
    if(folder IN_LIST MILLRACE_ROWS)
      if(NOT path MATCHES "${sees}")
        _millrace_where("${file}" "${header}" where)
        _millrace_row("${path}" other)
        set(only "")
        if(sees MATCHES "[(|]${folder}/")
          set(only " but for what cmake/Folders.cmake lists")
        endif()
        _millrace_violation("${row}/ may not see ${other}/${only}: ${where}: #include ${header}")
      endif()
      continue()
    endif()

    set(library "")
    foreach(outside IN LISTS MILLRACE_OUTSIDE)
      if(header MATCHES "${MILLRACE_HEADER_${outside}}")
        set(library ${outside})
        break()
      endif()
    endforeach()
    if(library STREQUAL "")
      _millrace_where("${file}" "${header}" where)
      _millrace_violation("${row}/ includes what cmake/Folders.cmake does not know (ours are named from the root): ${where}: #include ${header}")
    elseif(NOT library IN_LIST uses)
      _millrace_where("${file}" "${header}" where)
      _millrace_violation("${row}/ may not use the library ${library}: ${where}: #include ${header}")
    endif()
  endforeach()
endfunction()

function(_millrace_check_includes)
  foreach(folder IN LISTS MILLRACE_ROWS)
    if(folder MATCHES "/")
      continue()
    endif()
    set(patterns)
    foreach(extension h cc cu cuh inc c cpp hpp)
      list(APPEND patterns "${MILLRACE_ROOT}/${folder}/*.${extension}")
    endforeach()
    file(GLOB_RECURSE files RELATIVE "${MILLRACE_ROOT}" ${patterns})
    set(last_directory "")
    foreach(file IN LISTS files)
      string(REGEX REPLACE "/[^/]*$" "" directory "${file}")
      if(NOT directory STREQUAL last_directory)
        _millrace_row("${directory}" row)
        set(last_directory "${directory}")
      endif()
      _millrace_check_file("${file}" ${row})
    endforeach()
  endforeach()
  set(violations ${violations} PARENT_SCOPE)
endfunction()

# Call at the end of the root's CMakeLists.txt, when every target stands.
function(millrace_enforce_house)
  set(MILLRACE_ROOT "${CMAKE_SOURCE_DIR}")
  set(violations)
  _millrace_check_links("${MILLRACE_ROOT}")
  _millrace_check_includes()
  if(violations)
    list(REMOVE_DUPLICATES violations)
    list(JOIN violations "\n  " text)
    message(FATAL_ERROR "The house's table (cmake/Folders.cmake) does not allow:\n  ${text}")
  endif()
endfunction()
