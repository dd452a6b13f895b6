# Provides gpumemtrace::analyzer_libraries, what gpumem-analyze stands on: libdw, zstd, Abseil, nlohmann-json, CLI11.
# With GPUMEMTRACE_STATIC_ANALYZER the executable is linked wholly statically (link gpumemtrace::analyzer_link to it),
# so that it runs on any x86-64 or aarch64 Linux as one copied file. It opens no plug-ins and looks up no users or
# hosts, so nothing of glibc that wants shared libraries is lost.
find_package(PkgConfig REQUIRED)
find_package(absl REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)

add_library(gpumemtrace_analyzer_libraries INTERFACE)
add_library(gpumemtrace::analyzer_libraries ALIAS gpumemtrace_analyzer_libraries)
add_library(gpumemtrace_analyzer_link INTERFACE)
add_library(gpumemtrace::analyzer_link ALIAS gpumemtrace_analyzer_link)

find_path(LIBDW_INCLUDE_DIR elfutils/libdwfl.h REQUIRED)
target_include_directories(gpumemtrace_analyzer_libraries SYSTEM INTERFACE "${LIBDW_INCLUDE_DIR}")
target_link_libraries(gpumemtrace_analyzer_libraries INTERFACE nlohmann_json::nlohmann_json CLI11::CLI11 Threads::Threads)

if(GPUMEMTRACE_STATIC_ANALYZER)
  foreach(name dw elf zstd lzma bz2 z)  # libdw.a needs all of libelf, lzma, bz2 and z
    find_library(GPUMEMTRACE_STATIC_${name} NAMES lib${name}.a)
    if(NOT GPUMEMTRACE_STATIC_${name})
      message(FATAL_ERROR "GPUMEMTRACE_STATIC_ANALYZER needs lib${name}.a, which was not found; scripts/setup.sh installs its package.")
    endif()
    target_link_libraries(gpumemtrace_analyzer_libraries INTERFACE "${GPUMEMTRACE_STATIC_${name}}")
  endforeach()
  # The distribution's CMake files of Abseil name the shared objects; their archives lie beside them.
  get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS imported)
    if(target MATCHES "^absl::")
      get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
      foreach(configuration IN LISTS configurations)
        get_target_property(location ${target} IMPORTED_LOCATION_${configuration})
        string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
        if(EXISTS "${archive}")
          set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} "${archive}")
        endif()
      endforeach()
    endif()
  endforeach()
  set(Protobuf_USE_STATIC_LIBS ON)  # read by find_package(Protobuf) in proto/
  target_link_options(gpumemtrace_analyzer_link INTERFACE -static -Wl,--wrap=dlopen)
  target_sources(gpumemtrace_analyzer_link INTERFACE "${PROJECT_SOURCE_DIR}/analyzer/no_plug_ins.c")
else()
  find_library(LIBDW_LIBRARY dw REQUIRED)
  find_library(LIBELF_LIBRARY elf REQUIRED)
  find_library(ZSTD_LIBRARY zstd REQUIRED)
  target_link_libraries(gpumemtrace_analyzer_libraries INTERFACE "${LIBDW_LIBRARY}" "${LIBELF_LIBRARY}" "${ZSTD_LIBRARY}")
endif()
