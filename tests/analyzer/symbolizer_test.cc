// The symbolizer: names and lines of this very program, inlined functions, missing and foreign files, merged
// stacks.
#include "analyzer/symbols/symbolizer.h"

#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "analyzer/symbols/elf_module.h"

namespace gpumemtrace::tests {

// Not in the anonymous namespace, so that the names are the same for every compiler.
__attribute__((noinline)) uint64_t ReturnAddress() {
  return reinterpret_cast<uint64_t>(__builtin_return_address(0));
}
constexpr int kCallLine = __LINE__ + 2;
__attribute__((noinline)) uint64_t PlainCaller() {
  const uint64_t address = ReturnAddress();
  __asm__ volatile("" ::: "memory");
  return address;
}
constexpr int kInlinedLine = __LINE__ + 2;
inline __attribute__((always_inline)) uint64_t InlinedPart() {
  const uint64_t address = ReturnAddress();
  __asm__ volatile("" ::: "memory");
  return address;
}
constexpr int kOuterLine = __LINE__ + 2;
__attribute__((noinline)) uint64_t OuterPart() {
  const uint64_t address = InlinedPart();
  __asm__ volatile("" ::: "memory");
  return address;
}

namespace {

using analyzer::CodeObjectInfo;
using analyzer::FrameInfo;
using analyzer::Location;
using analyzer::ModuleInfo;
using analyzer::Symbolizer;
using analyzer::TraceModel;

// A loaded object.
struct Loaded {
  std::string name;
  uint64_t bias = 0;
  std::string build_id;
  std::string path;
};

// The first one whose path ends in `name`; "" = this program.
Loaded FindLoaded(const std::string& name) {
  Loaded loaded;
  loaded.name = name;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        Loaded& out = *static_cast<Loaded*>(data);
        const std::string path = info->dlpi_name;
        if (!path.ends_with(out.name)) return 0;
        out.bias = info->dlpi_addr;
        out.path = path.empty() ? std::filesystem::read_symlink("/proc/self/exe").string() : path;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_NOTE) continue;
          const char* at = reinterpret_cast<const char*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
          const char* end = at + info->dlpi_phdr[i].p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof(note));
            const char* description = at + sizeof(note) + (note.n_namesz + 3) / 4 * 4;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4)
              out.build_id.assign(description, note.n_descsz);
            at = description + (note.n_descsz + 3) / 4 * 4;
          }
        }
        return 1;
      },
      &loaded);
  return loaded;
}

class SymbolizerTest : public testing::Test {
 protected:
  SymbolizerTest() {
    model_.strings.push_back(self_.path);
    model_.modules.push_back({1, self_.build_id, self_.bias, 0, 0});
  }
  analyzer::FrameId Native(uint64_t address) {
    model_.frames.push_back({.module = 1, .offset = address - self_.bias});
    return static_cast<analyzer::FrameId>(model_.frames.size() - 1);
  }
  analyzer::FrameId Python(const std::string& name, bool entry) {
    model_.strings.push_back(name);
    CodeObjectInfo code;
    code.file = static_cast<analyzer::StringId>(model_.strings.size() - 1);
    code.qualified_name = code.file;
    code.first_line = 7;
    model_.code_objects.push_back(code);
    FrameInfo frame;
    frame.code_object = static_cast<analyzer::CodeId>(model_.code_objects.size() - 1);
    frame.entry = entry;
    model_.frames.push_back(frame);
    return static_cast<analyzer::FrameId>(model_.frames.size() - 1);
  }
  analyzer::StackId Stack(const std::vector<analyzer::FrameId>& frames) {
    analyzer::StackId parent = 0;
    for (size_t i = frames.size(); i-- > 0;) {
      model_.stack_nodes.push_back({parent, frames[i]});
      parent = static_cast<analyzer::StackId>(model_.stack_nodes.size() - 1);
    }
    return parent;
  }

  const Loaded self_ = FindLoaded("");
  TraceModel model_;
};

TEST_F(SymbolizerTest, NamesAndLines) {
  const analyzer::FrameId frame = Native(PlainCaller());
  Symbolizer symbolizer(model_, {});
  const auto locations = symbolizer.Resolve(frame);
  ASSERT_EQ(locations.size(), 1u);
  EXPECT_EQ(locations[0].function, "gpumemtrace::tests::PlainCaller()");
  EXPECT_TRUE(locations[0].named);
  EXPECT_NE(locations[0].file.find("symbolizer_test.cc"), std::string::npos);
  EXPECT_EQ(locations[0].line, static_cast<uint32_t>(kCallLine));
  EXPECT_EQ(locations[0].module, std::filesystem::path(self_.path).filename().string());
}

TEST_F(SymbolizerTest, InlinedFunctionsComeFirst) {
  const analyzer::FrameId frame = Native(OuterPart());
  Symbolizer symbolizer(model_, {});
  const auto locations = symbolizer.Resolve(frame);
  ASSERT_EQ(locations.size(), 2u);
  EXPECT_EQ(locations[0].function, "gpumemtrace::tests::InlinedPart()");
  EXPECT_TRUE(locations[0].inlined);
  EXPECT_EQ(locations[0].line, static_cast<uint32_t>(kInlinedLine));
  EXPECT_EQ(locations[1].function, "gpumemtrace::tests::OuterPart()");
  EXPECT_FALSE(locations[1].inlined);
  EXPECT_EQ(locations[1].line, static_cast<uint32_t>(kOuterLine));
}

