// The walk over frames reads every layout of the table as the table says, on made-up interpreter memory; so
// the versions that are not installed here are exercised, too. That the numbers in the table are those of
// real interpreters is what python_stacks_test.py and the start-up checks show.
#include "recorder/stacks/python_layout.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "recorder/stacks/python_layout_table.h"
#include "recorder/stacks/python_walk.h"

namespace gpumemtrace::recorder::stacks {
namespace {

using Memory = std::vector<char>;

class Interpreter {
 public:
  explicit Interpreter(const PythonLayout& layout) : layout_(layout) {}

  char* New(size_t size = 1024) { return objects_.emplace_back(size, '\0').data(); }

  template <typename T>
  static void Put(char* object, long offset, T value) {
    ASSERT_GE(offset, 0);
    std::memcpy(object + offset, &value, sizeof(value));
  }

  char* Ascii(const std::string& text) {
    char* object = New(256 + text.size());
    Put<int64_t>(object, layout_.string_length, static_cast<int64_t>(text.size()));
    Put<uint32_t>(object, layout_.string_state, uint32_t{1 | 8 | 16} << layout_.string_kind_bit);
    std::memcpy(object + layout_.string_ascii_data, text.data(), text.size());
    return object;
  }

  char* Bytes(const std::string& text) {
    char* object = New(256 + text.size());
    Put<int64_t>(object, layout_.variable_size, static_cast<int64_t>(text.size()));
    std::memcpy(object + layout_.bytes_data, text.data(), text.size());
    return object;
  }

  char* Code(const std::string& file, const std::string& name, int line, const std::string& table) {
    char* code = New();
    Put<const char*>(code, layout_.object_type, code_type_);
    Put<char*>(code, layout_.code_file, Ascii(file));
    Put<char*>(code, layout_.code_name, Ascii(layout_.code_qualified_name >= 0 ? "short" : name));
    if (layout_.code_qualified_name >= 0) Put<char*>(code, layout_.code_qualified_name, Ascii(name));
    Put<int32_t>(code, layout_.code_first_line, line);
    Put<char*>(code, layout_.code_line_table, Bytes(table));
    Put<int64_t>(code, layout_.variable_size, 100);  // code units
    if (layout_.code_serial >= 0) Put<uint32_t>(code, layout_.code_serial, ++serial_);
    return code;
  }

  // A frame at byte `offset` of its code.
  char* Frame(char* code, int offset, char* previous, uint8_t owner, bool is_entry) {
    char* frame = New();
    // References carry tags since 3.14.
    Put<uint64_t>(frame, layout_.frame_code,
                  reinterpret_cast<uint64_t>(code) | (layout_.version >= 0x030e ? 1 : 0));
    Put<char*>(frame, layout_.frame_previous, previous);
    switch (layout_.instruction_kind) {
      case InstructionKind::kByteOffset:
        Put<int32_t>(frame, layout_.frame_instruction, offset);
        break;
      case InstructionKind::kUnitOffset:
        Put<int32_t>(frame, layout_.frame_instruction, offset / 2);
        break;
      case InstructionKind::kPointer:
        Put<char*>(frame, layout_.frame_instruction, code + layout_.code_bytecode + offset);
        break;
    }
    if (layout_.frame_owner >= 0) Put<uint8_t>(frame, layout_.frame_owner, owner);
    if (layout_.frame_is_entry >= 0) Put<uint8_t>(frame, layout_.frame_is_entry, is_entry ? 1 : 0);
    return frame;
  }

  // What C code pushes before it enters the evaluation loop.
  char* Shim(char* previous) { return Frame(New(), 0, previous, 3, false); }

  char* Thread(char* frame) {
    char* thread = New();
    Put<uint64_t>(thread, layout_.thread_id, pthread_self());
    if (layout_.cframe_frame >= 0) {
      char* cframe = New(64);
      Put<char*>(cframe, layout_.cframe_frame, frame);
      Put<char*>(thread, layout_.thread_frame, cframe);
    } else {
      Put<char*>(thread, layout_.thread_frame, frame);
    }
    return thread;
  }

  const char* code_type() const { return code_type_; }

 private:
  const PythonLayout& layout_;
  std::deque<Memory> objects_;
  uint32_t serial_ = 0;
  char* code_type_ = New();
};

// Gives the table's members names, for gtest.
class EveryLayout : public testing::TestWithParam<size_t> {
 protected:
  const PythonLayout& layout() const { return kPythonLayouts[GetParam()]; }

