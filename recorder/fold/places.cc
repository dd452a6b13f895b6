#include "recorder/fold/places.h"

#include <algorithm>

#include "proto/gpumemtrace/event_columns.h"
#include "recorder/event.h"
#include "recorder/fold/field_reader.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {
namespace {

// Memory that goes on from window to window.
constexpr size_t kLittle = size_t{512} << 10;

bool InHostMemory(uint8_t space) {
  return space == static_cast<uint8_t>(Space::kPinnedHost) ||
         space == static_cast<uint8_t>(Space::kRegisteredHost) ||
         space == static_cast<uint8_t>(Space::kHostPool);
}

const char* Chars(const ByteBuffer& buffer) {
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

uint64_t Places::HashOf(const Stacks& stacks, uint32_t call) {
  return Combine(Mix(uint64_t{stacks.native} << 32 | stacks.python), uint64_t{stacks.forward} << 32 | call);
}

Places::Stacks Places::StacksOf(const Place& place) const {
  if ((place.stacks & kWide) != 0) return wide_[place.stacks - kWide];
  constexpr uint32_t kMask = (uint32_t{1} << kStackBits) - 1;
  return {static_cast<uint32_t>(place.stacks >> 2 * kStackBits),
          static_cast<uint32_t>(place.stacks >> kStackBits) & kMask,
          static_cast<uint32_t>(place.stacks) & kMask};
}

uint32_t Places::Number(const Key& key, uint32_t site) {
  const uint32_t call = CallOf(key);
  if (call == kMostCalls) return 0;
  const Stacks stacks{key.native_stack, key.python_stack, key.forward_stack};
  const uint64_t hash = HashOf(stacks, call);
  const uint32_t found = index_.Find(hash, [&](uint32_t candidate) {
    const Place& place = places_[candidate - 1];
    return place.call == call && StacksOf(place) == stacks;
  });
  if (found != 0) return found;
  Place place{};
  if ((stacks.native | stacks.python | stacks.forward) >> kStackBits == 0) {
    place.stacks = (uint64_t{stacks.native} << kStackBits | stacks.python) << kStackBits | stacks.forward;
  } else {
    place.stacks = kWide + wide_.size();
    if (!wide_.Push(stacks)) return 0;
  }
  place.site = site;
  place.call = call & (kMostCalls - 1);
  if (places_.size() == kMostPlaces || !places_.Push(place)) return 0;
  const auto number = static_cast<uint32_t>(places_.size());
  const auto hash_of = [&](uint32_t old) {
    const Place& one = places_[old - 1];
    return HashOf(StacksOf(one), one.call);
  };
  if (!index_.Insert(hash, number, hash_of)) return 0;
  return number;
}

uint32_t Places::CallOf(const Key& key) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.api == key.api && call.kind == key.kind && call.space == key.space && call.device == key.device)
      return static_cast<uint32_t>(i);
  }
  Call call{key.api, key.kind, key.space, key.device, 0};
  if (key.kind == event_columns::kAllocate || key.kind == event_columns::kBlockAllocate) {
    const bool blocks = key.kind == event_columns::kBlockAllocate;
    call.book = BookOf(!blocks && InHostMemory(key.space) ? -1 : key.device, blocks);
    if (call.book == 0) return kMostCalls;
  }
  if (calls_.size() == kMostCalls || !calls_.Push(call)) return kMostCalls;
  return static_cast<uint32_t>(calls_.size() - 1);
}

uint32_t Places::BookOf(int32_t device, bool blocks) {
  for (size_t i = 0; i < books_.size(); ++i) {
    if (books_[i].device == device && books_[i].blocks == blocks) return static_cast<uint32_t>(i + 1);
  }
  Book book{};
  book.device = device;
  book.blocks = blocks;
  return books_.Push(book) ? static_cast<uint32_t>(books_.size()) : 0;
}

// --- what happens ---

Places::Figures* Places::Touch(uint32_t number) {
  Place& place = places_[number - 1];
  if (place.figures == 0) {
    Figures none{};
    none.place = number & kMostPlaces;
    none.least_count = none.most_count = place.count;
    if (!figures_.Push(none)) return nullptr;
    place.figures = static_cast<uint32_t>(figures_.size()) & kMostPlaces;
  }
  return &figures_[place.figures - 1];
}

bool Places::SetAlive(Place* place, uint32_t count, uint64_t bytes) {
  place->count = count;
  if ((place->size & kAside) != 0) {
    bytes_[place->size - kAside] = bytes;
    return true;
  }
  if (uint64_t{place->size} * count == bytes) return true;
  if (count != 0 && bytes % count == 0 && bytes / count < kAside) {
    place->size = static_cast<uint32_t>(bytes / count);
    return true;
  }
  if (bytes_.size() == kAside || !bytes_.Push(bytes)) return false;
  place->size = kAside + static_cast<uint32_t>(bytes_.size() - 1);
  return true;
}

