# Writes the Python files of the census as C++: cmake -DOUT=<file> -DFOLDER=<dir> -DINSTALL=<name> -DFILES=<a;b> -P
function(text_of file out)
  file(READ "${FOLDER}/${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
  set(${out} "${bytes}0x00" PARENT_SCOPE)
endfunction()

set(arrays "")
set(rows "")
set(count 0)
foreach(file IN LISTS FILES)
  text_of("${file}" bytes)
  string(APPEND arrays "constexpr unsigned char kText${count}[] = {\n${bytes}};\n")
  string(APPEND rows "    {\"<frozen importlib.gpumemtrace ${file}>\", reinterpret_cast<const char*>(kText${count})},\n")
  math(EXPR count "${count} + 1")
endforeach()
text_of("${INSTALL}" bytes)
file(WRITE "${OUT}" "// Generated from the .py files of recorder/census by embed.cmake.
#include \"recorder/census/sources.h\"

namespace gpumemtrace::recorder::census {
namespace {
${arrays}constexpr unsigned char kInstallText[] = {
${bytes}};
}  // namespace

const Source kInstallSource = {\"<frozen importlib.gpumemtrace ${INSTALL}>\", reinterpret_cast<const char*>(kInstallText)};
const Source kSources[] = {
${rows}};
const size_t kSourceCount = ${count};

}  // namespace gpumemtrace::recorder::census
")
