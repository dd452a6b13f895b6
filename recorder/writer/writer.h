// Moves records from the rings into the trace: orders events, encodes packets, writes them, and only then
// gives the space in the rings back. One thread at a time (the drain lock of whoever owns the writer).
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "recorder/file/trace_file.h"
#include "recorder/fold/folder.h"
#include "recorder/memory/array.h"
#include "recorder/rings/ring_table.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/compressor.h"
#include "recorder/writer/dictionary.h"
#include "recorder/writer/event_encoder.h"

namespace gpumemtrace::recorder {

// Loss.Cause in trace.proto.
enum class LossCause : uint8_t { kNoRing = 1, kStorage = 2, kReentered = 3, kFormat = 4 };

// What other threads count and the writer reports.
struct Losses {
  std::atomic<uint64_t> events[ring_file::kLossCauses] = {};

  void Add(LossCause cause, uint64_t count) {
    events[static_cast<size_t>(cause)].fetch_add(count, std::memory_order_relaxed);
  }
};

class Writer {
 public:
  struct Context {
    TraceFile& file;
    RingTable& rings;
    Losses& losses;
    // The next sequence number to be given out.
    const std::atomic<uint64_t>& next_sequence;
    std::span<const char* const> api_names;
    uint64_t (*now_ns)();
    // Memory that the recorder takes, for the statistics.
    uint64_t (*memory_bytes)();
  };
  explicit Writer(const Context& context);

  // The trace will be folded in pieces when it comes near `bytes`: predictors begin anew often enough, and
  // packets are small beside it. 0 = it will not.
  void SetBound(uint64_t bytes);
  // Drains with kExact make no further packet when the file has so many bytes.
  void SetLimit(uint64_t bytes) { limit_ = bytes; }
  // A drain orders about so many records at a time.
  void SetBatch(size_t records) { batch_ = records; }

  // Writes the first packet; `header` is a serialized Header. 0 or −errno.
  int Start(std::span<const uint8_t> header);

  enum class Order {
    // Leaves events in the rings that an earlier number might still overtake.
    kExact,
    // Takes everything: a ring is full, or the process ends. SEQUENCE still tells the true order.
    kEverything,
  };
  // 0 or −errno of the storage. With kEverything what cannot be written is given up and counted as lost.
  int Drain(Order order);

  // Drains everything and appends the packet that tells an orderly end.
  int Finish();

  // Facts that come from the recorder itself; they go into the next packet.
  void AddNote(uint8_t severity, const char* text);
  void AddInterpreter(uint32_t version, bool free_threaded, bool supported, std::span<const char> reason);

  // Events in the trace so far.
  uint64_t events_written() const { return events_written_; }
  uint64_t live_blocks() const { return encoder_.live_blocks(); }
  uint64_t live_block_bytes() const { return encoder_.live_block_bytes(); }
  // Bytes in the fullest ring when the last drain began, in 1/256 of its capacity.
  uint32_t fullest() const { return fullest_; }

  // For folding: where the trace can be cut, and the events whose surroundings must stay.
  const Array<TraceGroup>& groups() const { return groups_; }
  void HighestMoments(Array<uint64_t>& indices) const { encoder_.HighestMoments(indices); }
  // The file has become another one: the groups before `kept` are now `folded`, and what was at `old_offset`
  // is at `new_offset`. False without memory: the groups are unknown then, and nothing can be folded any
  // more.
  bool Replaced(const Array<TraceGroup>& folded, size_t kept, uint64_t old_offset, uint64_t new_offset);

 private:
  // A record with a sequence number.
  struct Item {
    uint64_t sequence;
    // Where the record begins in its ring, from RingState::base on.
    uint32_t offset;
    // Place in the table of rings, which is never as long as this could count.
    uint16_t ring;
    bool encoded;
  };
  static_assert(sizeof(Item) == 16);
  struct ThreadChange {
    // Of the ThreadRecord.
    uint64_t position;
    uint32_t thread;
    uint32_t reserved;
  };
  struct RingState {
    // Everything before it has been looked at for definitions.
    uint64_t parsed = 0;
    // Where the drain that runs will end.
    uint64_t goal = 0;
    // Its batch: [base, head).
    uint64_t base = 0;
    uint64_t head = 0;
    // Least sequence number between `head` and `goal`.
    uint64_t least_left = ~uint64_t{0};
    // Items of the batch: [first, first + total); those from `count` on must wait. Of the others
    // the first `prefix` are encoded, and `taken` in all.
    size_t first = 0;
    uint32_t total = 0;
    uint32_t count = 0;
    uint32_t prefix = 0;
    uint32_t taken = 0;
    // Consumed by the packet that is being made or waits; consumed by the last packet written; and written
    // or given up.
    uint64_t position = 0;
    uint64_t written = 0;
    uint64_t settled = 0;
    // The last one before `settled` and all later ones.
    Array<ThreadChange> threads;
    ModuleView modules;

