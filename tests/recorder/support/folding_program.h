// A program whose trace must be folded, and the turns of the session's writer thread in one thread with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "recorder/fold/folding.h"
#include "tests/recorder/support/writer_bench.h"

namespace gpumemtrace::tests {

inline constexpr uint64_t kBound = uint64_t{1} << 20;

enum class Mix {
  kUsual,
  // Sizes of all kinds, so that there are very many sites.
  kManySites,
  kNoMarks,
  // Hardly anything is freed.
  kOnlyGrows,
};

// A program with a steady loop of temporaries of many sizes, something that leaks, something that is replaced
// now and then, plain cudaMallocs that come and go, and two high moments.
class Program {
 public:
  // `make_room` empties the ring.
  Program(WriterBench& bench, uint64_t seed, Mix mix, std::function<void()> make_room)
      : bench_(bench),
        make_room_(std::move(make_room)),
        mix_(mix),
        random_(seed),
        slot_(bench.NewThread(77, "main")) {
    for (uint64_t place = 1; place <= kPlaces; ++place) {
      auto* stack =
          bench_.New<ring_file::StackRecord>(slot_, ring_file::RecordKind::kStack, sizeof(uint64_t));
      stack->number = place;
      stack->native_count = 1;
      *reinterpret_cast<uint64_t*>(stack + 1) = 0x10000 * place;
      slot_.ring.Publish();
    }
  }

