#include "analyzer/trace/packet_source.h"

#include <utility>

namespace gpumemtrace::analyzer {

PacketSource::PacketSource(ByteSource bytes, DamageReport& damage, bool threaded)
    : damage_(damage), framer_(std::move(bytes), damage) {
  if (threaded) thread_ = std::thread(&PacketSource::Run, this);
}

PacketSource::~PacketSource() {
  Finish();
}

bool PacketSource::Produce(FramedPacket& slot) {
  PacketFramer::Frame frame;
  if (!framer_.Next(frame)) return false;
  slot.packet.offset = frame.offset;
  slot.packet.after_damage = frame.after_damage;
  slot.loaded = slot.packet.Load(frame.content);
  slot.end_offset = framer_.offset();
  slot.bytes_skipped = damage_.bytes_skipped;
  return true;
}

void PacketSource::Run() {
  for (;;) {
    uint64_t next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || ready_ - taken_ < kSlots; });
      if (stop_) return;
      next = ready_;
    }
    const bool more = Produce(slots_[next % kSlots]);
    {
      const std::lock_guard lock(mutex_);
      if (more) {
        ++ready_;
      } else {
        ended_ = true;
      }
    }
    changed_.notify_all();
    if (!more) return;
  }
}

const FramedPacket* PacketSource::Next() {
  if (!thread_.joinable()) return Produce(slots_[0]) ? &slots_[0] : nullptr;
  std::unique_lock lock(mutex_);
  if (holding_) {
    holding_ = false;
    ++taken_;
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return ended_ || ready_ > taken_; });
  if (ready_ == taken_) return nullptr;
  holding_ = true;
  return &slots_[taken_ % kSlots];
}

void PacketSource::Finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace gpumemtrace::analyzer
