# What every target of ours is compiled with. Link gpumemtrace::options PRIVATE.
add_library(gpumemtrace_options INTERFACE)
add_library(gpumemtrace::options ALIAS gpumemtrace_options)

# Includes name the room: #include "recorder/event.h".
target_include_directories(gpumemtrace_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_definitions(gpumemtrace_options INTERFACE GPUMEMTRACE_VERSION="${PROJECT_VERSION}")
target_compile_options(gpumemtrace_options INTERFACE
  -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Wcast-qual -Wconversion -Wno-sign-conversion -Wundef
  $<$<BOOL:${GPUMEMTRACE_WARNINGS_AS_ERRORS}>:-Werror>
  -fno-omit-frame-pointer)

if(GPUMEMTRACE_SANITIZE)
  target_compile_options(gpumemtrace_options INTERFACE -fsanitize=${GPUMEMTRACE_SANITIZE} -fno-sanitize-recover=all
    # The rooms inside the host have no RTTI, and GoogleTest's types have.
    -fno-sanitize=vptr)
  target_link_options(gpumemtrace_options INTERFACE -fsanitize=${GPUMEMTRACE_SANITIZE})
endif()

# A target whose sources are mostly headers to read: with GPUMEMTRACE_UNITY several of its files are compiled as one,
# which takes a build from nothing half the time, and a change of one file a little longer. File-local names must
# then be unique within the target.
option(GPUMEMTRACE_UNITY "Compile several files of the analyzer and of the tests as one" OFF)
function(gpumemtrace_unity)
  if(GPUMEMTRACE_UNITY)
    set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
endfunction()
