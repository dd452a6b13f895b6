// Writes traces for tests and benchmarks with the official protobuf library: definitions, columns,
// predictors, checksums. Independent of the recorder's writer, so that either can be checked against the
// other.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::synthetic {

// A stack of one kind, innermost node id; 0 = none.
using Stack = uint32_t;

struct Call {
  uint32_t code = 0;
  uint32_t line = 0;
};

// What stays the same in many events.
struct SiteSpec {
  EventKind kind = EVENT_KIND_UNSPECIFIED;
  Space space = SPACE_UNSPECIFIED;
  int32_t device = 0;
  uint32_t thread = 1;
  uint64_t stream = 0;
  uint64_t size = 0;
  Stack native = 0;
  Stack python = 0;
  Stack forward = 0;
  uint32_t api = 0;
  int32_t result = 0;
  uint32_t flags = 0;

  friend bool operator==(const SiteSpec&, const SiteSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const SiteSpec& s) {
    return H::combine(std::move(state), static_cast<int>(s.kind), static_cast<int>(s.space), s.device,
                      s.thread, s.stream, s.size, s.native, s.python, s.forward, s.api, s.result, s.flags);
  }
};

class TraceBuilder {
 public:
  // With a path, packets are written as they fill; without, Bytes() gives all of them.
  explicit TraceBuilder(const std::string& path = "");
  ~TraceBuilder();
  TraceBuilder(const TraceBuilder&) = delete;
  TraceBuilder& operator=(const TraceBuilder&) = delete;

  uint32_t String(const std::string& text);
  // A function of a Python source file that spans up to 500 lines from `first_line` on.
  uint32_t Code(const std::string& file, const std::string& function, uint32_t first_line);
  uint32_t Module(const std::string& path);
  // Outermost call first.
  Stack Python(const std::vector<Call>& calls);
  // Offsets into modules, outermost first.
  Stack Native(const std::vector<std::pair<uint32_t, uint64_t>>& frames);
  uint32_t Thread(const std::string& name);
  void Device(int32_t ordinal, uint64_t total);

  // Adds an event and returns its index. Ends refer to the index that made the object (kNone: unknown, then
  // `address` and `size` are written).
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t Begin(const SiteSpec& site, uint64_t address, uint64_t argument0, uint64_t argument1);
  uint64_t End(const SiteSpec& site, uint64_t birth, uint64_t address, uint64_t size, uint64_t argument0,
               uint64_t argument1);
  void Mark(Mark::Kind kind, const std::string& text, uint64_t number, uint32_t thread = 1);
  void DeviceMemory(int32_t device, uint64_t free, uint64_t total);

  // Microseconds that pass before the next event.
  void Advance(uint64_t microseconds) { time_ += microseconds; }
  uint64_t events() const { return next_index_; }

  // Ends the trace.
  void Finish();
  const std::string& Bytes() const { return bytes_; }

 private:
  struct SiteState {
    uint32_t id = 0;
    uint64_t last_address = 0;
    uint64_t last_argument[2] = {0, 0};
    uint64_t epoch = 0;
  };
  struct Totals {
    uint64_t allocated = 0;
    uint64_t reserved = 0;
    uint64_t epoch = 0;
  };
  static constexpr size_t kColumns = 11;

  SiteState& Site(const SiteSpec& spec);
  uint32_t Frame(const std::string& key, const gpumemtrace::Frame& frame);
  uint32_t Node(uint32_t parent, uint32_t frame);
  void Put(size_t column, uint64_t value);
  void PutDifference(size_t column, uint64_t value, uint64_t last);
  void Common(SiteState& site);
  void AddTotals(const SiteSpec& site, uint64_t size, bool birth, uint64_t allocated, uint64_t reserved);
  void FlushIfFull();
  void Flush();

  std::FILE* file_ = nullptr;
  std::string bytes_;
  Content content_;
  uint64_t packet_index_ = 0;
  uint64_t next_index_ = 0;
  uint64_t first_index_ = 0;
  uint64_t first_sequence_ = 0;
  uint64_t sequence_ = 1;
  uint64_t time_ = 1'000'000;
  uint64_t first_time_ = 0;
  uint64_t last_time_ = 0;
  uint32_t count_ = 0;
  uint64_t epoch_ = 1;
  std::array<std::string, kColumns> columns_;
  std::map<std::string, uint32_t> strings_;
  std::map<std::string, uint32_t> modules_;
  std::map<std::string, uint32_t> frames_;
  std::map<std::string, uint32_t> threads_;
  std::vector<std::pair<std::string, uint32_t>> codes_;  // key, first line
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> nodes_;
  absl::flat_hash_map<SiteSpec, SiteState> sites_;
  std::map<int32_t, Totals> totals_;
};

}  // namespace gpumemtrace::synthetic