Places::More Places::Whole(const Figures& figures) const {
  if (figures.uneven != 0) return more_[figures.size - 1];
  const Place& place = places_[figures.place - 1];
  const uint64_t size = figures.size;
  More whole{};
  whole.births = figures.births;
  whole.born_bytes = figures.births * size;
  const uint64_t bytes = BytesOf(place);
  whole.least_bytes = bytes - size * (place.count - figures.least_count);
  whole.most_bytes = bytes + size * (figures.most_count - place.count);
  if (figures.last_birth != 0) whole.last_birth = first_index_ + figures.last_birth - 1;
  return whole;
}

bool Places::Keep(Figures* figures, const More& more) {
  if (figures->uneven == 0) {
    if (more_.size() == ~uint32_t{0} || !more_.Push(more)) return false;
    figures->uneven = 1;
    figures->size = static_cast<uint32_t>(more_.size());
  }
  more_[figures->size - 1] = more;
  return true;
}

void Places::Touch(Book& book) {
  if (book.touched) return;
  book.touched = true;
  book.least = book.bytes;
  book.peak = 0;
}

bool Places::Born(uint32_t number, uint64_t size, uint64_t index, uint64_t time) {
  Figures* figures = Touch(number);
  if (figures == nullptr) return false;
  Place& place = places_[number - 1];
  const uint64_t bytes = BytesOf(place) + size;
  const uint64_t distance = index - first_index_;
  if (Even(*figures, size) && figures->births < ~uint32_t{0} && distance < ~uint32_t{0}) {
    figures->size = static_cast<uint32_t>(size);
    ++figures->births;
    figures->last_birth = static_cast<uint32_t>(distance + 1);
  } else {
    More more = Whole(*figures);
    ++more.births;
    more.born_bytes += size;
    more.last_birth = index;
    more.most_bytes = std::max(more.most_bytes, bytes);
    if (!Keep(figures, more)) return false;
  }
  if (!SetAlive(&place, place.count + 1, bytes)) return false;
  figures->most_count = std::max(figures->most_count, place.count);
  Book* found = BookOf(place);
  if (found == nullptr) return true;
  Book& book = *found;
  Touch(book);
  book.bytes += size;
  if (book.bytes > book.peak) {
    book.peak = book.bytes;
    book.peak_index = index;
    book.peak_time = time;
  }
  return true;
}

bool Places::Died(uint32_t number, uint64_t size) {
  Figures* figures = Touch(number);
  if (figures == nullptr) return false;
  Place& place = places_[number - 1];
  const uint64_t bytes = BytesOf(place) - size;
  if (Even(*figures, size)) {
    figures->size = static_cast<uint32_t>(size);
  } else {
    More more = Whole(*figures);
    more.least_bytes = std::min(more.least_bytes, bytes);
    if (!Keep(figures, more)) return false;
  }
  if (!SetAlive(&place, place.count - 1, bytes)) return false;
  figures->least_count = std::min(figures->least_count, place.count);
  Book* found = BookOf(place);
  if (found == nullptr) return true;
  Book& book = *found;
  Touch(book);
  book.bytes -= size;
  book.least = std::min(book.least, book.bytes);
  return true;
}

void Places::BornBefore(uint32_t number, uint64_t size) {
  if (Book* book = BookOf(places_[number - 1])) book->bytes += size;
}

void Places::DiedBefore(uint32_t number, uint64_t size) {
  if (Book* book = BookOf(places_[number - 1])) book->bytes -= size;
}

// --- earlier windows ---

bool Places::AddFigures(uint32_t number, const PlaceFigures& added) {
  Figures* figures = Touch(number);
  if (figures == nullptr || std::max(added.most_count, added.count) > ~uint32_t{0}) return false;
  Place& place = places_[number - 1];
  const More before = Whole(*figures);
  More more = before;
  more.births += added.births;
  more.born_bytes += added.born_bytes;
  more.least_bytes = std::min(more.least_bytes, added.least_bytes);
  more.most_bytes = std::max(more.most_bytes, added.most_bytes);
  if (added.last_birth != 0) more.last_birth = added.last_birth;
  const auto least = static_cast<uint32_t>(std::min<uint64_t>(figures->least_count, added.least_count));
  const auto most = static_cast<uint32_t>(std::max<uint64_t>(figures->most_count, added.most_count));
  if (!SetAlive(&place, static_cast<uint32_t>(added.count), added.bytes)) return false;

  // Whether counts and one size say the same.
  Figures even{};
  even.place = figures->place;
  even.least_count = least;
  even.most_count = most;
  even.births = static_cast<uint32_t>(more.births);
  const uint64_t size = more.births != 0 ? more.born_bytes / more.births
                        : most != least  ? (more.most_bytes - more.least_bytes) / (most - least)
                                         : 0;
  even.size = static_cast<uint32_t>(size);
  const uint64_t distance = more.last_birth - first_index_;
  if (more.last_birth != 0) even.last_birth = static_cast<uint32_t>(distance + 1);
  const bool near = more.last_birth == 0 || distance < ~uint32_t{0};
  if (figures->uneven == 0 && near && Whole(even) == more) {
    *figures = even;
    return true;
  }
  figures->least_count = least;
  figures->most_count = most;
  return Keep(figures, more);
}

