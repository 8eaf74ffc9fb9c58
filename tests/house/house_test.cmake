# Configures small trees with the project's own cmake/Folders.cmake and cmake/Targets.cmake. Edges that the table allows must
# configure, and others must stop the configuration with a message that names both sides.
#
#   cmake -D SOURCE=<root> -D WORK=<scratch folder> -D CXX=<compiler> -P house_test.cmake

set(failures 0)
set(cases 0)

# house_case(NAME [EXPECT regex...] [WRITE file text]...): configures the base tree with the given files written over it.
# Without EXPECT it must configure; with it, it must fail and its output must match every regex.
function(house_case name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "EXPECT;WRITE")
  set(tree "${WORK}/${name}")
  file(REMOVE_RECURSE "${tree}")
  file(WRITE "${tree}/CMakeLists.txt" "
cmake_minimum_required(VERSION 3.25)
project(house LANGUAGES CXX)
set(MILLRACE_TESTS ON)
enable_testing()
list(APPEND CMAKE_MODULE_PATH \"${SOURCE}/cmake\")
include(Folders)
include(Targets)
foreach(outside absl::status spdlog::spdlog gRPC::grpc++ torch c10 GTest::gmock GTest::gtest_main benchmark::benchmark_main)
  add_library(\${outside} INTERFACE IMPORTED)
endforeach()
foreach(folder base kernels plan scheduler executors server)
  add_subdirectory(\${folder})
endforeach()
millrace_enforce_house()
")
  file(WRITE "${tree}/base/CMakeLists.txt" "
millrace_library(NAME base SRCS log.h log.cc DEPS absl::status PRIVATE_DEPS spdlog::spdlog)
millrace_test(NAME base_test SRCS log_test.cc DEPS base)
millrace_bench(NAME base_bench SRCS log_bench.cc DEPS base)\n")
  file(WRITE "${tree}/base/log.h" "#include <sys/socket.h>\n#include <string>\n#include \"absl/status/status.h\"\n")
  file(WRITE "${tree}/base/log.cc" "#include \"base/log.h\"\n#include \"spdlog/spdlog.h\"\n")
  file(WRITE "${tree}/base/log_test.cc" "#include <gtest/gtest.h>\n#include \"base/log.h\"\n")
  file(WRITE "${tree}/base/log_bench.cc" "#include <benchmark/benchmark.h>\n")
  file(WRITE "${tree}/kernels/CMakeLists.txt" "millrace_library(NAME kernels SRCS gemm.h)\n")
  file(WRITE "${tree}/kernels/gemm.h" "#include <cuda_runtime.h>\n")
  file(WRITE "${tree}/plan/CMakeLists.txt" "millrace_library(NAME plan SRCS step_plan.h)\n")
  file(WRITE "${tree}/plan/step_plan.h" "#include <vector>\n")
  file(WRITE "${tree}/scheduler/CMakeLists.txt" "millrace_library(NAME scheduler SRCS scheduler.cc DEPS base plan)\n")
  file(WRITE "${tree}/scheduler/scheduler.cc" "#include \"base/log.h\"\n#include \"plan/step_plan.h\"\n")
  file(WRITE "${tree}/executors/CMakeLists.txt" "
millrace_library(NAME executors_cpu SRCS cpu/cpu.cc DEPS plan base)
millrace_library(NAME executors_torch SRCS torch/torch.cc DEPS plan torch c10)
millrace_library(NAME executors SRCS factory.cc DEPS executors_cpu plan)\n")
  file(WRITE "${tree}/executors/cpu/cpu.cc" "#include \"plan/step_plan.h\"\n#include \"executors/executor.h\"\n")
  file(WRITE "${tree}/executors/torch/torch.cc" "#include <ATen/ATen.h>\n#include \"executors/executor.h\"\n")
  file(WRITE "${tree}/executors/factory.cc" "#include \"executors/cpu/cpu.h\"\n")
  file(WRITE "${tree}/server/CMakeLists.txt" "
millrace_library(NAME server_grpc SRCS grpc/service.cc DEPS base gRPC::grpc++)
millrace_executable(NAME millraced SRCS main.cc DEPS server_grpc scheduler executors)\n")
  file(WRITE "${tree}/server/grpc/service.cc"
       "#include <grpcpp/grpcpp.h>\n#include \"base/log.h\"\n#include \"proto/millrace/v1/inference.pb.h\"\n")
  file(WRITE "${tree}/server/main.cc" "#include \"executors/device_spec.h\"\n#include \"executors/factory.h\"\n")

  while(arg_WRITE)
    list(POP_FRONT arg_WRITE file text)
    string(REPLACE "|" "\n" text "${text}")
    file(APPEND "${tree}/${file}" "${text}\n")
  endwhile()

  # The compiler check is skipped: nothing is compiled here, and the check would take a second per case.
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${tree}" -B "${tree}/build" -G Ninja "-DCMAKE_CXX_COMPILER=${CXX}"
                          -DCMAKE_CXX_COMPILER_WORKS=ON -DMILLRACE_BATCHES=OFF
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  string(REGEX REPLACE "[ \n]+" " " output "${output} ${errors}")
  set(wrong "")
  if(NOT arg_EXPECT AND NOT code EQUAL 0)
    set(wrong "it should configure, but did not")
  elseif(arg_EXPECT AND code EQUAL 0)
    set(wrong "it should be refused, but configured")
  endif()
  foreach(regex IN LISTS arg_EXPECT)
    if(NOT output MATCHES "${regex}")
      string(APPEND wrong " the output does not say: ${regex}")
    endif()
  endforeach()

  math(EXPR cases "${cases} + 1")
  set(cases ${cases} PARENT_SCOPE)
  if(wrong)
    math(EXPR failures "${failures} + 1")
    set(failures ${failures} PARENT_SCOPE)
    message("FAILED ${name}:${wrong}\n  ${output}")
  else()
    message("ok     ${name}")
  endif()
endfunction()

house_case(allowed)

# Links.
house_case(forbidden_link
           WRITE scheduler/CMakeLists.txt "target_link_libraries(scheduler PUBLIC server_grpc)"
           EXPECT "scheduler/ may not see server/grpc/: target scheduler links server_grpc")
house_case(forbidden_private_link_from_elsewhere
           WRITE server/CMakeLists.txt "target_link_libraries(base PRIVATE scheduler)"
           EXPECT "base/ may not see scheduler/: target base links scheduler")
house_case(forbidden_outside_link
           WRITE scheduler/CMakeLists.txt "target_link_libraries(scheduler PRIVATE gRPC::grpc++)"
           EXPECT "scheduler/ may not use the library grpc: target scheduler links gRPC::grpc")
house_case(unknown_outside_link
           WRITE base/CMakeLists.txt "target_link_libraries(base PRIVATE curl)"
           EXPECT "base/ may not use curl: no outside library")
house_case(torch_outside_its_folder
           WRITE executors/CMakeLists.txt "target_link_libraries(executors_cpu PRIVATE torch)"
           EXPECT "executors/cpu/ may not use the library torch: target executors_cpu links torch")
house_case(server_links_an_executor_past_the_factory
           WRITE server/CMakeLists.txt "target_link_libraries(millraced PRIVATE executors_cpu)"
           EXPECT "server/ may see only a few headers of executors/" "target millraced links executors_cpu")
house_case(gtest_in_a_library
           WRITE base/CMakeLists.txt "target_link_libraries(base PRIVATE GTest::gmock)"
           EXPECT "base/ may not use the library gtest")
house_case(folder_without_a_row
           WRITE base/CMakeLists.txt "add_subdirectory(../extra extra)"
                 extra/CMakeLists.txt "millrace_library(NAME extra SRCS a.h)"
           EXPECT "target extra: folder extra/ has no row")

# Includes.
house_case(forbidden_include
           WRITE scheduler/scheduler.cc "||#include \"server/engine.h\"  // found; at its line"
           EXPECT "scheduler/ may not see server/: scheduler/scheduler.cc:5: #include server/engine.h")
house_case(forbidden_include_in_a_file_of_no_target
           WRITE kernels/norm/norm.cu "#include \"base/log.h\""
           EXPECT "kernels/norm/ may not see base/: kernels/norm/norm.cu:1")
house_case(kernels_belong_to_executors
           WRITE server/main.cc "#include \"kernels/gemm.h\""
           EXPECT "server/ may not see kernels/: server/main.cc:3")
house_case(executors_see_plan_types_only
           WRITE executors/cpu/cpu.cc "  #  include <scheduler/scheduler.h>"
           EXPECT "executors/cpu/ may not see scheduler/: executors/cpu/cpu.cc:3")
house_case(forbidden_include_of_a_sibling
           WRITE executors/cpu/cpu.cc "#include \"executors/torch/torch.h\""
           EXPECT "executors/cpu/ may not see executors/torch/" "executors/cpu/cpu.cc:3")
house_case(executors_name_no_architecture
           WRITE executors/cuda/weights/weights.cc "#include \"kernels/gemm/sm90/grouped/grouped_shape.cuh\""
           EXPECT "executors/cuda/weights/ may not see kernels/gemm/sm90/grouped/ but for what cmake/Folders.cmake lists: executors/cuda/weights/weights.cc:1")
house_case(a_folder_inside_sees_nothing_above_it
           WRITE executors/cuda/weights/weights.cc "#include \"executors/cuda/cuda_ops.h\""
           EXPECT "executors/cuda/weights/ may not see executors/cuda/ but for what cmake/Folders.cmake lists: executors/cuda/weights/weights.cc:1")
house_case(server_sees_the_factory_only
           WRITE server/main.cc "#include \"executors/cpu/cpu.h\""
           EXPECT "server/ may not see executors/cpu/ but for what cmake/Folders.cmake lists: server/main.cc:3")
house_case(generated_headers_are_proto
           WRITE scheduler/scheduler.cc "#include \"millrace/v1/inference.grpc.pb.h\""
           EXPECT "scheduler/ may not see proto/")
house_case(forbidden_outside_include
           WRITE scheduler/scheduler.cc "#include <spdlog/spdlog.h>"
           EXPECT "scheduler/ may not use the library spdlog: scheduler/scheduler.cc:3")
house_case(torch_include_outside_its_folder
           WRITE executors/cpu/cpu.cc "#include <torch/torch.h>"
           EXPECT "executors/cpu/ may not use the library torch: executors/cpu/cpu.cc:3")
house_case(gtest_include_in_a_library
           WRITE base/log.cc "#include <gtest/gtest.h>"
           EXPECT "base/ may not use the library gtest: base/log.cc:3")
house_case(unknown_header
           WRITE base/log.cc "#include <zlib.h>"
           EXPECT "base/ includes what cmake/Folders.cmake does not know" "base/log.cc:3: #include zlib.h")
house_case(include_relative_to_the_file
           WRITE base/log_test.cc "#include \"log.h\""
           EXPECT "base/ includes what cmake/Folders.cmake does not know" "base/log_test.cc:3: #include log.h")

if(failures)
  message(FATAL_ERROR "${failures} of ${cases} cases failed")
endif()
message("all ${cases} cases passed")
