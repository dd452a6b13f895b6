// Keeps a trace within its bound: begins a pass (folder.h) when the file comes near it, does the work in
// small turns, and puts the new file in the place of the old one.
//
// The trace and the file that is made of it are on disk together for a while, so a pass begins at five
// eighths of the bound and leaves a quarter of it as it is. A process that is killed leaves the old file or
// the new one under the trace's name, never half of one, and perhaps an unfinished file beside it.
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
      : writer_(writer), file_(file), layer_(layer), max_bytes_(max_bytes), due_(max_bytes / 8 * 5) {}
  ~Folding() { Drop(); }
  Folding(const Folding&) = delete;
  Folding& operator=(const Folding&) = delete;

  bool running() const { return folder_ != nullptr; }
  // All is copied but for what was appended in the meantime, or it failed: call Complete.
  bool ready() const { return ready_ || error_ != 0; }

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

 private:
  void Fail(int error);
  void Drop();
  // A quarter of the bound, or less when that was not enough.
  uint64_t KeepBytes() const { return max_bytes_ / 4 >> pressure_; }

  Writer& writer_;
  TraceFile& file_;
  FileLayer& layer_;
  const uint64_t max_bytes_;
  // Size of the trace at which the next pass begins.
  uint64_t due_;
  uint32_t pressure_ = 0;
  Folder* folder_ = nullptr;
  bool ready_ = false;
  int error_ = 0;
  size_t keep_from_ = 0;
  uint64_t size_ = 0;
  uint64_t passes_ = 0;
  bool complained_ = false;
  std::atomic<bool> cancelled_{false};
  // There is an unfinished file at path_.
  std::atomic<bool> unfinished_{false};
  char path_[4096] = "";
};

}  // namespace gpumemtrace::recorder
