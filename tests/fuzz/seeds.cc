// Writes small traces and ring files into two folders, for the fuzzers to begin with.
//   usage: fuzz_seeds <folder for traces> <folder for ring files>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "gpumemtrace/trace.pb.h"
#include "tests/analyzer/support/random_events.h"
#include "tests/analyzer/support/ring_builder.h"
#include "tests/analyzer/support/trace_builder.h"

namespace gpumemtrace::tests {
namespace {

void Write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// The builder writes no format newer than 3. Some addresses become others by this, which is all the same
// here.
std::string WithPredictedAddresses(const std::string& bytes) {
  Trace trace;
  if (!trace.ParseFromString(bytes)) return bytes;
  std::string changed;
  for (auto& packet : *trace.mutable_packet()) {
    Content& content = *packet.mutable_content();
    if (content.has_header()) content.mutable_header()->set_format_version(4);
    if (content.has_events()) content.mutable_events()->set_addresses_predicted(true);
    changed += Frame(content.SerializeAsString());
  }
  return changed;
}

std::string SmallTrace(uint64_t seed) {
  TraceBuilder builder({.restart_every = 3,
                        .events_per_packet = 8,
                        .compress = seed % 2 == 0,
                        .compress_definitions = seed % 3 == 0,
                        .repeat_sites = true,
                        .predict = seed % 4 < 2});
  const uint32_t module = builder.Module("/lib/libx.so", "12345678901234567890", 0x1000, 0x1000, 0x9000);
  const uint32_t code = builder.Code("/a/train.py", "main", 10, "\x80\x01\x88\x02");
  const uint32_t native =
      builder.Stack({builder.NativeFrame(module, 0x123), builder.NativeFrame(module, 0x456)});
  const uint32_t python =
      builder.Stack({builder.PythonFrame(code, 4, false), builder.PythonFrame(code, 0, true)});
  for (BuiltEvent event : RandomEvents(seed, 40, seed % 2 == 1)) {
    event.native_stack = native;
    event.python_stack = python;
    builder.Add(event);
  }
  builder.AddMark(Mark::STEP, "step", 1);
  builder.AddDeviceMemory(0, 1000, 2000);
  if (seed % 3 == 1) {
    // Old windows may be folded anywhere, and several in a row.
    for (uint64_t window = 0; window <= seed % 2; ++window) {
      BuiltEvent block{.kind = EventKind::kBlockAllocate, .address = 0x1000, .size = uint64_t{512} << window};
      BuiltEvent segment{.address = 0x2000, .size = 4096};
      block.python_stack = segment.python_stack = python;
      segment.native_stack = native;
      builder.AddFolded(100 + seed, {{.birth = block, .births = 40, .most_count = 4},
                                     {.birth = segment, .births = 9, .most_count = 9}});
    }
    for (BuiltEvent event : RandomEvents(seed + 1, 20, seed % 2 == 1)) builder.Add(event);
  }
  builder.Finish();
  return seed % 4 == 1 || seed % 4 == 2 ? WithPredictedAddresses(builder.bytes()) : builder.bytes();
}

std::string SmallRings(uint64_t seed) {
  RingBuilder rings(2, 4096, 77, {"", "cudaMalloc", "cudaFree"});
  for (uint32_t ring = 0; ring < 2; ++ring) {
    rings.Thread(ring, 1234 + ring, "main");
    rings.Module(ring, "/lib/libx.so", 0x1000, 0x1000, 0x9000);
    rings.Code(ring, 5, "/a/train.py", "main", 10);
    rings.Stack(ring, 7, {0x1456, 0x1789}, {{5, -1, 1}});
  }
  uint64_t sequence = 0;
  for (BuiltEvent event : RandomEvents(seed, 20, seed % 2 == 1)) {
    event.sequence = ++sequence;
    event.time_us = sequence;
    rings.Event(static_cast<uint32_t>(sequence % 2), event, 1, 7);
  }
  rings.Mark(0, ++sequence, "step");
  return rings.Bytes();
}

}  // namespace
}  // namespace gpumemtrace::tests

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fuzz_seeds <folder for traces> <folder for ring files>\n");
    return 64;
  }
  for (int i = 1; i < 3; ++i) std::filesystem::create_directories(argv[i]);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::string name = std::to_string(seed);
    gpumemtrace::tests::Write(std::filesystem::path(argv[1]) / name, gpumemtrace::tests::SmallTrace(seed));
    gpumemtrace::tests::Write(std::filesystem::path(argv[2]) / name, gpumemtrace::tests::SmallRings(seed));
  }
  return 0;
}
