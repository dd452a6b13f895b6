// Writes traces for tests of the analyzer: a plain encoder of trace.proto, made from the schema's words alone
// and independent of the recorder's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "analyzer/trace/model.h"
#include "gpumemtrace/event_prediction.h"
#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::tests {

using analyzer::EventKind;
using analyzer::Space;

// One event as the program made it.
struct BuiltEvent {
  EventKind kind = EventKind::kAllocate;
  Space space = Space::kDevice;
  int32_t device = 0;
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t argument[2] = {0, 0};
  uint64_t sequence = 0;  // 0: the one after the last
  uint64_t time_us = 0;   // 0: one more than the last
  std::string api = "cudaMalloc";
  uint32_t thread = 1;
  uint64_t stream = 0;
  int32_t result = 0;
  uint32_t flags = 0;
  uint32_t native_stack = 0;
  uint32_t python_stack = 0;
  uint32_t forward_stack = 0;
  bool size_varies = false;  // encode the size per event
};

class TraceBuilder {
 public:
  struct Options {
    // Packets between restarts of the predictors.
    uint32_t restart_every = 4;
    size_t events_per_packet = 64;
    bool compress = true;
    bool compress_definitions = false;
    // Define a site again after each restart, as the recorder does.
    bool repeat_sites = false;
    // Leave out what event_prediction.h expects, as the recorder does.
    bool predict = false;
  };

  TraceBuilder() : TraceBuilder(Options()) {}
  explicit TraceBuilder(Options options);

  uint32_t String(const std::string& text);
  uint32_t Module(const std::string& path, const std::string& build_id, uint64_t load_bias, uint64_t start,
                  uint64_t end);
  uint32_t Code(const std::string& file, const std::string& name, uint32_t first_line,
                const std::string& line_table = "", uint32_t version = 0x030b);
  uint32_t NativeFrame(uint32_t module, uint64_t offset);
  uint32_t PythonFrame(uint32_t code, int32_t instruction, bool entry);
  // Innermost first; returns the stack's id.
  uint32_t Stack(const std::vector<uint32_t>& frames);
  uint32_t Thread(uint64_t tid, const std::string& name);

  void Add(BuiltEvent event);
  void AddMark(Mark::Kind kind, const std::string& text, uint64_t number = 0);
  void AddDeviceMemory(int32_t device, uint64_t free, uint64_t total);
  // A folded window of `events` events that are all gone, in a packet of its own: every place in `stacks` is
  // named by the event that would be born there. Its stacks are not compressed.
  struct FoldedPlace {
    BuiltEvent birth;
    uint64_t births = 0;
    uint64_t most_count = 0;  // alive at once, each of birth.size bytes
    uint64_t count = 0;       // alive at the end of the window
  };
  void AddFolded(uint64_t events, const std::vector<FoldedPlace>& places);
  // What goes into the next packet, for parts that have no function here.
  Content& content() { return content_; }

  // Ends the current packet, when it has anything in it.
  void Flush();
  // Writes the last packet, with End.
  void Finish();

  const std::string& bytes() const { return bytes_; }
  // Where each packet begins.
  const std::vector<size_t>& packet_offsets() const { return packet_offsets_; }
  // First event of each packet.
  const std::vector<uint64_t>& packet_first_event() const { return packet_first_event_; }
  uint64_t next_sequence() const { return sequence_ + 1; }

 private:
  struct SiteState {
    uint64_t address = 0;
    uint64_t size = 0;
    uint64_t argument[2] = {0, 0};
  };
  uint32_t SiteOf(const BuiltEvent& event);
  void Put(int column, uint64_t value);
  void PutZigzag(int column, uint64_t difference);

  const Options options_;
  Content content_;
  std::string columns_[11];
  std::map<std::string, uint32_t> strings_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> nodes_;
  std::map<std::string, uint32_t> sites_;  // by the serialized site, without its id
  std::map<uint32_t, gpumemtrace::Site> site_messages_;
  std::map<uint32_t, uint32_t> site_defined_in_;  // restart
  uint32_t next_module_ = 1;
  uint32_t next_code_ = 1;
  uint32_t next_frame_ = 1;
  uint32_t next_thread_ = 1;
  std::map<uint32_t, SiteState> predictors_;
  std::vector<event_prediction::Entry> predictions_;
  event_prediction::Predictor predictor_;
  std::map<int32_t, std::pair<uint64_t, uint64_t>> totals_;
  // Live objects: (kind of birth, address) → (index, size).
  std::map<std::pair<EventKind, uint64_t>, std::pair<uint64_t, uint64_t>> live_;
  uint64_t index_ = 0;
  uint64_t sequence_ = 0;
  uint64_t time_us_ = 1000;
  uint64_t last_sequence_ = 0;
  uint64_t last_time_us_ = 0;
  uint32_t count_ = 0;
  uint32_t packets_ = 0;
  uint32_t restart_ = 0;
  std::string bytes_;
  std::vector<size_t> packet_offsets_;
  std::vector<uint64_t> packet_first_event_;
};

// A Trace of one Packet around these bytes, with the right checksum.
std::string Frame(const std::string& content);

// CRC32C, bit by bit.
uint32_t SlowCrc32c(const std::string& bytes);

}  // namespace gpumemtrace::tests
