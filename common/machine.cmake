# Stops with one sentence where ninja would recompile everything at each call: in a folder whose
# name has a character that ends a name in ninja's parser of a compiler's list of headers, and where
# a file is dated in the future and so stays newer than its products.

if(CMAKE_GENERATOR MATCHES "Ninja" AND CMAKE_SOURCE_DIR MATCHES "[\"*`^<>|;'&?]")
  set(character "${CMAKE_MATCH_0}")
  set(ninja 0)
  if(character MATCHES "['&?]")  # which ninja 1.13 parses
    find_program(CMAKE_MAKE_PROGRAM NAMES ninja ninja-build)
    execute_process(COMMAND ${CMAKE_MAKE_PROGRAM} --version OUTPUT_VARIABLE ninja)
  endif()
  if(ninja VERSION_LESS 1.13)
    message(FATAL_ERROR "  flash-steps: the folder ${CMAKE_SOURCE_DIR} has the character ${character} "
      "in its name, with which ninja compiles everything again at each call: rename the folder")
  endif()
endif()

# By the clock of the folder, which may be another machine's; a few seconds are tolerated.
file(TOUCH ${CMAKE_BINARY_DIR}/clock)
file(TIMESTAMP ${CMAKE_BINARY_DIR}/clock now "%s" UTC)
file(GLOB_RECURSE files RELATIVE ${CMAKE_SOURCE_DIR} common/*.* steps/*.* tests/*.* docs/*.txt)
set(future "")
foreach(file IN LISTS files ITEMS CMakeLists.txt CMakePresets.json ${CMAKE_BINARY_DIR}/.ninja_log)
  cmake_path(ABSOLUTE_PATH file OUTPUT_VARIABLE path)
  file(TIMESTAMP "${path}" made "%s" UTC)
  math(EXPR ahead "0${made} - ${now}")
  if(ahead GREATER 10)
    list(APPEND future "${file}")
    file(TIMESTAMP "${path}" date "%Y-%m-%d %H:%M")
  endif()
endforeach()
if(future MATCHES "^[^;]*/.ninja_log$")  # edits from now on are older than the products
  set(future "${CMAKE_BINARY_DIR} was built in the future (${date}): set the clock, or remove it")
elseif(future MATCHES "^[^;]+$")
  set(future "${future} is dated in the future (${date}): set the clock, or touch it")
elseif(future)
  list(LENGTH future count)
  list(GET future 0 first)
  string(CONCAT future "${count} files, of which one is ${first}, are dated in the future (${date}): "
    "set the clock, or run find . -newermt now -exec touch {} +")
endif()
if(future)
  message(FATAL_ERROR "  flash-steps: ${future}")
endif()
