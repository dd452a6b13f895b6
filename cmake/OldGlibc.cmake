# Provides gpumemtrace::old_glibc: link it PRIVATE to the shim, and it loads on an older glibc than the one that it was
# built with (interpose/old_glibc.c says how). tests/house/shim_file.py holds the newest version that it may ask for.
add_library(gpumemtrace_old_glibc INTERFACE)
add_library(gpumemtrace::old_glibc ALIAS gpumemtrace_old_glibc)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|aarch64" AND NOT GPUMEMTRACE_SANITIZE)
  target_sources(gpumemtrace_old_glibc INTERFACE "${PROJECT_SOURCE_DIR}/interpose/old_glibc.c")
  file(STRINGS "${PROJECT_SOURCE_DIR}/interpose/old_glibc.c" wrapped REGEX "^(FORWARD\\(|[a-z_]+ __wrap_.*;$)")
  foreach(line IN LISTS wrapped)
    if(line MATCHES "^FORWARD")
      string(REGEX REPLACE "^FORWARD\\([A-Z_]+, [^,]+, ([a-z0-9_]+),.*" "\\1" name "${line}")
    else()
      string(REGEX REPLACE ".*__wrap_([a-z0-9_]+)\\(.*" "\\1" name "${line}")
    endif()
    target_link_options(gpumemtrace_old_glibc INTERFACE "LINKER:--wrap=${name}")
  endforeach()
  target_link_options(gpumemtrace_old_glibc INTERFACE LINKER:--gc-sections)  # what is not called asks for nothing
  # Before glibc 2.34 these functions are in libraries of their own, which the host may not have loaded.
  target_link_options(gpumemtrace_old_glibc INTERFACE "LINKER:--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--as-needed")
endif()
