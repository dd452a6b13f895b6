// Counting: what was born and what died at each birth place within a window, and the bytes alive on each
// device with their highest moment.
//
// A birth place is what the analyses tell apart: stacks, call, kind of memory and device. Sites that differ
// in size, stream or thread share one. Counts go on from window to window, figures begin anew with each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recorder/memory/array.h"
#include "recorder/memory/hash_index.h"
#include "recorder/writer/byte_buffer.h"

namespace gpumemtrace::recorder {

// Of one place in one window, as FoldedStacks has them; `last_birth` is an index, 0 = none.
struct PlaceFigures {
  uint64_t births;
  uint64_t born_bytes;
  uint64_t least_count;
  uint64_t most_count;
  uint64_t least_bytes;
  uint64_t most_bytes;
  // Alive at its end.
  uint64_t count;
  uint64_t bytes;
  uint64_t last_birth;

  bool operator==(const PlaceFigures&) const = default;
};

class Places {
 public:
  struct Key {
    uint32_t native_stack;
    uint32_t python_stack;
    uint32_t forward_stack;
    uint32_t api;
    uint8_t kind;
    uint8_t space;
    int16_t device;

    bool operator==(const Key&) const = default;
  };
  static constexpr uint32_t kMostPlaces = (uint32_t{1} << 20) - 1;

  // Number of the place, from 1 on; `site` stands for it in the trace when it is new. 0: no memory, or more
  // places than could be counted.
  uint32_t Number(const Key& key, uint32_t site);
  uint8_t KindOf(uint32_t place) const { return calls_[places_[place - 1].call].kind; }
  int16_t DeviceOf(uint32_t place) const { return calls_[places_[place - 1].call].device; }

  // The window begins not later than at this event; only the first call counts.
  void BeginAt(uint64_t index) {
    if (first_index_ == ~uint64_t{0}) first_index_ = index;
  }
  // False: no memory.
  bool Born(uint32_t place, uint64_t size, uint64_t index, uint64_t time);
  bool Died(uint32_t place, uint64_t size);
  // The same of something that an earlier window counted already: for what is alive on the device only.
  void BornBefore(uint32_t place, uint64_t size);
  void DiedBefore(uint32_t place, uint64_t size);

  // Figures of an earlier window. False: out of range, or no memory.
  bool AddFigures(uint32_t place, const PlaceFigures& figures);
  // A Folded.Peak of one. False: damaged, or no memory.
  bool AddPeak(std::span<const uint8_t> peak);

  // Places with figures in this window.
  size_t touched() const { return figures_.size(); }
  // Serializes the figures from `*place` on, at most `most` of them, as a FoldedStacks; moves `*place`.
  // False: no more.
  bool AppendStacks(size_t* place, size_t most, uint64_t last_index, ByteBuffer& stacks);
  // Folded.peak for each device that was touched.
  void AppendPeaks(ByteBuffer& folded);

  // The window ends.
  void Next();

 private:
  // Ids of stack nodes.
  struct Stacks {
    uint32_t native;
    uint32_t python;
    uint32_t forward;

    bool operator==(const Stacks&) const = default;
  };
  // So small because there may be hundreds of thousands.
  struct Place {
    // All three in kStackBits each; or kWide, and their place in wide_.
    uint64_t stacks;
    uint32_t site;
    // Place in figures_ + 1; 0 = nothing happened in this window.
    uint32_t figures : 20;
    // Place in calls_.
    uint32_t call : 12;
    // Alive now, and bytes of each; or kAside, and the place of the bytes of all in bytes_.
    uint32_t count;
    uint32_t size;
  };
  static_assert(sizeof(Place) == 24);
  // In what few places differ.
  struct Call {
    uint32_t api;
    uint8_t kind;
    uint8_t space;
    int16_t device;
    // Place in books_ + 1; 0 = none, as for handles.
    uint32_t book;
  };
  static constexpr uint32_t kMostCalls = uint32_t{1} << 12;
  // In this window. Nearly every place has one size, and then bytes follow from counts: so small because one
  // window may touch all places there are.
  struct Figures {
    uint32_t place : 20;
    // The rest is in more_[size - 1]; births and last_birth are not used.
    uint32_t uneven : 1;
    uint32_t least_count;
    uint32_t most_count;
    uint32_t births;
    // Index − first_index_ + 1; 0 = none.
    uint32_t last_birth;
    // Of each object that came or went.
    uint32_t size;
  };
  static_assert(sizeof(Figures) == 24);
  // Of a place with more than one size, or with numbers that Figures has no room for.
  struct More {
    uint64_t births;
    uint64_t born_bytes;
    uint64_t least_bytes;
    uint64_t most_bytes;
    uint64_t last_birth;

    bool operator==(const More&) const = default;
  };
  // Bytes alive on one device, blocks or segments.
  struct Book {
    int32_t device;
    bool blocks;
    bool touched;
    uint64_t bytes;
    uint64_t peak;
    uint64_t peak_index;
    uint64_t peak_time;
    uint64_t least;
  };
  static constexpr unsigned kStackBits = 21;
  static constexpr uint64_t kWide = uint64_t{1} << 63;
  static constexpr uint32_t kAside = uint32_t{1} << 31;

  static uint64_t HashOf(const Stacks& stacks, uint32_t call);
  Stacks StacksOf(const Place& place) const;
  uint64_t BytesOf(const Place& place) const {
    return (place.size & kAside) != 0 ? bytes_[place.size - kAside] : uint64_t{place.size} * place.count;
  }
  // So many are alive now, of so many bytes in all. False: no memory.
  bool SetAlive(Place* place, uint32_t count, uint64_t bytes);
  // Its place in calls_; kMostCalls: no memory, or too many.
  uint32_t CallOf(const Key& key);
  uint32_t BookOf(int32_t device, bool blocks);
  Book* BookOf(const Place& place) {
    const uint32_t book = calls_[place.call].book;
    return book == 0 ? nullptr : &books_[book - 1];
  }
  Figures* Touch(uint32_t place);
  // What they say of bytes and indices, however they are kept.
  More Whole(const Figures& figures) const;
  // Keeps them as they are from now on. False: no memory.
  bool Keep(Figures* figures, const More& more);
  // Whether an object of this size may come or go and Figures suffice.
  static bool Even(const Figures& figures, uint64_t size) {
    const bool untouched = figures.births == 0 && figures.least_count == figures.most_count;
    return figures.uneven == 0 && (figures.size == size || (untouched && size <= ~uint32_t{0}));
  }
  static void Touch(Book& book);

  Array<Place> places_;
  // Of the few whose stacks have greater ids, or whose objects differ in size.
  Array<Stacks> wide_;
  Array<uint64_t> bytes_;
  Array<Call> calls_;
  HashIndex index_;
  Array<Figures> figures_;
  Array<More> more_;
  // Where the window begins; ~0 = it has not begun.
  uint64_t first_index_ = ~uint64_t{0};
  Array<Book> books_;
  ByteBuffer part_;
};

}  // namespace gpumemtrace::recorder