  // Calls `after` now and then.
  template <typename After>
  void Run(uint64_t steps, After after) {
    for (uint64_t step = 0; step < steps; ++step) {
      if (mix_ != Mix::kNoMarks) Mark(step);
      const uint64_t temporaries = 40 + (step == steps / 3 ? 600 : step == steps / 2 ? 300 : 0);
      std::vector<uint64_t> made;
      for (uint64_t i = 0; i < temporaries; ++i) {
        const uint64_t sizes = mix_ == Mix::kManySites ? 4000 : 64;
        const uint64_t size = 512 * (1 + random_() % sizes);
        made.push_back(Allocate(static_cast<uint16_t>(1 + random_() % 12), size, 0));
        if (mix_ != Mix::kOnlyGrows && made.size() > 3 && random_() % 3 == 0) {
          const size_t which = random_() % made.size();
          Free(made[which]);
          made.erase(made.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      for (const uint64_t block : made) {
        if (mix_ != Mix::kOnlyGrows || random_() % 8 == 0) Free(block);
      }
      if (step % 5 == 0) Allocate(20, 4096, 0);  // leaks
      if (step % 40 == 0) {
        if (replaced_ != 0) Free(replaced_);
        replaced_ = Allocate(21, 8192 * (1 + step % 7), 0);
      }
      if (step % 16 == 3) {
        const uint64_t segment = Segment((2 << 20) + (step % 3 << 20));
        if (step % 32 == 3) FreeSegment(segment);
      }
      after();
    }
  }

 private:
  static constexpr uint64_t kPlaces = 32;
  struct Block {
    uint64_t address;
    uint64_t size;
    int16_t device;
  };

  void Put(recorder::Event event, uint64_t stack) {
    event.sequence = sequence_++;
    time_ns_ += 1000 * (1 + random_() % 50);
    while (!bench_.Put(slot_, event, time_ns_, stack)) make_room_();
  }
  uint64_t Allocate(uint16_t place, uint64_t size, int16_t device) {
    const uint64_t number = ++made_;
    recorder::Event event;
    event.kind = recorder::EventKind::kBlockAllocate;
    event.space = recorder::Space::kDevice;
    event.api = 3;
    event.device = static_cast<int16_t>(device + (place % 4 == 3 ? 1 : 0));
    event.address = 0x7f0000000000 + number * 0x10000;
    event.size = size;
    event.argument[0] = allocated_[event.device] += size;
    event.argument[1] = reserved_[event.device] = std::max(
        reserved_[event.device], (allocated_[event.device] + (2 << 20) - 1) & ~uint64_t{(2 << 20) - 1});
    blocks_[number] = {event.address, size, event.device};
    Put(event, place);
    return number;
  }
  void Free(uint64_t number) {
    const Block block = blocks_.at(number);
    blocks_.erase(number);
    recorder::Event event;
    event.kind = recorder::EventKind::kBlockFree;
    event.space = recorder::Space::kDevice;
    event.api = 3;
    event.device = block.device;
    event.address = block.address;
    event.size = block.size;
    event.argument[0] = allocated_[event.device] -= block.size;
    event.argument[1] = reserved_[event.device];
    Put(event, 0);
  }
  uint64_t Segment(uint64_t size) {
    recorder::Event event;
    event.kind = recorder::EventKind::kAllocate;
    event.space = recorder::Space::kDevice;
    event.api = 1;
    event.device = 0;
    event.address = 0x600000000000 + (++segments_ << 24);
    event.size = size;
    Put(event, 30);
    return event.address;
  }
  void FreeSegment(uint64_t address) {
    recorder::Event event;
    event.kind = recorder::EventKind::kFree;
    event.space = recorder::Space::kDevice;
    event.api = 2;
    event.device = 0;
    event.address = address;
    Put(event, 0);
  }
  void Mark(uint64_t step) {
    ring_file::MarkRecord* record = nullptr;
    while ((record = bench_.New<ring_file::MarkRecord>(slot_, ring_file::RecordKind::kMark, 0)) == nullptr) {
      make_room_();
    }
    record->header.detail = 4;  // STEP
    record->header.flags = 1;
    record->sequence = sequence_++;
    record->time_ns = time_ns_ += 1000;
    record->number = step;
    slot_.ring.Publish();
    bench_.next_sequence = sequence_;
  }

  WriterBench& bench_;
  std::function<void()> make_room_;
  Mix mix_;
  std::mt19937_64 random_;
  recorder::ThreadSlot& slot_;
  uint64_t sequence_ = 1;
  uint64_t time_ns_ = 1'000'000'000;
  uint64_t made_ = 0;
  uint64_t segments_ = 0;
  uint64_t replaced_ = 0;
  std::map<uint64_t, Block> blocks_;
  std::map<int, uint64_t> allocated_;
  std::map<int, uint64_t> reserved_;
};

// Sees how much is on disk at any moment: the trace and what is made of it, together.
class MeasuringLayer : public recorder::FileLayer {
 public:
  int64_t Write(int fd, const void* data, size_t bytes) override {
    const int64_t written = recorder::FileLayer::Write(fd, data, bytes);
    if (folder.empty()) return written;
    uint64_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_regular_file()) sum += entry.file_size();
    }
    largest = std::max(largest, sum);
    return written;
  }
  std::string folder;
  uint64_t largest = 0;
};

// A writer whose trace is folded, with the turns of the session's writer thread (Session::RunWriter) in one
// thread with the program.
class Recording {
 public:
  Recording(uint64_t bound, MeasuringLayer& layer)
      : bench(recorder::RingPlace::kPrivate, layer), folding(*bench.writer, bench.file, layer, bound) {
    layer.folder = bench.folder.path();
    bench.writer->SetBound(bound);
  }
  void Drain() {
    bench.writer->SetLimit(folding.Limit());
    EXPECT_EQ(bench.writer->Drain(recorder::Writer::Order::kExact), 0);
  }
  void Turn(size_t bytes = 16 << 10) {
    if (folding.ready()) folding.Complete();
    folding.Begin();
    folding.Work(bytes);
  }
  // What a thread does whose ring is full.
  void MakeRoom() {
    do {
      while (folding.Crowded()) {
        Turn();
        ++waits;
      }
      Drain();
    } while (folding.Crowded());
    // The writer thread comes round at least as often as rings are full.
    Turn();
  }

  WriterBench bench;
  recorder::Folding folding;
  // Turns that a thread had to wait for.
  uint64_t waits = 0;
};

}  // namespace gpumemtrace::tests
