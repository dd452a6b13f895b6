// A small reader of traces and ring files for the recorder's tests. Written from trace.proto, event_columns.h
// and ring_file.h alone, with the official protobuf library: it shares no code with the recorder or the
// analyzer, so that a mistake in the format shows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::tests {

struct DecodedFrame {
  // Native: module path and offset. Python: file, qualified name, instruction.
  std::string module;
  uint64_t offset = 0;
  std::string file;
  std::string function;
  int32_t instruction = 0;
  bool operator==(const DecodedFrame&) const = default;
};
// Innermost first.
using DecodedStack = std::vector<DecodedFrame>;

struct DecodedEvent {
  EventKind kind = EVENT_KIND_UNSPECIFIED;
  Space space = SPACE_UNSPECIFIED;
  std::string api;
  int32_t device = 0;
  uint64_t tid = 0;
  uint64_t stream = 0;
  uint64_t size = 0;
  uint64_t address = 0;
  uint64_t argument[2] = {0, 0};
  int64_t result = 0;
  uint32_t flags = 0;
  uint64_t sequence = 0;
  uint64_t time_us = 0;
  DecodedStack native;
  DecodedStack python;
  DecodedStack forward;
  // Index of the event that made the object which this one ends.
  std::optional<uint64_t> birth;
  bool from_ring = false;
};

struct DecodedTrace {
  Header header;
  // By index in the trace, those from the rings at the end.
  std::vector<DecodedEvent> events;
  // Of the first event of each packet, where packets are missing.
  std::vector<uint64_t> first_indices;
  std::vector<Mark> marks;
  std::map<uint32_t, std::string> strings;
  std::vector<DeviceMemory> device_memory;
  std::vector<Device> devices;
  std::vector<Interpreter> interpreters;
  std::vector<std::string> notes;
  std::map<uint32_t, RingPosition> ring_positions;
  std::optional<Statistics> statistics;
  uint32_t packets = 0;
  size_t largest_packet = 0;
  uint32_t restarts = 0;
  // Events whose site was the predicted one.
  uint64_t predicted = 0;
  // Blocks that were where they were expected.
  uint64_t expected_addresses = 0;
  bool ended = false;
  // Bytes at the end that are no complete packet.
  size_t torn_bytes = 0;
  uint64_t lost_in_statistics = 0;
  std::map<std::string, size_t> bytes_by_column;
};

// Reads a trace that must be undamaged but may be cut; `error` says what is wrong otherwise.
std::optional<DecodedTrace> DecodeTrace(const std::string& bytes, std::string* error);
// The same, and after it what the ring file (its bytes; may be empty) holds and the trace does not.
std::optional<DecodedTrace> DecodeTraceWithRings(const std::string& bytes, const std::string& ring_bytes,
                                                 std::string* error);

std::string ReadFileBytes(const std::string& path);
// As RFC 3720 has it, bit by bit.
uint32_t SlowCrc32c(const std::string& bytes);

}  // namespace gpumemtrace::tests