bool Places::AddPeak(std::span<const uint8_t> message) {
  int32_t device = 0;
  bool blocks = false;
  Book peak{};
  FieldReader part(message);
  Field one;
  while (part.Next(&one)) {
    if (one.number == fields::kFoldedPeakDevice) device = static_cast<int32_t>(one.Signed());
    if (one.number == fields::kFoldedPeakBlocks) blocks = one.value != 0;
    if (one.number == fields::kFoldedPeakBytes) peak.peak = one.value;
    if (one.number == fields::kFoldedPeakIndex) peak.peak_index = one.value;
    if (one.number == fields::kFoldedPeakTime) peak.peak_time = one.value;
    if (one.number == fields::kFoldedPeakLeastBytes) peak.least = one.value;
  }
  const uint32_t number = BookOf(device, blocks);
  if (part.failed() || number == 0) return false;
  Book& book = books_[number - 1];
  if (!book.touched || peak.peak > book.peak) {
    book.peak = peak.peak;
    book.peak_index = peak.peak_index;
    book.peak_time = peak.peak_time;
  }
  book.least = book.touched ? std::min(book.least, peak.least) : peak.least;
  book.touched = true;
  return true;
}

// --- writing ---

bool Places::AppendStacks(size_t* from, size_t most, uint64_t last_index, ByteBuffer& stacks) {
  const size_t end = std::min(figures_.size(), *from + most);
  if (*from >= end) return false;
  const auto list = [&](uint32_t field, auto value_of) {
    part_.Clear();
    for (size_t i = *from; i < end; ++i) part_.Varint(value_of(figures_[i]));
    ProtoWriter(stacks).add_bytes(field, Chars(part_), part_.size());
  };
  const auto place_of = [&](const Figures& one) -> const Place& { return places_[one.place - 1]; };
  list(fields::kFoldedStacksSite, [&](const Figures& one) -> uint64_t { return place_of(one).site; });
  list(fields::kFoldedStacksBirths, [&](const Figures& one) { return Whole(one).births; });
  list(fields::kFoldedStacksBornBytes, [&](const Figures& one) { return Whole(one).born_bytes; });
  list(fields::kFoldedStacksLeastCount, [](const Figures& one) -> uint64_t { return one.least_count; });
  list(fields::kFoldedStacksMostCount, [](const Figures& one) -> uint64_t { return one.most_count; });
  list(fields::kFoldedStacksLeastBytes, [&](const Figures& one) { return Whole(one).least_bytes; });
  list(fields::kFoldedStacksMostBytes, [&](const Figures& one) { return Whole(one).most_bytes; });
  list(fields::kFoldedStacksCount, [&](const Figures& one) -> uint64_t { return place_of(one).count; });
  list(fields::kFoldedStacksBytes, [&](const Figures& one) { return BytesOf(place_of(one)); });
  list(fields::kFoldedStacksLastBirth, [&](const Figures& one) {
    const More whole = Whole(one);
    return whole.births == 0 ? 0 : last_index + 1 - whole.last_birth;
  });
  *from = end;
  return true;
}

void Places::AppendPeaks(ByteBuffer& folded) {
  for (const Book& book : books_) {
    if (!book.touched) continue;
    part_.Clear();
    ProtoWriter peak(part_);
    peak.add_sint32(fields::kFoldedPeakDevice, book.device);
    if (book.blocks) peak.add_bool(fields::kFoldedPeakBlocks, true);
    peak.add_uint64(fields::kFoldedPeakBytes, book.peak);
    peak.add_uint64(fields::kFoldedPeakIndex, book.peak_index);
    peak.add_uint64(fields::kFoldedPeakTime, book.peak_time);
    peak.add_uint64(fields::kFoldedPeakLeastBytes, book.least);
    ProtoWriter(folded).add_message(fields::kFoldedPeak, Chars(part_), part_.size());
  }
}

void Places::Next() {
  for (const Figures& one : figures_) places_[one.place - 1].figures = 0;
  figures_.Clear();
  figures_.Trim(kLittle);
  more_.Clear();
  more_.Trim(kLittle);
  first_index_ = ~uint64_t{0};
  for (Book& book : books_) book.touched = false;
}

}  // namespace gpumemtrace::recorder
