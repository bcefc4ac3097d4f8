# The small libraries: the machine's, else a fixed release that CMake fetches.
#
#   fa_library(<variable> NAME <name> HEADERS <header> ... URL <archive> SHA256 <hash>
#              INCLUDE <its folder of headers> APT <package> [BUILD])
#
# <variable> becomes the folder that holds the headers; with BUILD, a fetched library is built by
# its own CMakeLists.txt. Without a network, unpack the archive and pass
# -DFETCHCONTENT_SOURCE_DIR_<NAME>=<its folder>. A library that could not be fetched has no folder.
#
#   fa_require_libraries()    fails with one sentence that names all of them
#   fa_what_is_missing(<variable>)    that sentence, or nothing

include(FetchContent)

function(fa_library variable)
  cmake_parse_arguments(arg "BUILD" "NAME;URL;SHA256;INCLUDE;APT" "HEADERS" ${ARGN})
  if(NOT arg_SHA256 MATCHES "^[0-9a-f]+$")
    message(FATAL_ERROR "fa_library: ${arg_NAME} has no SHA256")
  endif()
  find_path(${variable} NAMES ${arg_HEADERS})
  if(${variable})
    return()
  endif()
  string(TOUPPER ${arg_NAME} upper)
  set(archive ${CMAKE_BINARY_DIR}/_deps/${arg_NAME}.tar.gz)
  if(NOT FETCHCONTENT_SOURCE_DIR_${upper})
    # Without a network FetchContent retries for minutes; one attempt is enough.
    get_property(why GLOBAL PROPERTY FA_MISSING_WHY)
    set(failed YES)
    set(hash "")
    if(EXISTS ${archive})
      file(SHA256 ${archive} hash)
    endif()
    if(hash STREQUAL arg_SHA256)
      set(failed NO)
    elseif(NOT why OR why MATCHES "HASH")
      message(STATUS "${arg_NAME} is not here: fetching ${arg_URL}")
      file(DOWNLOAD ${arg_URL} ${archive} INACTIVITY_TIMEOUT 20 STATUS status)
      list(GET status 0 failed)
      list(GET status 1 why)
      if(NOT failed)  # DOWNLOAD by itself stops CMake with several lines, also without a network
        file(SHA256 ${archive} hash)
        if(NOT hash STREQUAL arg_SHA256)
          set(failed YES)
          set(why "HASH mismatch")
        endif()
      endif()
    endif()
    if(failed)
      set_property(GLOBAL APPEND PROPERTY FA_MISSING ${arg_NAME})
      set_property(GLOBAL APPEND PROPERTY FA_MISSING_APT ${arg_APT})
      set_property(GLOBAL APPEND PROPERTY FA_MISSING_URL ${arg_URL})
      set_property(GLOBAL APPEND PROPERTY FA_MISSING_OPTION -DFETCHCONTENT_SOURCE_DIR_${upper}=FOLDER)
      set_property(GLOBAL PROPERTY FA_MISSING_WHY "${why}")
      return()
    endif()
  endif()
  set(no_build SOURCE_SUBDIR none)  # no such folder: only unpack
  if(arg_BUILD)
    set(no_build "")
  endif()
  FetchContent_Declare(${arg_NAME} URL ${archive} URL_HASH SHA256=${arg_SHA256}
                       DOWNLOAD_EXTRACT_TIMESTAMP TRUE ${no_build} SYSTEM)
  FetchContent_MakeAvailable(${arg_NAME})
  FetchContent_GetProperties(${arg_NAME} SOURCE_DIR source)
  set(${variable} ${source}/${arg_INCLUDE} PARENT_SCOPE)
endfunction()

function(fa_what_is_missing variable)
  foreach(part "" _APT _URL _OPTION _WHY)
    get_property(missing${part} GLOBAL PROPERTY FA_MISSING${part})
    list(JOIN missing${part} " " missing${part})
  endforeach()
  if(missing)
    string(REPLACE " " ", " missing "${missing}")
    string(CONCAT sentence
      "flash-steps: not here and could not be fetched (${missing_WHY}): ${missing}; install "
      "${missing_APT}, or unpack ${missing_URL} and run, once, cmake --preset sim ${missing_OPTION}")
  endif()
  set(${variable} "${sentence}" PARENT_SCOPE)
endfunction()

function(fa_require_libraries)
  fa_what_is_missing(sentence)
  if(sentence)
    message(FATAL_ERROR "  ${sentence}")
  endif()
endfunction()
