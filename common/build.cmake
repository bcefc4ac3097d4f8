# What the whole tree and the simulator alone (sim/CMakeLists.txt) share: the compiler, and
#
#   fa_relocatable(<targets>)    objects for programs and for shared libraries
#   fa_add_backend(<sources> COLD <sources>)    fa_backend, and fa_cold with counts/

include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# A kernel's assembler (sim/memory/as.in) needs a file.
string(REGEX REPLACE "(^| )-pipe( |$)" " " CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # g++ would fuse a * b + c there: the references have the same results everywhere.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

if(FA_BACKEND STREQUAL "sim")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # the kernels' flags are its own
    message(FATAL_ERROR
      "  flash-steps: the simulator needs g++, and the compiler here is ${CMAKE_CXX_COMPILER} "
      "(${CMAKE_CXX_COMPILER_ID}): run, once, CXX=g++ cmake --fresh --preset sim")
  endif()
endif()

# Nothing is exported, so calls stay direct and can be inlined; in the simulator thread-local
# storage, which is the kernels' shared memory, stays an offset from %fs.
function(fa_relocatable)
  set_target_properties(${ARGN} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                           CUDA_VISIBILITY_PRESET hidden)
  if(FA_BACKEND STREQUAL "sim")
    foreach(target ${ARGN})
      target_compile_options(${target} PRIVATE -ftls-model=initial-exec)
    endforeach()
  endif()
endfunction()

# Debug information of the library would be nine tenths of every program, so only the preset debug
# has it. Kernels always have it, for source lines and gdb.
# -Wno-restrict: a false alarm of g++ 12 in std::string
# -ffunction-sections: the whole library is linked (fa_link_common()); unused functions are half of a
# test program.
set(FA_HOST_FLAGS -Wall -Wextra -Wno-restrict $<$<STREQUAL:${FA_BACKEND},sim>:-ffunction-sections>)

# Two libraries of objects; who links one links both. Host code is never instrumented: only kernels
# are counted. In fa_cold is code whose speed never matters but whose compile time does: -O1, and one
# unit for many files, because the libraries' headers are most of what is compiled.
function(fa_add_backend)
  cmake_parse_arguments(arg "" "" "COLD" ${ARGN})
  set(common ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  fa_library(FA_JSON_INCLUDE NAME json APT nlohmann-json3-dev HEADERS nlohmann/json.hpp
    INCLUDE single_include
    URL https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz
    SHA256 0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406)
  fa_library(FA_FMT_INCLUDE NAME fmt APT libfmt-dev HEADERS fmt/format.h INCLUDE include
    URL https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz
    SHA256 1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811)
  find_package(Threads REQUIRED)

  file(GLOB counts CONFIGURE_DEPENDS ${common}/counts/*.cpp)
  list(REMOVE_ITEM counts ${common}/counts/clock.cpp)
  add_library(fa_cold OBJECT ${counts} ${arg_COLD})
  add_library(fa_backend OBJECT ${common}/counts/clock.cpp ${arg_UNPARSED_ARGUMENTS})
  set_source_files_properties(${counts} PROPERTIES UNITY_GROUP counts)
  set_source_files_properties(${arg_COLD} PROPERTIES UNITY_GROUP cold)
  set_target_properties(fa_cold fa_backend PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(target fa_cold fa_backend)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${FA_HOST_FLAGS}>)
    target_compile_definitions(${target} PRIVATE FA_DATA_DIR="${common}/data")
  endforeach()
  target_compile_options(fa_cold PRIVATE -O1)
  target_compile_definitions(fa_cold PRIVATE FMT_HEADER_ONLY)  # counts/format.cpp has all of fmt
  target_compile_options(fa_backend PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O3>)
  fa_relocatable(fa_cold fa_backend)
  cmake_path(GET common PARENT_PATH root)
  target_include_directories(fa_cold PUBLIC ${root})
  target_include_directories(fa_cold SYSTEM PUBLIC ${FA_JSON_INCLUDE} ${FA_FMT_INCLUDE})
  target_link_libraries(fa_cold PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  target_link_libraries(fa_backend PUBLIC fa_cold)
endfunction()
