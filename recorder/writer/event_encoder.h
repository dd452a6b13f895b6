// Turns events into the columns of an Events message (trace.proto; which event has an entry in which column:
// event_columns.h). Keeps the predictors between packets.
#pragma once

#include <cstdint>
#include <span>

#include "proto/gpumemtrace/address_prediction.h"
#include "proto/gpumemtrace/event_prediction.h"
#include "proto/gpumemtrace/ring_file.h"
#include "recorder/memory/array.h"
#include "recorder/memory/hash_index.h"
#include "recorder/writer/address_trial.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/compressor.h"
#include "recorder/writer/dictionary.h"
#include "recorder/writer/event_column.h"
#include "recorder/writer/live_table.h"
#include "recorder/writer/size_counts.h"

namespace gpumemtrace::recorder {

class EventEncoder {
 public:
  // `api_names` as given to recorder::Initialize.
  EventEncoder(Dictionary& dictionary, std::span<const char* const> api_names)
      : dictionary_(dictionary), api_names_(api_names) {}
  ~EventEncoder();
  EventEncoder(const EventEncoder&) = delete;
  EventEncoder& operator=(const EventEncoder&) = delete;

  // Starts a packet. With `restart` every predictor begins anew and every site is defined again at its next
  // use, so that a reader that lost earlier packets can go on here.
  void Begin(bool restart);
  // Adds an event; false when it could not be encoded (memory): it is not in the packet then.
  bool Add(const ring_file::EventRecord& event, uint32_t thread);
  uint32_t count() const { return count_; }
  // Index of the packet's first event.
  uint64_t first_index() const { return first_index_; }
  // Bytes of all columns so far, before compression.
  size_t bytes() const { return bytes_; }
  // Whether what came since the last restart takes as much memory to read back and fold (folder.h) as may be:
  // by sites, and by events of which not both birth and death came since then.
  bool ManyToFold() const { return states_.size() >= kSitesToFold || unpaired_ >= kUnpairedToFold; }
  // Appends the serialized Events message of the packet; nothing when it has no events.
  void Finish(Compressor& compressor, ByteBuffer& out);
  // The packet was never written: its events do not count. The next packet must be a restart.
  void Discard();

  // Of BLOCK_* events so far.
  uint64_t live_blocks() const { return live_blocks_; }
  uint64_t live_block_bytes() const { return live_block_bytes_; }

  // Indices of the events at which each device had most bytes so far, in blocks and in segments. Replaces
  // `indices`.
  void HighestMoments(Array<uint64_t>& indices) const;

 private:
  static constexpr size_t kSitesToFold = size_t{1} << 15;
  static constexpr uint64_t kUnpairedToFold = uint64_t{1} << 14;

  // What many sites have in common.
  struct Class {
    uint64_t stream;
    uint32_t thread;
    int32_t result;
    int16_t device;
    uint16_t api;
    uint16_t flags;
    uint8_t space;
    uint8_t kind : 6;
    // The address is in units of 1 << kBlockShift.
    uint8_t shifted : 1;

    uint64_t Hash() const;
    bool operator==(const Class&) const = default;
  };
  // Sites and their keys are so small because there may be hundreds of thousands.
  struct SiteKey {
    uint32_t low_size;
    uint32_t high_size;
    uint32_t native_stack;
    uint32_t python_stack;
    uint32_t forward_stack;
    uint32_t size_varies : 1;
    // Place in classes_ + 1.
    uint32_t number_of_class : 31;

    uint64_t size() const { return uint64_t{high_size} << 32 | low_size; }
    void set_size(uint64_t size) {
      low_size = static_cast<uint32_t>(size);
      high_size = static_cast<uint32_t>(size >> 32);
    }
    uint64_t Hash() const;
    bool operator==(const SiteKey&) const = default;
  };
  struct Site {
    SiteKey key;
    // Place in states_, if that is one of this site; else it has not been used since the restart.
    uint32_t state;
  };
  static_assert(sizeof(Site) == 28);
  // Of a site since the restart, after which it was defined again.
  struct State {
    uint64_t last_address;
    uint32_t site;
    // Place of the rest of its predictors in more_, plus 1; 0 = none since then. Blocks whose size does not
    // vary, the most of all sites, have none.
    uint32_t more;
  };
  struct More {
    uint64_t last_size;
    uint64_t last_argument[2];
  };
  struct DeviceTotals {
    uint64_t restart;
    uint64_t allocated;
    uint64_t reserved;
  };
  // Bytes alive on one device, as blocks or as segments, as the analyzer adds them up.
  struct Book {
    int32_t device;
    bool blocks;
    uint64_t bytes;
    uint64_t peak;
    uint64_t peak_index;
  };
  // `expected`: the site that is probably meant, 0 = none. 0: no memory.
  uint32_t FindSite(SiteKey key, uint32_t expected);
  // Null: it has none, or not since the restart.
  State* StateOf(uint32_t site) {
    const uint32_t place = sites_[site - 1].state;
    return place < states_.size() && states_[place].site == site ? &states_[place] : nullptr;
  }
  // Place of the book of such an object in books_ + 1; 0 = none.
  uint32_t BookOf(const Class& of);
  void DefineSite(uint32_t id, const SiteKey& key);
  // Its place in classes_ + 1; 0: no memory.
  uint32_t FindClass(const Class& of);
  // False: no memory.
  bool HasMore(State& state);
  void PreparePrediction();
  void Put(EventColumn column, uint64_t value) {
    const size_t before = columns_[column].size();
    columns_[column].Varint(value);
    bytes_ += columns_[column].size() - before;
    not_zero_[column] |= value != 0;
  }

  Dictionary& dictionary_;
  const std::span<const char* const> api_names_;

  Array<Site> sites_;
  Array<More> more_;
  HashIndex site_index_;
  Array<State> states_;
  Array<Class> classes_;
  HashIndex class_index_;
  // Those that came last: calls alternate. By kind and call.
  uint32_t last_classes_[16] = {};
  SizeCounts size_counts_;
  LiveTable live_;
  // By ordinal + 1.
  Array<DeviceTotals> devices_;
  Array<Book> books_;
  uint64_t live_blocks_ = 0;
  uint64_t live_block_bytes_ = 0;

  event_prediction::Predictor predictor_;
  // Its tables.
  event_prediction::Entry* predictions_ = nullptr;
  // The columns of this packet are relative to it; not without memory for its tables.
  bool predicts_ = false;
  address_prediction::Predictor addresses_;
  // Its tables.
  address_prediction::Tables* address_tables_ = nullptr;
  // Whether they are worth it, and whether this packet has them.
  AddressTrial address_trial_;
  bool predicts_addresses_ = false;
  uint32_t restarts_ = 0;
  bool restart_ = false;
  uint64_t unpaired_ = 0;
  // Of the first event since then.
  uint64_t restart_index_ = 0;
  uint64_t next_index_ = 0;
  uint64_t first_index_ = 0;
  uint32_t count_ = 0;
  // In steps of kTimeStepUs.
  uint64_t first_time_ = 0;
  uint64_t last_time_ = 0;
  uint64_t first_sequence_ = 0;
  uint64_t last_sequence_ = 0;
  ByteBuffer columns_[kEventColumns];
  size_t bytes_ = 0;
  bool not_zero_[kEventColumns] = {};
  ByteBuffer message_;
  ByteBuffer column_message_;
  ByteBuffer compressed_;
};

}  // namespace gpumemtrace::recorder
