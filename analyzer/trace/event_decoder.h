// Decodes the event columns of packets: undoes the predictors, resolves references to births, and hands
// events, marks and device readings to the sink in the order of their sequence numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "analyzer/trace/birth_table.h"
#include "analyzer/trace/folded.h"
#include "analyzer/trace/model.h"
#include "analyzer/trace/packet.h"
#include "analyzer/trace/reader.h"
#include "gpumemtrace/address_prediction.h"
#include "gpumemtrace/event_prediction.h"

namespace gpumemtrace::analyzer {

class EventDecoder {
 public:
  EventDecoder(TraceModel& model, TraceSink& sink, DamageReport& damage);

  // Call after the packet's definitions are in the model.
  void Decode(const ReadyPacket& packet);

  // Takes over the definition of a site (also when it is defined again).
  void SiteDefined(SiteId id);

  // For events that do not come from columns (recovered rings): completes index, object, birth_index, size.
  // `event` has kind, site, address, sequence, time_us, argument, and size as recorded.
  void Append(TraceEvent event);
  void AppendMark(const TraceMark& mark);
  void AppendReading(const DeviceReading& reading);
  // Hands over what is still in the buffer.
  void Flush();

  uint64_t next_index() const { return next_index_; }

 private:
  // What decoding needs of a site, and its predictors, in one cache line.
  struct alignas(64) HotSite {
    uint64_t size = 0;
    uint64_t last_address = 0;  // already shifted
    uint64_t last_size = 0;
    uint64_t last_argument[2] = {0, 0};
    uint32_t epoch = 0;   // predictors of an older epoch count as 0
    uint32_t device = 0;  // index into devices_
    EventKind kind = EventKind::kUnspecified;
    uint8_t shift = 0;
    bool size_varies = false;
    bool failed = false;
    bool begins = false;
    bool has_live = false;
    bool has_address = false;
    bool block = false;
    uint8_t lane = 0;  // of its stream, as address_prediction.h counts them
  };
  struct DeviceTotals {
    uint64_t allocated = 0;
    uint64_t reserved = 0;
    bool known = true;
  };
  using Interruption = std::variant<TraceMark, DeviceReading>;

  void DecodeEvents(const ReadyPacket& packet);
  // Before and after the events of a packet.
  void BeginFolded(const ReadyPacket& packet);
  void EndFolded(const ReadyPacket& packet);
  // Births by kind and address, for Append.
  void IndexBirths();
  void Lost(uint64_t events, uint64_t offset, const std::string& fault);
  std::span<const TraceEvent> buffered() const { return {buffer_.data(), buffered_}; }

  TraceModel& model_;
  TraceSink& sink_;
  DamageReport& damage_;
  BirthTable births_;
  std::vector<HotSite> sites_{1};
  absl::flat_hash_map<int32_t, uint32_t> device_index_;
  std::vector<DeviceTotals> devices_;
  uint32_t epoch_ = 1;
  uint64_t next_index_ = 0;
  // Predictors are unknown until a packet that restarts them.
  bool needs_restart_ = false;

  event_prediction::Predictor predictor_;
  // Its tables; empty until a packet needs them.
  std::vector<event_prediction::Entry> predictions_;
  address_prediction::Predictor addresses_;
  // Its tables; none until a packet needs them.
  std::unique_ptr<address_prediction::Tables> address_tables_;

  // The folded window that is being read.
  bool in_folded_ = false;
  FoldedWindow folded_;

  // The first buffered_ are to be handed over; the others are written over.
  std::vector<TraceEvent> buffer_;
  size_t buffered_ = 0;
  // Of the packet being decoded, by sequence; interruptions_[next_interruption_…] are still to come.
  std::vector<std::pair<uint64_t, Interruption>> interruptions_;
  size_t next_interruption_ = 0;

  bool births_indexed_ = false;
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint64_t> birth_by_address_;
};

}  // namespace gpumemtrace::analyzer