TEST_F(SymbolizerTest, AnotherBuildIsNotTrusted) {
  const analyzer::FrameId frame = Native(PlainCaller());
  model_.modules[1].build_id = std::string(20, 'x');
  Symbolizer symbolizer(model_, {});
  const auto locations = symbolizer.Resolve(frame);
  ASSERT_EQ(locations.size(), 1u);
  EXPECT_FALSE(locations[0].named);
  EXPECT_EQ(locations[0].function.find(locations[0].module + "+0x"), 0u);
  ASSERT_EQ(symbolizer.MissingModules().size(), 1u);
  EXPECT_NE(symbolizer.MissingModules()[0].find("another build"), std::string::npos);
}

TEST_F(SymbolizerTest, ModulesOfAnotherMachineAreFoundInAFolder) {
  const analyzer::FrameId frame = Native(PlainCaller());
  model_.strings[1] = "/opt/elsewhere/bin/" + std::filesystem::path(self_.path).filename().string();
  EXPECT_FALSE(Symbolizer(model_, {}).Resolve(frame)[0].named);
  Symbolizer symbolizer(model_, {.symbol_paths = {std::filesystem::path(self_.path).parent_path().string()}});
  EXPECT_EQ(symbolizer.Resolve(frame)[0].function, "gpumemtrace::tests::PlainCaller()");
}

TEST_F(SymbolizerTest, OddPathsDoNoHarm) {
  const analyzer::FrameId frame = Native(PlainCaller());
  for (const char* path : {"/dev/zero", "/", "", "relative.so", "/etc/passwd", "/nonexistent/x.so"}) {
    model_.strings[1] = path;
    Symbolizer symbolizer(model_, {});
    EXPECT_FALSE(symbolizer.Resolve(frame)[0].named) << path;
  }
  Symbolizer symbolizer(model_, {});
  EXPECT_EQ(symbolizer.Resolve(999999).size(), 1u);  // undefined frame
}

TEST_F(SymbolizerTest, StrippedObjectsStillHaveTheirDynamicSymbols) {
  // libc is stripped on most machines.
  const Loaded libc = FindLoaded("libc.so.6");
  std::string why;
  const std::unique_ptr<analyzer::ElfModule> module =
      analyzer::ElfModule::Find(libc.path, libc.build_id, {}, why);
  ASSERT_NE(module, nullptr) << why;
  const auto locations = module->Locate(reinterpret_cast<uint64_t>(&std::abort) + 1 - libc.bias);
  ASSERT_FALSE(locations.empty());
  // Of several names for one address any will do ("abort", "__GI_abort").
  EXPECT_NE(locations.back().function.find("abort"), std::string::npos);
  EXPECT_TRUE(module->Locate(~uint64_t{0} - 5).empty());
}

TEST_F(SymbolizerTest, PythonFramesReplaceTheEvaluationLoop) {
  // Full native stacks: library ← loop (two Python frames, the second entered from C) ← C ← loop ← main.
  analyzer::SiteInfo site;
  const analyzer::FrameId inner = Python("inner", false);
  const analyzer::FrameId middle = Python("middle", true);
  const analyzer::FrameId outer = Python("outer", true);
  site.python_stack = Stack({inner, middle, outer});
  const analyzer::FrameId library = Native(PlainCaller());
  site.native_stack = Stack({library});
  site.forward_stack = Stack({outer});
  Symbolizer symbolizer(model_, {});
  std::vector<analyzer::FrameId> frames;
  std::vector<bool> forward;
  for (const analyzer::MergedFrame& frame : symbolizer.Merge(site)) {
    frames.push_back(frame.frame);
    forward.push_back(frame.forward);
  }
  EXPECT_EQ(frames, (std::vector<analyzer::FrameId>{library, inner, middle, outer, outer}));
  EXPECT_EQ(forward, (std::vector<bool>{false, false, false, false, true}));
}

TEST(PythonLine, FallsBackToTheFirstLine) {
  CodeObjectInfo code;
  code.first_line = 12;
  code.python_version = 0x030b;
  EXPECT_EQ(analyzer::PythonLine(code, 4), 12u);
  code.line_table = "\x80\x01";
  EXPECT_EQ(analyzer::PythonLine(code, -1), 12u);
}

TEST(PythonLine, LargeAddressStepsAreUnsigned) {
  // co_lnotab: 200 bytes on the first line, then the second line.
  CodeObjectInfo code;
  code.first_line = 10;
  code.python_version = 0x0308;
  code.line_table = std::string("\xc8\x01", 2);
  EXPECT_EQ(analyzer::PythonLine(code, 198), 10u);
  EXPECT_EQ(analyzer::PythonLine(code, 200), 11u);
}

}  // namespace
}  // namespace gpumemtrace::tests
