# Provides gpumemtrace::libunwind for the shim: a static, position-independent libunwind with hidden
# symbols, built from the distribution's source package by scripts/build_libunwind.sh (the packaged
# libunwind.a is not position independent). Without it the shim opens libunwind.so.8 at run time with
# RTLD_LOCAL; GPUMEMTRACE_LIBUNWIND_STATIC tells which.
set(GPUMEMTRACE_LIBUNWIND_PREFIX "${PROJECT_SOURCE_DIR}/.cache/libunwind" CACHE PATH
  "Install prefix of a static, PIC libunwind")

add_library(gpumemtrace_libunwind INTERFACE)
add_library(gpumemtrace::libunwind ALIAS gpumemtrace_libunwind)
if(EXISTS "${GPUMEMTRACE_LIBUNWIND_PREFIX}/lib/libunwind.a")
  message(STATUS "libunwind: static, from ${GPUMEMTRACE_LIBUNWIND_PREFIX}")
  target_include_directories(gpumemtrace_libunwind SYSTEM INTERFACE "${GPUMEMTRACE_LIBUNWIND_PREFIX}/include")
  target_link_libraries(gpumemtrace_libunwind INTERFACE "${GPUMEMTRACE_LIBUNWIND_PREFIX}/lib/libunwind.a")
  target_compile_definitions(gpumemtrace_libunwind INTERFACE GPUMEMTRACE_LIBUNWIND_STATIC=1)
else()
  message(STATUS "libunwind: no static build in ${GPUMEMTRACE_LIBUNWIND_PREFIX} (scripts/build_libunwind.sh makes one); "
    "the shim will open libunwind.so.8 with RTLD_LOCAL when it starts")
  target_compile_definitions(gpumemtrace_libunwind INTERFACE GPUMEMTRACE_LIBUNWIND_STATIC=0)
endif()
