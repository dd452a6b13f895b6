// One pass that makes a trace smaller: reads it back, writes another file beside it in which old stretches
// are folded windows (Folded in trace.proto), and copies the rest as it is. The trace itself is not touched;
// whoever owns it replaces it when the pass is through.
//
// A stretch that would not become smaller is copied, too: the new file is never larger than the old one. What
// is held in memory at a time is bounded for the same reason: a stretch with more than fits is copied.
//
// Works in small turns and needs no lock while the trace grows at its end. One thread at a time.
#pragma once

#include <cstdint>
#include <span>

#include "recorder/file/trace_file.h"
#include "recorder/fold/columns.h"
#include "recorder/fold/window.h"
#include "recorder/memory/array.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/compressor.h"
#include "recorder/writer/decompressor.h"

namespace gpumemtrace::recorder {

// A stretch of the trace that can be read without what lies before it, but for definitions: it begins with a
// packet that restarts the predictors, or is a folded window. The first one begins at offset 0.
struct TraceGroup {
  uint64_t offset;
  uint64_t packet_index;
  // Of its first event; 0 for the first group, which has none before it.
  uint64_t first_index;
  // Windows that were folded into it; 0 = detail.
  uint32_t windows;
  uint32_t reserved;
};

class Folder {
 public:
  struct Plan {
    // Of the whole trace, in order; copied.
    std::span<const TraceGroup> groups;
    // Groups from here on stay as they are.
    size_t keep_from;
    // Bytes of the trace now.
    uint64_t size;
    // Events whose groups stay as they are, too: the highest moments.
    std::span<const uint64_t> peaks;
    // Bytes of detail that become one window, and most windows before they are merged by twos.
    uint64_t window_bytes;
    uint32_t most_windows;
  };

  explicit Folder(FileLayer& layer) : to_(layer) {}

  // Makes the new file. 0 or −errno.
  int Begin(const TraceFile& from, const char* path, const Plan& plan);
  // Goes on for about `bytes` of the old file. 1: everything before `keep_from` is done and the tail is
  // copied up to the size that was planned; 0: there is more to do; −errno.
  int Turn(size_t bytes);
  // Copies on up to `size` of the old file, at most `bytes`. 1 when it is there; 0; −errno.
  int CopyTail(uint64_t size, size_t bytes);
  // Bytes of the old file that are in the new one.
  uint64_t position() const { return position_; }

  TraceFile& file() { return to_; }
  // Groups of the new file that stand for those before `keep_from`.
  const Array<TraceGroup>& groups() const { return new_groups_; }
  uint64_t folded_size() const { return folded_size_; }
  // Stretches that were copied because folding gains nothing there.
  uint64_t copied_stretches() const { return copied_stretches_; }
  // Where the part begins that stays.
  uint64_t cut() const { return cut_; }
  // Removes the new file.
  void Abandon();

 private:
  enum class Action : uint8_t { kHeader, kCopy, kFold };
  struct Step {
    uint64_t begin;
    uint64_t end;
    uint64_t first_index;
    uint64_t packet_index;
    // Packets that it has.
    uint64_t packets;
    // Its first group of the old file.
    size_t group;
    uint32_t windows;
    Action action;
  };
  struct Position {
    uint64_t ring;
    uint64_t position;
    uint64_t thread;
  };
  // A field of a Content with a place in the order of events.
  struct Timed {
    uint64_t sequence;
    size_t begin;
    size_t end;
    bool mark;
  };

  bool MakeSteps(const Plan& plan);
  int ReadPacket(std::span<const uint8_t>* packet, std::span<const uint8_t>* content);
  int AddPacket(std::span<const uint8_t> content, const Step& step);
  int AddFields(std::span<const uint8_t> content, const Step& step, bool* folded);
  bool AddDefinition(uint32_t number, std::span<const uint8_t> raw, std::span<const uint8_t> bytes,
                     const Step& step);
  int CopyHeader(std::span<const uint8_t> content);
  int BeginStep(const Step& step);
  // The step, or the part of it before `group`, is read.
  int EndStep(const Step& step, size_t group);
  int EndWindow(const Step& step);
  int CopyStretch(const Step& step, size_t group);
  void ClearWindow();
  size_t HeldBytes() const {
    return definitions_.size() + others_.size() + timed_bytes_.size() + timed_.size() * sizeof(Timed);
  }
  int WriteContent();
  static size_t WholeFields(const ByteBuffer& from, size_t begin, size_t most);

  const TraceFile* from_ = nullptr;
  TraceFile to_;
  // Of the old file, up to and including the first one that stays.
  Array<TraceGroup> old_groups_;
  Array<Step> steps_;
  size_t step_ = 0;
  // The one that is being read.
  size_t group_ = 0;
  Array<TraceGroup> new_groups_;
  uint64_t position_ = 0;
  uint64_t cut_ = 0;
  uint64_t folded_size_ = 0;
  bool step_begun_ = false;
  // The stretch holds more than may be held in memory: it will be copied.
  bool heavy_ = false;
  // Of the new file, when the step began.
  uint64_t step_offset_ = 0;
  size_t step_groups_ = 0;
  uint64_t copied_stretches_ = 0;

  FoldWindow window_;
  Compressor compressor_;
  Decompressor decompressor_;
  EventColumns events_;

  // Read ahead from position_.
  ByteBuffer input_;
  size_t input_used_ = 0;
  // Of the window that is being made.
  ByteBuffer definitions_;
  ByteBuffer timed_bytes_;
  Array<Timed> timed_;
  ByteBuffer others_;
  ByteBuffer statistics_;
  Array<Position> positions_;

  ByteBuffer scratch_;
  ByteBuffer scratch_events_;
  ByteBuffer definitions_part_;
  ByteBuffer folded_;
  ByteBuffer content_;
  ByteBuffer packet_;
  ByteBuffer small_;
  ByteBuffer compressed_;
};

}  // namespace gpumemtrace::recorder
