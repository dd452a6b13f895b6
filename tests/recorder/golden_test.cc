// Pins the encoding: fixed events with a fixed clock give exactly these bytes. A difference means that traces
// of old recorders may read differently: think of Header.format_version before updating the files
// (GPUMEMTRACE_UPDATE_GOLDEN=1 writes them).
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "gpumemtrace/trace.pb.h"
#include "tests/recorder/support/writer_bench.h"

namespace gpumemtrace::tests {
namespace {

std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (size_t i = 0; i < bytes.size(); ++i) {
    hex += kDigits[static_cast<unsigned char>(bytes[i]) >> 4];
    hex += kDigits[static_cast<unsigned char>(bytes[i]) & 15];
    if (i % 32 == 31) hex += '\n';
  }
  return hex + '\n';
}

void Compare(const std::string& actual, const std::string& name) {
  const std::string path = std::string(GPUMEMTRACE_GOLDEN_FOLDER "/") + name;
  if (getenv("GPUMEMTRACE_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << actual;
  EXPECT_EQ(actual, ReadFileBytes(path)) << name;
}

// Everything that a trace can hold, small enough that nothing is compressed: zstd's output may differ
// between its versions.
TEST(Golden, EncodingIsPinned) {
  WriterBench bench(recorder::RingPlace::kSharedMemory);
  auto& slot = bench.NewThread(4242, "python");
  const std::string path = "/usr/lib/libtorch_cuda.so";
  auto* module = bench.New<ring_file::ModuleRecord>(slot, ring_file::RecordKind::kModule, path.size() + 4);
  module->load_bias = 0x7f1200000000;
  module->start = 0x7f1200000000;
  module->end = 0x7f1240000000;
  module->path_bytes = static_cast<uint32_t>(path.size());
  module->build_id_bytes = 4;
  std::memcpy(module + 1, (path + "\xde\xad\xbe\xef").data(), path.size() + 4);
  slot.ring.Publish();
  const std::string code_text = "train.pymain\x80\x01";
  auto* code = bench.New<ring_file::CodeRecord>(slot, ring_file::RecordKind::kCode, code_text.size());
  code->number = 0xc0de;
  code->first_line = 12;
  code->python_version = 0x030c;
  code->file_bytes = 8;
  code->qualified_name_bytes = 4;
  code->line_table_bytes = 2;
  std::memcpy(code + 1, code_text.data(), code_text.size());
  slot.ring.Publish();
  auto* stack = bench.New<ring_file::StackRecord>(slot, ring_file::RecordKind::kStack, 3 * 8 + 16);
  stack->number = 0x57ac;
  stack->native_count = 3;
  stack->python_count = 1;
  auto* native = reinterpret_cast<uint64_t*>(stack + 1);
  native[0] = 0x7f1200001234;
  native[1] = 0x7f1200005678;
  native[2] = 0x1000;
  *reinterpret_cast<ring_file::PythonFrame*>(native + 3) = {0xc0de, 18, 1};
  slot.ring.Publish();

  uint64_t sequence = 0;
  const auto put = [&](recorder::EventKind kind, uint64_t address, uint64_t size, uint64_t argument_0,
                       uint64_t argument_1, uint64_t stack_number, uint64_t stream = 0, int32_t result = 0) {
    recorder::Event event;
    event.kind = kind;
    event.space = recorder::Space::kDevice;
    event.api = recorder::IsBlock(kind) ? 3 : kind == recorder::EventKind::kFree ? 2 : 1;
    event.device = 1;
    event.sequence = ++sequence;
    event.address = address;
    event.size = size;
    event.argument[0] = argument_0;
    event.argument[1] = argument_1;
    event.stream = stream;
    event.result = result;
    event.flags = result != 0 ? recorder::kFailed : recorder::kNoFlags;
    ASSERT_TRUE(bench.Put(slot, event, 1'000'000 + sequence * 1'500, stack_number));
  };
  using enum recorder::EventKind;
  constexpr uint64_t kBase = 0x7f3400000000;
  put(kAllocate, kBase, 2 << 20, 0, 0, 0x57ac);
  put(kBlockAllocate, kBase + 512, 1024, 1024, 2 << 20, 0x57ac, 0x5555);
  put(kBlockAllocate, kBase + 2048, 1024, 2048, 2 << 20, 0x57ac, 0x5555);
  put(kBlockFree, kBase + 512, 1024, 1024, 2 << 20, 0);
  put(kBlockFree, kBase + 4096, 512, 512, 2 << 20, 0);
  put(kBlockOutOfMemory, 0, uint64_t{1} << 40, 512, 2 << 20, 0x57ac);
  put(kAllocate, 0, uint64_t{1} << 40, 0, 0, 0, 0, 2);
  put(kMap, kBase + (1 << 30), 2 << 20, 77, 4096, 0);
  put(kFree, kBase, 0, 0, 0, 0);

  auto* mark = bench.New<ring_file::MarkRecord>(slot, ring_file::RecordKind::kMark, 4);
  mark->header.detail = Mark::STEP;
  mark->header.flags = Mark::API;
  mark->sequence = ++sequence;
  mark->time_ns = 2'000'000;
  mark->number = 41;
  mark->text_bytes = 4;
  std::memcpy(mark + 1, "step", 4);
  slot.ring.Publish();
  auto* reading = bench.New<ring_file::DeviceMemoryRecord>(slot, ring_file::RecordKind::kDeviceMemory, 0);
  reading->sequence = ++sequence;
  reading->time_ns = 2'100'000;
  reading->device = 1;
  reading->free_bytes = 1000;
  reading->total_bytes = 3000;
  slot.ring.Publish();
  auto* device = bench.New<ring_file::DeviceRecord>(slot, ring_file::RecordKind::kDevice, 11);
  device->device = 1;
  device->driver_version = 13000;
  device->name_bytes = 11;
  device->total_bytes = 3000;
  std::memcpy(device->uuid, "0123456789abcdef", 16);
  std::memcpy(device + 1, "NVIDIA H200", 11);
  slot.ring.Publish();
  auto* note = bench.New<ring_file::NoteRecord>(slot, ring_file::RecordKind::kNote, 5);
  note->header.detail = 1;
  note->time_ns = 2'200'000;
  note->text_bytes = 5;
  std::memcpy(note + 1, "hello", 5);
  slot.ring.Publish();
  bench.next_sequence = sequence + 1;
  bench.writer->AddInterpreter(0x030c03f0, false, true, {});
  ASSERT_EQ(bench.writer->Finish(), 0);

  const std::string bytes = ReadFileBytes(bench.path);
  Trace trace;
  ASSERT_TRUE(trace.ParseFromString(bytes));
  // Nothing that the schema does not know.
  for (const Packet& packet : trace.packet()) {
    EXPECT_TRUE(packet.content().GetReflection()->GetUnknownFields(packet.content()).empty());
  }
  std::string text;
  ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(trace, &text));
  Compare(text, "trace.txt");
  Compare(Hex(bytes), "trace.hex");
  EXPECT_EQ(bench.Decode().events.size(), 9u);
}

}  // namespace
}  // namespace gpumemtrace::tests
