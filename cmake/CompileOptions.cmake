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
