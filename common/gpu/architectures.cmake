# The GPU architectures to compile for. Included before CUDA is enabled.
#
#   fa_architectures(<out> "<needs>" [<older>])   CUDA_ARCHITECTURES of a program
#     needs sm_90a        90a-real: `a` code runs on that architecture only
#     needs sm_90a;sm_80  that, or sm_80 where the GPUs are known and none is sm_90: <older> is true
#     needs sm_80         the GPUs of this machine, but none older than sm_80
#     needs nothing       the GPUs of this machine
# Without a GPU: the oldest architecture that the step and this nvcc support, whose PTX the driver
# compiles for newer GPUs. -DCMAKE_CUDA_ARCHITECTURES=... replaces the GPUs of this machine.

if(NOT CMAKE_CUDA_COMPILER)
  find_program(FA_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda /opt/cuda
               PATH_SUFFIXES bin NO_CACHE)
  if(DEFINED ENV{CUDACXX})
    set(FA_NVCC $ENV{CUDACXX})
  endif()
  if(NOT FA_NVCC)
    message(FATAL_ERROR "No nvcc found: put the CUDA toolkit (12.4 or newer) on PATH or name nvcc "
                        "in CUDACXX. The simulator needs none: cmake --preset sim")
  endif()
  set(CMAKE_CUDA_COMPILER ${FA_NVCC} CACHE FILEPATH "nvcc")
endif()

# Codes that this nvcc generates, as numbers: 75 80 86 ...
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code
                OUTPUT_VARIABLE codes ERROR_QUIET RESULT_VARIABLE status)
string(REGEX MATCHALL "sm_[0-9]+" codes "${codes}")
list(TRANSFORM codes REPLACE "sm_" "")
list(REMOVE_DUPLICATES codes)
list(SORT codes COMPARE NATURAL)
if(NOT codes)
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} --list-gpu-code failed (${status}); it must be "
                      "the nvcc of CUDA 12.4 or newer")
endif()
set(FA_NVCC_CODES ${codes} CACHE INTERNAL "architectures of this nvcc")

# For each GPU here: NN-real, or the newest PTX where this nvcc is older than the GPU.
function(fa_detect_architectures out)
  set(found "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
    list(TRANSFORM capabilities REPLACE "\\." "")
    list(REMOVE_DUPLICATES capabilities)
    foreach(capability ${capabilities})
      if(capability IN_LIST FA_NVCC_CODES)
        list(APPEND found ${capability}-real)
        continue()
      endif()
      set(newest "")
      foreach(code ${FA_NVCC_CODES})
        if(code LESS capability)
          set(newest ${code}-virtual)
        endif()
      endforeach()
      if(newest)
        list(APPEND found ${newest})
      else()
        list(GET FA_NVCC_CODES 0 oldest)
        message(WARNING "This nvcc makes no code for a GPU of sm_${capability}: its oldest is "
                        "sm_${oldest}. That GPU needs an older toolkit.")
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

if(CMAKE_CUDA_ARCHITECTURES)  # the user's choice
  set(architectures ${CMAKE_CUDA_ARCHITECTURES})
else()
  fa_detect_architectures(architectures)
endif()
set(FA_ARCHITECTURES "${architectures}" CACHE INTERNAL "the user's, or this machine's GPUs")

function(fa_architectures out needs)
  set(older FALSE)
  list(LENGTH needs alternatives)
  if(alternatives GREATER 1)
    list(POP_FRONT needs newest)
    string(REGEX MATCH "[0-9]+" number ${newest})
    if(NOT FA_ARCHITECTURES OR FA_ARCHITECTURES MATCHES "(^|;)(${number}a?(-real)?(;|$)|[a-z])")
      set(needs ${newest})
    else()
      set(older TRUE)
    endif()
  endif()
  if(ARGC GREATER 2)
    set(${ARGV2} ${older} PARENT_SCOPE)
  endif()
  string(REGEX MATCH "^sm_([0-9]+)(a?)$" valid "${needs}")
  set(least ${CMAKE_MATCH_1})
  if(needs AND NOT valid)
    message(FATAL_ERROR "NEEDS ${needs}: expected sm_NN or sm_NNa")
  elseif(needs AND CMAKE_MATCH_2)
    if(NOT least IN_LIST FA_NVCC_CODES)
      message(FATAL_ERROR "This nvcc makes no code for ${needs}: use a toolkit that does, or the "
                          "simulator (cmake --preset sim)")
    endif()
    set(${out} ${least}a-real PARENT_SCOPE)
    return()
  elseif(NOT needs)
    set(least 0)
  endif()

  set(chosen "")
  foreach(architecture ${FA_ARCHITECTURES})  # "90", "90-real", "80-virtual", "native", "all", ...
    string(REGEX MATCH "^[0-9]+" number "${architecture}")
    if(NOT number OR number GREATER_EQUAL least)
      list(APPEND chosen ${architecture})
    endif()
  endforeach()
  if(NOT chosen)
    foreach(code ${FA_NVCC_CODES})
      if(code GREATER_EQUAL least)
        set(chosen ${code})
        break()
      endif()
    endforeach()
  endif()
  if(NOT chosen)
    message(FATAL_ERROR "This nvcc makes no code for ${needs} or newer: use a newer toolkit")
  endif()
  set(${out} "${chosen}" PARENT_SCOPE)
endfunction()

# For fa_common's kernels and enable_language(CUDA). Not cached: each configure looks again.
fa_architectures(CMAKE_CUDA_ARCHITECTURES "")
message(STATUS "GPU architectures: ${CMAKE_CUDA_ARCHITECTURES}")