    uint32_t ThreadBefore(uint64_t before) const {
      uint32_t thread = 0;
      for (const ThreadChange& change : threads) {
        if (change.position < before) thread = change.thread;
      }
      return thread;
    }
  };

  // Decides what is drained now.
  void BeginDrain();
  // Drains that, batch by batch. 0 or −errno.
  int EncodeBatches(Order order);
  // Takes the next batch. False: there is nothing behind it.
  bool Collect(Order order, size_t most);
  void Parse(RingState& state, uint32_t place, size_t most);
  // Leaves to the next batch what must wait when this number does.
  void WaitFrom(uint64_t watermark);
  void Define(const ring_file::RecordHeader& record, RingState& state);
  int EncodeAll(Order order);
  void Encode(Item& item);
  void EncodeMark(const ring_file::MarkRecord& record, uint32_t thread);
  void EncodeMemory(const ring_file::DeviceMemoryRecord& record);
  void AddNote(uint8_t severity, uint64_t time_ns, std::span<const char> text);
  void EncodeDevice(const ring_file::DeviceRecord& record);
  void BeginPacket();
  // Completes the packet and writes it. 0 or −errno; the packet then waits.
  int EndPacket(bool last);
  int WritePacket();
  // Gives the waiting packet up.
  void GiveUpPacket();
  // Lets the rings' owners have the space before `position`.
  void Settle();
  // Writes definitions of packets that were given up, when they are too many for the next one.
  int WriteOldDefinitions();
  int FramePacket();
  // Appends the framed packet. 0 or −errno.
  int AppendPacket();
  // Adds a note to the next packet when bytes went into a file of the host.
  void TellOfStrayed();
  void AddStatistics(ByteBuffer& content);
  void AddMessage(ByteBuffer& to, uint32_t field, const ByteBuffer& message);
  RingState& State(uint32_t place) { return *states_[place]; }

  const Context context_;
  Dictionary dictionary_;
  EventEncoder encoder_;
  Compressor compressor_;

  Array<RingState*> states_;
  size_t batch_ = size_t{1} << 15;
  // An event below that is in no ring before its goal cannot come any more.
  uint64_t watermark_ = 0;
  Array<Item> items_;
  // Places in items_, by sequence number.
  Array<uint32_t> order_;
  // Rings whose encoded items are not all at the front: no packet may end now.
  uint32_t open_rings_ = 0;

  // Marks of the packet that is being made (some libraries make many, and they compress well), and readings,
  // notes and other messages.
  ByteBuffer marks_;
  ByteBuffer others_;
  ByteBuffer message_;
  ByteBuffer scratch_;
  // Definitions and names of the packet, uncompressed, so that they survive when it has to be given up.
  ByteBuffer definitions_;
  ByteBuffer names_;
  ByteBuffer compressed_;
  ByteBuffer content_;
  ByteBuffer packet_;
  bool waiting_ = false;
  // This packet begins its predictors anew; the next one must.
  bool restart_ = true;
  bool restart_next_ = true;
  uint32_t packets_since_restart_ = 0;
  uint64_t restarted_at_ = 0;
  uint64_t restart_bytes_ = 0;
  uint64_t limit_ = ~uint64_t{0};
  size_t full_columns_;
  Array<TraceGroup> groups_;
  uint64_t packet_index_ = 0;
  uint64_t events_written_ = 0;
  uint64_t last_statistics_ns_ = 0;
  uint32_t fullest_ = 0;

  // The gap that the next packet must tell of.
  uint64_t gap_events_ = 0;
  int gap_error_ = 0;
  int last_error_ = 0;
  // Of the file's, those that were told of.
  uint64_t strayed_told_ = 0;
};

}  // namespace gpumemtrace::recorder
