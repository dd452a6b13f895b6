// Frames packets and makes them ready ahead of the decoder, on a thread of its own when the trace is large
// enough to be worth it: reading, checksums, parsing and decompression on one core, decoding and analysis on
// another.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "analyzer/trace/framing.h"
#include "analyzer/trace/packet.h"

namespace gpumemtrace::analyzer {

struct FramedPacket {
  ReadyPacket packet;
  // The content was parsed and decompressed; else packet.fault() says what is wrong.
  bool loaded = false;
  uint64_t end_offset = 0;
  // Bytes lost to damage since the beginning of the trace.
  uint64_t bytes_skipped = 0;
};

class PacketSource {
 public:
  // `damage` belongs to the source until Finish.
  PacketSource(ByteSource bytes, DamageReport& damage, bool threaded);
  ~PacketSource();
  PacketSource(const PacketSource&) = delete;
  PacketSource& operator=(const PacketSource&) = delete;

  // Null at the end. Valid until the next call.
  const FramedPacket* Next();

  // Stops; afterwards the framer's findings can be read.
  void Finish();
  uint64_t bytes() const { return framer_.offset(); }
  int read_error() const { return framer_.read_error(); }

 private:
  static constexpr size_t kSlots = 4;

  bool Produce(FramedPacket& slot);
  void Run();

  DamageReport& damage_;
  PacketFramer framer_;
  std::array<FramedPacket, kSlots> slots_;

  // Packets made ready and packets taken, since the beginning: slot i % kSlots holds packet i.
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t ready_ = 0;
  uint64_t taken_ = 0;
  bool ended_ = false;
  bool stop_ = false;
  bool holding_ = false;  // the consumer still uses packet taken_
  std::thread thread_;
};

}  // namespace gpumemtrace::analyzer
