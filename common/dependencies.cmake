# The small libraries: what the machine has, else a fixed release that CMake fetches.
#
#   fa_library(<variable> NAME <name> HEADERS <header> ... URL <archive> SHA256 <hash>
#              INCLUDE <its folder of headers> APT <package> [BUILD])
#
# <variable> becomes the folder that holds the headers; with BUILD, a library that had to be fetched
# is built by its own CMakeLists.txt. Without a network, unpack the archive and give
# -DFETCHCONTENT_SOURCE_DIR_<NAME>=<its folder>.

include(FetchContent)

function(fa_library variable)
  cmake_parse_arguments(arg "BUILD" "NAME;URL;SHA256;INCLUDE;APT" "HEADERS" ${ARGN})
  find_path(${variable} NAMES ${arg_HEADERS})
  if(${variable})
    return()
  endif()
  string(TOUPPER ${arg_NAME} upper)
  set(archive ${CMAKE_BINARY_DIR}/_deps/${arg_NAME}.tar.gz)
  if(NOT FETCHCONTENT_SOURCE_DIR_${upper})
    # FetchContent by itself tries again for minutes where there is no network.
    message(STATUS "${arg_NAME} is not here: fetching ${arg_URL}")
    file(DOWNLOAD ${arg_URL} ${archive} EXPECTED_HASH SHA256=${arg_SHA256} INACTIVITY_TIMEOUT 20
         STATUS status)
    list(GET status 0 failed)
    list(GET status 1 why)
    if(failed)
      message(FATAL_ERROR
        "  flash-steps: ${arg_NAME} is not here and could not be fetched (${why}): install "
        "${arg_APT}, or unpack ${arg_URL} and run, once, "
        "cmake --preset sim -DFETCHCONTENT_SOURCE_DIR_${upper}=FOLDER")
    endif()
  endif()
  set(no_build SOURCE_SUBDIR none)  # no such folder: unpacked, and that is all
  if(arg_BUILD)
    set(no_build "")
  endif()
  FetchContent_Declare(${arg_NAME} URL ${archive} URL_HASH SHA256=${arg_SHA256}
                       DOWNLOAD_EXTRACT_TIMESTAMP TRUE ${no_build} SYSTEM)
  FetchContent_MakeAvailable(${arg_NAME})
  FetchContent_GetProperties(${arg_NAME} SOURCE_DIR source)
  set(${variable} ${source}/${arg_INCLUDE} PARENT_SCOPE)
endfunction()

# Optional: starts the ranks of a step that several can share (common/ranks).
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)