  PythonWalk Walk(Interpreter& interpreter, char* thread) {
    frames_.resize(64);
    *memory_ = {};
    const PythonWalk walk = FindPythonWalk(layout())(thread, interpreter.code_type(), *memory_, frames_);
    WritePythonFrames(*memory_, {frames_.data(), walk.count});
    return walk;
  }
  std::vector<RawPythonFrame> frames_;
  std::unique_ptr<PythonMemory> memory_ = std::make_unique<PythonMemory>();
};

TEST_P(EveryLayout, ReadsFramesAndCode) {
  Interpreter interpreter(layout());
  char* main = interpreter.Code("/path/to/the/script.py", "<module>", 1, "table of main");
  char* inner = interpreter.Code("/path/to/the/script.py", "Class.method", 70, "another table");
  const bool shims = layout().entry_kind == EntryKind::kShimBelow;
  char* bottom = shims ? interpreter.Shim(nullptr) : nullptr;
  char* first = interpreter.Frame(main, 10, bottom, 0, true);
  char* second = interpreter.Frame(inner, 24, first, 0, false);
  char* between = shims ? interpreter.Shim(second) : second;
  // A generator's frame, called from C.
  char* third = interpreter.Frame(inner, 40, between, 1, true);
  char* thread = interpreter.Thread(third);

  const PythonWalk walk = Walk(interpreter, thread);
  ASSERT_EQ(walk.count, 3u);
  EXPECT_EQ(frames_[0].code, inner);
  EXPECT_EQ(frames_[0].instruction, 40);
  EXPECT_TRUE(frames_[0].entry);
  EXPECT_EQ(frames_[1].code, inner);
  EXPECT_EQ(frames_[1].instruction, 24);
  EXPECT_EQ(frames_[1].entry, layout().entry_kind == EntryKind::kAlways);
  EXPECT_EQ(frames_[2].code, main);
  EXPECT_EQ(frames_[2].instruction, 10);
  EXPECT_TRUE(frames_[2].entry);

  CodeText text;
  const CodeDefinition definition = ReadCode(layout(), frames_[0].code, text);
  EXPECT_EQ(std::string(definition.file.begin(), definition.file.end()), "/path/to/the/script.py");
  EXPECT_EQ(std::string(definition.qualified_name.begin(), definition.qualified_name.end()), "Class.method");
  EXPECT_EQ(definition.first_line, 70);
  EXPECT_EQ(std::string(definition.line_table.begin(), definition.line_table.end()), "another table");
  EXPECT_EQ(definition.python_version, layout().version);
}

TEST_P(EveryLayout, HashesWhatDiffers) {
  Interpreter interpreter(layout());
  char* code = interpreter.Code("/path/to/the/script.py", "f", 1, "table");
  char* outer = interpreter.Frame(code, 10, nullptr, 0, true);
  char* frame = interpreter.Frame(code, 10, outer, 0, true);
  char* thread = interpreter.Thread(frame);
  const uint64_t hash = Walk(interpreter, thread).hash;
  EXPECT_EQ(Walk(interpreter, thread).hash, hash);

  char* elsewhere = interpreter.Thread(interpreter.Frame(code, 12, outer, 0, true));
  EXPECT_NE(Walk(interpreter, elsewhere).hash, hash);
  char* deeper = interpreter.Thread(interpreter.Frame(code, 10, frame, 0, true));
  EXPECT_NE(Walk(interpreter, deeper).hash, hash);

  // Another code object where this one was.
  const auto changed = [&](long offset, auto value) {
    std::array<char, sizeof(value)> saved;
    std::copy_n(code + offset, saved.size(), saved.begin());
    Interpreter::Put(code, offset, value);
    const uint64_t other = Walk(interpreter, thread).hash;
    std::copy_n(saved.begin(), saved.size(), code + offset);
    return other;
  };
  EXPECT_NE(changed(layout().code_first_line, int32_t{2}), hash);
  EXPECT_NE(changed(layout().code_file, interpreter.Ascii("/path/to/another/script.py")), hash);
  EXPECT_NE(changed(layout().code_line_table, interpreter.Bytes("other")), hash);
  const int16_t name = layout().code_qualified_name >= 0 ? layout().code_qualified_name : layout().code_name;
  EXPECT_NE(changed(name, interpreter.Ascii("g")), hash);
  if (layout().code_serial >= 0) {
    EXPECT_NE(changed(layout().code_serial, uint32_t{77}), hash);
  } else {
    // The same pointers with other content.
    char* table;
    std::memcpy(&table, code + layout().code_line_table, sizeof(table));
    table[layout().bytes_data] ^= 1;
    EXPECT_NE(Walk(interpreter, thread).hash, hash);
    table[layout().bytes_data] ^= 1;
  }
  EXPECT_EQ(Walk(interpreter, thread).hash, hash);
}

TEST_P(EveryLayout, AnotherThreadsStateIsRefused) {
  Interpreter interpreter(layout());
  char* code = interpreter.Code("/path/to/the/script.py", "f", 1, "table");
  char* thread = interpreter.Thread(interpreter.Frame(code, 10, nullptr, 0, true));
  Interpreter::Put<uint64_t>(thread, layout().thread_id, pthread_self() + 64);
  EXPECT_EQ(Walk(interpreter, thread).count, 0u);
}

TEST_P(EveryLayout, AnInstructionOutsideTheCodeIsUnknown) {
  if (layout().instruction_kind != InstructionKind::kPointer) return;  // offsets are taken as they are
  Interpreter interpreter(layout());
  char* code = interpreter.Code("/path/to/the/script.py", "f", 1, "table");
  for (const int offset : {-2, 200, 100000}) {
    char* thread = interpreter.Thread(interpreter.Frame(code, offset, nullptr, 0, true));
    ASSERT_EQ(Walk(interpreter, thread).count, 1u);
    EXPECT_EQ(frames_[0].instruction, -1);
  }
}

TEST_P(EveryLayout, ThreadLocalBytecodeIsFound) {
  if (layout().code_tlbc < 0) return;
  Interpreter interpreter(layout());
  char* code = interpreter.Code("/path/to/the/script.py", "f", 1, "table");
  char* array = interpreter.New();
  char* bytecode = interpreter.New();
  Interpreter::Put<int64_t>(array, 0, 3);
  Interpreter::Put<char*>(array, 8 + 8 * 2, bytecode);
  Interpreter::Put<char*>(code, layout().code_tlbc, array);
  char* frame = interpreter.Frame(code, 0, nullptr, 0, true);
  Interpreter::Put<char*>(frame, layout().frame_instruction, bytecode + 30);
  char* thread = interpreter.Thread(frame);
  for (const int index : {2, 1, 3, -1}) {
    Interpreter::Put<int32_t>(frame, layout().frame_tlbc_index, index);
    ASSERT_EQ(Walk(interpreter, thread).count, 1u);
    EXPECT_EQ(frames_[0].instruction, index == 2 ? 30 : -1);
  }
}

TEST_P(EveryLayout, OnlyATypeWithTheseMembersIsAccepted) {
  const PythonLayout& expected = layout();
  const long shift = expected.free_threaded ? 16 : 0;
  struct Member {
    const char* name;
    int type;
    long offset;
    int flags;
    const char* doc;
  };
  static_assert(sizeof(Member) == 40);
  std::vector<Member> members = {
      {"co_argcount", 0, 24, 0, nullptr},
      {"co_filename", 0, expected.code_file, 0, nullptr},
      {"co_name", 0, expected.code_name, 0, nullptr},
      {"co_firstlineno", 0, expected.code_first_line, 0, nullptr},
      {expected.version <= 0x0309 ? "co_lnotab" : "co_linetable", 0, expected.code_line_table, 0, nullptr},
      {"co_qualname", 0, expected.code_qualified_name, 0, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  Memory type(512);
  Interpreter::Put<long>(type.data(), 32 + shift, expected.code_basic_size);
  Interpreter::Put<Member*>(type.data(), 240 + shift, members.data());
  // Before 3.13 the type is all there is to look at.
  const uint32_t version = static_cast<uint32_t>(expected.version) << 16 | 0x01f0;
  const bool has_debug_offsets = expected.version >= 0x030d;
  const auto check = [&] { return CheckPythonLayout(expected, type.data(), nullptr, version); };
  const char* no_runtime = check();
  EXPECT_EQ(no_runtime != nullptr, has_debug_offsets);
  for (Member& member : members) {
    if (member.name == nullptr || member.offset <= 24) continue;
    member.offset += 8;
    const char* problem = check();
    ASSERT_NE(problem, nullptr) << member.name;
    EXPECT_STRNE(problem, no_runtime != nullptr ? no_runtime : "");
    member.offset -= 8;
  }
  Interpreter::Put<long>(type.data(), 32 + shift, expected.code_basic_size + 16L);
  EXPECT_NE(check(), nullptr);
}

TEST(PythonLayouts, UnknownVersionsAreRefused) {
  EXPECT_EQ(FindPythonLayout(0x030700f0, false), nullptr);
  EXPECT_EQ(FindPythonLayout(0x030f00f0, false), nullptr);
  EXPECT_EQ(FindPythonLayout(0x030c00f0, true), nullptr);
  EXPECT_NE(FindPythonLayout(0x030c03f0, false), nullptr);
  EXPECT_NE(FindPythonLayout(0x030e00f0, true), nullptr);
}

std::string LayoutName(const testing::TestParamInfo<size_t>& info) {
  const PythonLayout& layout = kPythonLayouts[info.param];
  return "Python" + std::to_string(layout.version >> 8) + "_" + std::to_string(layout.version & 0xff) +
         (layout.free_threaded ? "t" : "");
}

INSTANTIATE_TEST_SUITE_P(PythonLayouts, EveryLayout, testing::Range(size_t{0}, std::size(kPythonLayouts)),
                         LayoutName);

}  // namespace
}  // namespace gpumemtrace::recorder::stacks
