// Keeps a trace within its bound: begins a pass (folder.h) when the file comes near it, does the work in
// small turns, and puts the new file in the place of the old one.
//
// The trace and the file that is made of it are on disk together for a while, and the new one is never larger
// than the old one (folder.h). So a pass begins a little before half of the bound, and while it is at work
// the trace does not grow beyond that half: events wait in the rings, and their threads with them when these
// are full, which takes a program that makes events faster than they can be folded. Only what may never be
// dropped (what is alive, marks, readings, stacks) can make the trace larger.
//
// A process that is killed leaves the old file or the new one under the trace's name, never half of one, and
// perhaps an unfinished file beside it.
#pragma once

#include <atomic>
#include <cstdint>

#include "recorder/fold/folder.h"
#include "recorder/writer/writer.h"

namespace gpumemtrace::recorder {

class Folding {
 public:
  // `max_bytes` 0 = never.
  Folding(Writer& writer, TraceFile& file, FileLayer& layer, uint64_t max_bytes)
      : writer_(writer), file_(file), layer_(layer), max_bytes_(max_bytes), due_(Half() - Growth()) {}
  ~Folding() { Drop(); }
  Folding(const Folding&) = delete;
  Folding& operator=(const Folding&) = delete;

  bool running() const { return folder_ != nullptr; }
  // All is copied but for what was appended in the meantime, or it failed: call Complete.
  bool ready() const { return ready_ || error_ != 0; }

  // How large the trace may be made now; ~0 = as large as it has to.
  uint64_t Limit() const { return busy_.load(std::memory_order_relaxed) ? limit_ : ~uint64_t{0}; }
  // Nothing may be appended until the pass is through.
  bool Crowded() const { return file_.size() >= Limit(); }
  // The trace grows so fast that the pass must not pause.
  bool Hurried() const;

  // Begins a pass when one is due. Nobody else may use the writer meanwhile.
  void Begin();
  // Goes on for about `bytes` of the trace; the writer may be used by others meanwhile.
  void Work(size_t bytes);
  // Copies the rest and replaces the trace. Nobody else may use the writer meanwhile.
  void Complete();
  // The process ends: removes the unfinished file. May be called while another thread is inside Work; nothing
  // begins afterwards.
  void Cancel();

  // Passes that went through.
  uint64_t passes() const { return passes_; }
  // Stretches that folding would not have made smaller, of all passes.
  uint64_t copied_stretches() const { return copied_stretches_; }

 private:
  void Fail(int error);
  void Drop();
  uint64_t Half() const { return max_bytes_ / 2; }
  // What may be appended while a pass is at work.
  uint64_t Growth() const { return max_bytes_ / 32; }
  // After a pass that ended with a trace of `size` bytes, of which `folded` cannot become much smaller.
  void Plan(uint64_t size, uint64_t folded);

  Writer& writer_;
  TraceFile& file_;
  FileLayer& layer_;
  const uint64_t max_bytes_;
  // Size of the trace at which the next pass begins.
  uint64_t due_;
  // Windows are fewer and longer by this power of two.
  uint32_t pressure_ = 0;
  uint64_t limit_ = 0;
  // Size of the trace when the pass began.
  uint64_t begun_at_ = 0;
  Folder* folder_ = nullptr;
  bool ready_ = false;
  int error_ = 0;
  size_t keep_from_ = 0;
  uint64_t size_ = 0;
  uint64_t passes_ = 0;
  uint64_t copied_stretches_ = 0;
  bool complained_ = false;
  std::atomic<bool> cancelled_{false};
  // A pass is at work, and not cancelled.
  std::atomic<bool> busy_{false};
  // There is an unfinished file at path_.
  std::atomic<bool> unfinished_{false};
  char path_[4096] = "";
};

}  // namespace gpumemtrace::recorder
