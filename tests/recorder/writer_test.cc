// The writer: what goes into the rings comes out of the trace, in order, once, however it is drained.
#include "recorder/writer/writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "tests/recorder/support/writer_bench.h"

namespace gpumemtrace::tests {
namespace {

using recorder::Event;
using recorder::Writer;

Event Block(recorder::EventKind kind, uint64_t sequence, uint64_t address, uint64_t size,
            uint64_t allocated) {
  Event event;
  event.kind = kind;
  event.space = recorder::Space::kDevice;
  event.api = 3;
  event.device = 0;
  event.sequence = sequence;
  event.address = address;
  event.size = size;
  event.argument[0] = allocated;
  event.argument[1] = 2 << 20;
  return event;
}

// The way a decoded event should look.
void ExpectSame(const DecodedEvent& decoded, const Event& event, uint64_t tid, uint64_t time_ns) {
  EXPECT_EQ(static_cast<int>(decoded.kind), static_cast<int>(event.kind));
  EXPECT_EQ(static_cast<int>(decoded.space), static_cast<int>(event.space));
  EXPECT_EQ(decoded.api, kApiNames[event.api]);
  EXPECT_EQ(decoded.device, event.device);
  EXPECT_EQ(decoded.tid, tid);
  EXPECT_EQ(decoded.stream, event.stream);
  EXPECT_EQ(decoded.size, event.size);
  EXPECT_EQ(decoded.address, event.address);
  EXPECT_EQ(decoded.argument[0], event.argument[0]);
  EXPECT_EQ(decoded.argument[1], event.argument[1]);
  EXPECT_EQ(decoded.result, event.result);
  EXPECT_EQ(decoded.flags, event.flags);
  EXPECT_EQ(decoded.sequence, event.sequence);
  EXPECT_EQ(decoded.time_us, time_ns / 4000 * 4);
}

TEST(Writer, EmptyTraceHasAHeaderOnly) {
  WriterBench bench;
  const DecodedTrace trace = bench.Decode();
  EXPECT_EQ(trace.packets, 1u);
  EXPECT_EQ(trace.header.format_version(), 4u);
  EXPECT_FALSE(trace.ended);
  EXPECT_EQ(bench.writer->Finish(), 0);
  EXPECT_TRUE(bench.Decode().ended);
}

TEST(Writer, FreeNamesItsBirth) {
  WriterBench bench;
  auto& slot = bench.NewThread(7, "main");
  bench.Put(slot, Block(recorder::EventKind::kBlockAllocate, 1, 0x7f0000000200, 1024, 1024), 5000);
  bench.Put(slot, Block(recorder::EventKind::kBlockFree, 2, 0x7f0000000200, 1024, 0), 9000);
  // Never seen being allocated.
  bench.Put(slot, Block(recorder::EventKind::kBlockFree, 3, 0x7f0000009000, 512, 0), 9999);
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[1].birth, 0u);
  EXPECT_EQ(trace.events[1].size, 1024u);
  EXPECT_FALSE(trace.events[2].birth.has_value());
  EXPECT_EQ(trace.events[2].address, 0x7f0000009000u);
  EXPECT_EQ(trace.events[2].size, 512u);
}

// A program that does the same again and again leaves the site, time and distance of nearly no event in the
// trace, also where two parts of the loop look alike for a while, and a restart begins anew.
TEST(Writer, WhatRepeatsItselfIsPredicted) {
  WriterBench bench;
  auto& slot = bench.NewThread(7, "main");
  constexpr uint64_t kLoops = 200;
  constexpr uint64_t kSizes[] = {512, 1024, 1024, 512, 2048, 4096, 1024, 1024, 512, 512};
  uint64_t sequence = 0;
  uint64_t allocated = 0;
  const auto put = [&](recorder::EventKind kind, uint64_t i) {
    ++sequence;
    allocated += kind == recorder::EventKind::kBlockAllocate ? kSizes[i] : 0 - kSizes[i];
    bench.Put(slot, Block(kind, sequence, 0x7f0000000000 + i * 4096, kSizes[i], allocated),
              sequence * 20'000);
  };
  for (uint64_t loop = 0; loop < kLoops; ++loop) {
    for (const uint64_t half : {0, 5}) {
      for (uint64_t i = 0; i < 5; ++i) put(recorder::EventKind::kBlockAllocate, half + i);
      for (uint64_t i = 5; i-- > 0;) put(recorder::EventKind::kBlockFree, half + i);
    }
    if (loop % 10 == 9) {
      ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
    }
  }
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), sequence);
  for (uint64_t i = 0; i < sequence; ++i) {
    EXPECT_EQ(trace.events[i].time_us, (i + 1) * 20);
    const bool frees = i % 10 >= 5;
    EXPECT_EQ(trace.events[i].birth.has_value(), frees);
    if (frees) {
      EXPECT_EQ(trace.events[i].birth, i - 2 * (i % 10) + 9);
    }
  }
  EXPECT_GT(trace.predicted, sequence * 97 / 100);
}

// A caching allocator puts blocks where they fit best: nearly no address is in the trace, though each step
// asks for other sizes; also after a restart.
TEST(Writer, AddressesFollowFromWhatIsFree) {
  WriterBench bench;
  auto& slot = bench.NewThread(7, "main");
  constexpr uint64_t kSteps = 900;
  constexpr uint64_t kBlocks = 10;
  std::mt19937_64 random(3);
  uint64_t sequence = 0;
  uint64_t allocated = 0;
  std::vector<std::pair<uint64_t, uint64_t>> put;
  const auto event = [&](recorder::EventKind kind, uint64_t address, uint64_t size) {
    ++sequence;
    allocated += kind == recorder::EventKind::kBlockAllocate ? size : 0 - size;
    bench.Put(slot, Block(kind, sequence, address, size, allocated), sequence * 20'000);
    put.emplace_back(address, size);
  };
  for (uint64_t step = 0; step < kSteps; ++step) {
    const uint64_t length = 1 + random() % 60;
    uint64_t address[kBlocks];
    uint64_t next = 0x7f0000000000;
    const auto size = [&](uint64_t i) { return (1 + i % 4) * length * 512; };
    for (uint64_t i = 0; i < kBlocks; ++i) {
      address[i] = next;
      event(recorder::EventKind::kBlockAllocate, next, size(i));
      next += size(i);
    }
    // The second half before the first.
    for (uint64_t i = 0; i < kBlocks; ++i) {
      const uint64_t which = (i + kBlocks / 2) % kBlocks;
      event(recorder::EventKind::kBlockFree, address[which], size(which));
    }
    if (step % 5 == 4) {
      ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
    }
  }
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), put.size());
  EXPECT_GT(trace.restarts, 1u);
  for (size_t i = 0; i < put.size(); ++i) {
    ASSERT_EQ(trace.events[i].address, put[i].first) << i;
    ASSERT_EQ(trace.events[i].size, put[i].second) << i;
  }
  EXPECT_GT(trace.expected_addresses, kSteps * kBlocks * 97 / 100);
}

// Where each place has an address of its own, the prediction saves nothing and is left out; it comes back,
// after a pause, when the addresses follow from what is free.
TEST(Writer, AddressesArePredictedOnlyWhereThatSaves) {
  WriterBench bench;
  auto& slot = bench.NewThread(7, "main");
  constexpr uint64_t kBlocks = 10;
  std::mt19937_64 random(4);
  uint64_t sequence = 0;
  uint64_t allocated = 0;
  std::vector<uint64_t> put;
  const auto event = [&](recorder::EventKind kind, uint64_t address, uint64_t size) {
    ++sequence;
    allocated += kind == recorder::EventKind::kBlockAllocate ? size : 0 - size;
    bench.Put(slot, Block(kind, sequence, address, size, allocated), sequence * 20'000);
    put.push_back(address);
  };
  const auto step = [&](bool best_fit) {
    const uint64_t length = best_fit ? 1 + random() % 60 : 1;
    uint64_t address[kBlocks];
    uint64_t next = 0x7f0000000000;
    for (uint64_t i = 0; i < kBlocks; ++i) {
      address[i] = best_fit ? next : 0x7f0000000000 + (i * 7 % kBlocks << 16);
      event(recorder::EventKind::kBlockAllocate, address[i], (1 + i) * length * 512);
      next += (1 + i) * length * 512;
    }
    for (uint64_t i = 0; i < kBlocks; ++i) {
      event(recorder::EventKind::kBlockFree, address[i], (1 + i) * length * 512);
    }
  };
  const uint64_t own_steps = recorder::AddressTrial::kEnough / kBlocks + 100;
  for (uint64_t i = 0; i < own_steps; ++i) {
    step(false);
    if (i % 50 == 49) {
      ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
    }
  }
  const uint64_t own_events = sequence;
  for (uint64_t i = 0; i < 3 * 128; ++i) {
    step(true);
    ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  }
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace decoded = bench.Decode();
  ASSERT_EQ(decoded.events.size(), put.size());
  for (size_t i = 0; i < put.size(); ++i) ASSERT_EQ(decoded.events[i].address, put[i]) << i;

  Trace trace;
  ASSERT_TRUE(trace.ParseFromString(ReadFileBytes(bench.path)));
  std::vector<bool> restarts;
  bool before = false;
  bool last_of_own = true;
  for (const Packet& packet : trace.packet()) {
    if (!packet.content().has_events()) continue;
    const Events& events = packet.content().events();
    // Whoever predicts has done so since the restart.
    EXPECT_TRUE(events.restart() || before || !events.addresses_predicted());
    before = events.addresses_predicted();
    if (events.restart()) restarts.push_back(before);
    if (events.first_index() < own_events) last_of_own = before;
  }
  EXPECT_FALSE(last_of_own);
  EXPECT_EQ(restarts, (std::vector<bool>{true, false, true, true}));
}

// A free is numbered before the call and recorded after it; meanwhile another thread gets the address.
TEST(Writer, LateFreeEndsTheOlderObject) {
  WriterBench bench;
  auto& a = bench.NewThread(1, "a");
  auto& b = bench.NewThread(2, "b");
  bench.Put(a, Block(recorder::EventKind::kBlockAllocate, 1, 0x1000, 512, 512), 1000);
  bench.Put(b, Block(recorder::EventKind::kBlockAllocate, 3, 0x1000, 512, 512), 3000);
  // The rings were full, so the writer had to go on without number 2.
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kEverything), 0);
  bench.Put(a, Block(recorder::EventKind::kBlockFree, 2, 0x1000, 512, 0), 2000);
  bench.Put(a, Block(recorder::EventKind::kBlockFree, 4, 0x1000, 512, 0), 4000);
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), 4u);
  EXPECT_EQ(trace.events[2].birth, 0u);
  EXPECT_EQ(trace.events[3].birth, 1u);
}

TEST(Writer, FailedEventsChangeNothing) {
  WriterBench bench;
  auto& slot = bench.NewThread(7, "main");
  Event event;
  event.kind = recorder::EventKind::kAllocate;
  event.space = recorder::Space::kDevice;
  event.device = 0;
  event.api = 1;
  event.sequence = 1;
  event.address = 0x4000;
  event.size = 4096;
  bench.Put(slot, event, 1000);
  event.sequence = 2;
  event.address = 0;
  event.size = uint64_t{1} << 40;
  event.result = 2;
  event.flags = recorder::kFailed;
  bench.Put(slot, event, 2000);
  event.kind = recorder::EventKind::kFree;
  event.sequence = 3;
  event.address = 0x4000;
  event.size = 0;
  event.result = 700;
  bench.Put(slot, event, 3000);
  event.sequence = 4;
  event.result = 0;
  event.flags = 0;
  bench.Put(slot, event, 4000);
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), 4u);
  EXPECT_EQ(trace.events[1].result, 2);
  EXPECT_EQ(trace.events[2].result, 700);
  EXPECT_FALSE(trace.events[2].birth.has_value());
  EXPECT_EQ(trace.events[3].birth, 0u);
}

TEST(Writer, WaitsForNumbersThatWereGivenOut) {
  WriterBench bench;
  auto& a = bench.NewThread(1, "a");
  auto& b = bench.NewThread(2, "b");
  // Thread a holds number 1; thread b has recorded number 2.
  a.ring.Pending() = 1;
  bench.Put(b, Block(recorder::EventKind::kBlockAllocate, 2, 0x2000, 512, 512), 2000);
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  EXPECT_TRUE(bench.Decode().events.empty());
  bench.Put(a, Block(recorder::EventKind::kBlockAllocate, 1, 0x1000, 512, 512), 1000);
  a.ring.Pending() = recorder::kNothingPending;
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].tid, 1u);
  EXPECT_EQ(trace.events[1].tid, 2u);
}

// A thread gets its first ring while the writer looks which rings there are: either its number is not yet
// among those that were given out, or its ring is among those that are looked at.
TEST(Writer, OrdersFirstEventsOfThreadsThatComeMeanwhile) {
  constexpr uint64_t kThreads = 64;
  for (int round = 0; round < 12; ++round) {
    WriterBench bench(recorder::RingPlace::kPrivate, recorder::SystemFileLayer(), uint64_t{16} << 10);
    std::atomic<uint64_t> put{0};
    std::latch begin(kThreads + 1);
    std::latch end(1);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        begin.arrive_and_wait();
        recorder::ThreadSlot* slot = bench.table->Acquire(recorder::sys::ThreadId());
        slot->ring.Pending() = bench.next_sequence.load();
        const uint64_t number = bench.next_sequence.fetch_add(1);
        bench.Put(*slot, Block(recorder::EventKind::kBlockAllocate, number, number << 12, 512, 512), number);
        slot->ring.Pending() = recorder::kNothingPending;
        ++put;
        end.wait();  // A thread that ended would leave its ring to the next one.
      });
    }
    begin.arrive_and_wait();
    while (put < kThreads) EXPECT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
    end.count_down();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
    const DecodedTrace trace = bench.Decode();
    ASSERT_EQ(trace.events.size(), kThreads);
    for (uint64_t i = 0; i < kThreads; ++i) ASSERT_EQ(trace.events[i].sequence, i + 1) << "round " << round;
  }
}

// Within a ring, a nested event stands before the one that was numbered first.
TEST(Writer, OrdersNestedEventsAndKeepsRingsWhole) {
  WriterBench bench(recorder::RingPlace::kSharedMemory);
  auto& a = bench.NewThread(1, "a");
  auto& b = bench.NewThread(2, "b");
  bench.Put(a, Block(recorder::EventKind::kBlockAllocate, 3, 0x3000, 512, 512), 3000);
  bench.Put(a, Block(recorder::EventKind::kBlockAllocate, 2, 0x2000, 512, 1024), 3500);
  bench.Put(b, Block(recorder::EventKind::kBlockAllocate, 5, 0x5000, 512, 512), 5000);
  // Number 3 and later ones must wait; a's first record is one of them, and the one behind it, though it has
  // a smaller number, cannot leave the ring before it.
  b.ring.Pending() = 3;
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  EXPECT_TRUE(bench.Decode().events.empty());
  EXPECT_EQ(bench.DecodeWithRings().events.size(), 3u);
  b.ring.Pending() = recorder::kNothingPending;
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  const DecodedTrace trace = bench.DecodeWithRings();
  ASSERT_EQ(trace.events.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(trace.events[static_cast<size_t>(i)].from_ring);
  EXPECT_EQ(trace.events[0].sequence, 2u);
  EXPECT_EQ(trace.events[1].sequence, 3u);
  EXPECT_EQ(trace.events[2].sequence, 5u);
}

// A batch ends before the number with which everything has to begin.
TEST(Writer, OrdersWhatLiesBehindTheBatch) {
  WriterBench bench;
  bench.writer->SetBatch(16);
  auto& a = bench.NewThread(1, "a");
  auto& b = bench.NewThread(2, "b");
  constexpr uint64_t kEvents = 400;
  const auto put = [&](recorder::ThreadSlot& slot, uint64_t sequence) {
    bench.Put(slot, Block(recorder::EventKind::kBlockAllocate, sequence, sequence << 12, 512, 512), sequence);
  };
  for (uint64_t i = 2; i <= kEvents; ++i) put(i % 3 == 0 ? b : a, i);
  put(b, 1);
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), kEvents);
  for (uint64_t i = 0; i < kEvents; ++i) EXPECT_EQ(trace.events[i].sequence, i + 1);
}

// Random programs on several rings, drained at random: every event comes out once, equal and in order, and
// at every moment trace and rings together hold all events whose record is complete.
class WriterRandom : public testing::TestWithParam<int> {};

TEST_P(WriterRandom, EveryEventOnceAndEqual) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const auto below = [&](uint64_t n) { return random() % n; };
  WriterBench bench(recorder::RingPlace::kSharedMemory);
  std::vector<recorder::ThreadSlot*> slots;
  for (uint64_t i = 0; i < 4; ++i) slots.push_back(&bench.NewThread(100 + i, "worker"));
  // Far fewer than a drain finds.
  if (GetParam() % 2 == 0) bench.writer->SetBatch(24);

  struct Expected {
    Event event;
    uint64_t tid;
    uint64_t time_ns;
  };
  std::map<uint64_t, Expected> expected;
  struct Live {
    uint64_t address;
    uint64_t size;
  };
  std::vector<Live> live;
  // Frees that are numbered and not yet recorded, by ring.
  std::map<size_t, Event> reserved;
  uint64_t sequence = 1;
  uint64_t time_ns = 1'000'000;
  uint64_t allocated = 0;
  int order_kept = 1;

  for (int i = 0; i < 20000; ++i) {
    const size_t which = below(slots.size());
    recorder::ThreadSlot& slot = *slots[which];
    time_ns += below(3000);
    Event event;
    event.device = static_cast<int16_t>(below(3)) - 1;
    event.space = static_cast<recorder::Space>(1 + below(10));
    event.api = static_cast<uint16_t>(below(4));
    event.stream = below(4) == 0 ? below(3) * 0x55550000 : 0;
    const uint64_t what = below(100);
    if (what < 40) {
      event.kind = recorder::EventKind::kBlockAllocate;
      event.size = 512 * (1 + below(i % 3 == 0 ? 5000 : 4));
      event.address = (0x7f0000000000 + below(4000) * 512) | (below(50) == 0 ? 8 : 0);
      allocated += event.size;
      event.argument[0] = allocated;
      event.argument[1] = below(5) << 21;
      live.push_back({event.address, event.size});
    } else if (what < 80 && !live.empty()) {
      event.kind = recorder::EventKind::kBlockFree;
      const size_t pick = below(live.size());
      event.address = live[pick].address;
      event.size = below(100) == 0 ? below(9999) : live[pick].size;
      live[pick] = live.back();
      live.pop_back();
      allocated -= event.size;
      event.argument[0] = allocated;
      if (below(4) == 0 && reserved.count(which) == 0) {
        slot.ring.Pending() = sequence;
        event.sequence = sequence++;
        reserved[which] = event;
        continue;
      }
    } else {
      static constexpr int kKinds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 18, 22, 23, 24, 42};
      event.kind = static_cast<recorder::EventKind>(kKinds[below(std::size(kKinds))]);
      event.address = below(200) * 4096;
      event.size = below(3) == 0 ? 0 : below(1 << 20);
      event.argument[0] = below(3) == 0 ? random() : 0;
      event.argument[1] = below(3) == 0 ? below(10) : 0;
      event.result = below(20) == 0 ? static_cast<int32_t>(below(999)) - 10 : 0;
      event.flags = event.result != 0 ? recorder::kFailed : recorder::kNoFlags;
      if (event.kind == recorder::EventKind::kBlockOutOfMemory ||
          event.kind == recorder::EventKind::kGraphTrim) {
        event.address = 0;
      }
    }
    event.sequence = sequence++;
    bench.next_sequence = sequence;
    if (!bench.Put(slot, event, time_ns)) {
      ASSERT_EQ(bench.writer->Drain(Writer::Order::kEverything), 0);
      order_kept = 0;
      ASSERT_TRUE(bench.Put(slot, event, time_ns));
    }
    expected[event.sequence] = {event, 100 + which, time_ns};
    if (const auto late = reserved.find(which); late != reserved.end() && below(3) == 0) {
      ASSERT_TRUE(
          bench.Put(slot, late->second, time_ns) ||
          (bench.writer->Drain(Writer::Order::kEverything) == 0 && bench.Put(slot, late->second, time_ns)));
      expected[late->second.sequence] = {late->second, 100 + which, time_ns};
      reserved.erase(late);
      slot.ring.Pending() = recorder::kNothingPending;
    }
    if (below(400) == 0) {
      ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
      if (below(8) == 0) {
        ASSERT_EQ(bench.DecodeWithRings().events.size(), expected.size());
      }
    }
  }
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), expected.size());
  EXPECT_EQ(trace.lost_in_statistics, 0u);
  uint64_t last = 0;
  for (const DecodedEvent& decoded : trace.events) {
    const auto found = expected.find(decoded.sequence);
    ASSERT_NE(found, expected.end());
    ExpectSame(decoded, found->second.event, found->second.tid, found->second.time_ns);
    if (HasFailure()) return;
    expected.erase(found);
    if (order_kept != 0) {
      EXPECT_GT(decoded.sequence, last);
    }
    last = decoded.sequence;
  }
  EXPECT_LT(trace.largest_packet, size_t{512} << 10);
}

// AddressSanitizer takes five seconds for each.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kRandomSeeds = 2;
#else
constexpr int kRandomSeeds = 6;
#endif
INSTANTIATE_TEST_SUITE_P(Seeds, WriterRandom, testing::Range(1, kRandomSeeds + 1));

TEST(Writer, DefinitionsComeOnceAndBeforeUse) {
  WriterBench bench;
  auto& slot = bench.NewThread(1, "main");
  const std::string file = "/src/train.py";
  const std::string function = "Model.forward";
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::string path = "/lib/libtorch.so";
    auto* module = bench.New<ring_file::ModuleRecord>(slot, ring_file::RecordKind::kModule, path.size() + 4);
    module->load_bias = 0x10000;
    module->start = 0x10000;
    module->end = 0x20000;
    module->path_bytes = static_cast<uint32_t>(path.size());
    module->build_id_bytes = 4;
    std::memcpy(module + 1, (path + "\1\2\3\4").data(), path.size() + 4);
    slot.ring.Publish();
    auto* code = bench.New<ring_file::CodeRecord>(slot, ring_file::RecordKind::kCode,
                                                  file.size() + function.size() + 3);
    code->number = 77;
    code->first_line = 10;
    code->python_version = 0x030c;
    code->file_bytes = static_cast<uint32_t>(file.size());
    code->qualified_name_bytes = static_cast<uint32_t>(function.size());
    code->line_table_bytes = 3;
    std::memcpy(code + 1, (file + function + "abc").data(), file.size() + function.size() + 3);
    slot.ring.Publish();
    auto* stack = bench.New<ring_file::StackRecord>(slot, ring_file::RecordKind::kStack, 2 * 8 + 1 * 16);
    stack->number = 99;
    stack->native_count = 2;
    stack->python_count = 1;
    auto* native = reinterpret_cast<uint64_t*>(stack + 1);
    native[0] = 0x10020;
    native[1] = 0x999999;
    *reinterpret_cast<ring_file::PythonFrame*>(native + 2) = {77, 6, 1};
    slot.ring.Publish();
    bench.Put(slot,
              Block(recorder::EventKind::kBlockAllocate, static_cast<uint64_t>(repeat + 1),
                    0x1000u * static_cast<uint64_t>(repeat + 1), 512, 512),
              1000, 99);
    ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  }
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.events.size(), 2u);
  for (const DecodedEvent& event : trace.events) {
    ASSERT_EQ(event.native.size(), 2u);
    EXPECT_EQ(event.native[0].module, "/lib/libtorch.so");
    EXPECT_EQ(event.native[0].offset, 0x20u);
    EXPECT_EQ(event.native[1].module, "");
    EXPECT_EQ(event.native[1].offset, 0x999999u);
    ASSERT_EQ(event.python.size(), 1u);
    EXPECT_EQ(event.python[0].file, file);
    EXPECT_EQ(event.python[0].function, function);
    EXPECT_EQ(event.python[0].instruction, 6);
  }
  EXPECT_EQ(trace.strings.size(), 4u);
}

// A ring that goes to another thread while records of the first one still wait.
TEST(Writer, TellsThreadsOfOneRingApart) {
  WriterBench bench(recorder::RingPlace::kSharedMemory);
  auto& slot = bench.NewThread(1, "first");
  const auto new_owner = [&](uint64_t tid) {
    auto* record = bench.New<ring_file::ThreadRecord>(slot, ring_file::RecordKind::kThread, 0);
    record->tid = tid;
    slot.ring.Publish();
  };
  auto& other = bench.NewThread(50, "other");
  other.ring.Pending() = 3;
  bench.Put(slot, Block(recorder::EventKind::kBlockAllocate, 1, 0x1000, 512, 512), 1000);
  new_owner(2);
  bench.Put(slot, Block(recorder::EventKind::kBlockAllocate, 2, 0x2000, 512, 1024), 2000);
  bench.Put(slot, Block(recorder::EventKind::kBlockAllocate, 4, 0x4000, 512, 1536), 4000);
  new_owner(3);
  bench.Put(slot, Block(recorder::EventKind::kBlockAllocate, 5, 0x5000, 512, 2048), 5000);
  for (int drain = 0; drain < 3; ++drain) {
    ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
    const DecodedTrace trace = bench.DecodeWithRings();
    ASSERT_EQ(trace.events.size(), 4u);
    EXPECT_EQ(trace.events[0].tid, 1u);
    EXPECT_EQ(trace.events[1].tid, 2u);
    EXPECT_EQ(trace.events[2].tid, 2u);
    EXPECT_EQ(trace.events[3].tid, 3u);
    EXPECT_EQ(trace.events[2].from_ring, drain < 2);
    if (drain == 1) other.ring.Pending() = recorder::kNothingPending;
  }
}

TEST(Writer, MarksAndReadings) {
  WriterBench bench;
  auto& slot = bench.NewThread(1, "main");
  auto* mark = bench.New<ring_file::MarkRecord>(slot, ring_file::RecordKind::kMark, 9);
  mark->header.detail = Mark::PUSH;
  mark->header.flags = Mark::NVTX;
  mark->sequence = 1;
  mark->time_ns = 4000;
  mark->text_bytes = 5;
  mark->domain_bytes = 4;
  std::memcpy(mark + 1, "epochNCCL", 9);
  slot.ring.Publish();
  auto* reading = bench.New<ring_file::DeviceMemoryRecord>(slot, ring_file::RecordKind::kDeviceMemory, 0);
  reading->sequence = 2;
  reading->time_ns = 5000;
  reading->device = 1;
  reading->free_bytes = 10;
  reading->total_bytes = 30;
  slot.ring.Publish();
  bench.next_sequence = 3;
  ASSERT_EQ(bench.writer->Finish(), 0);
  DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.marks.size(), 1u);
  EXPECT_EQ(trace.marks[0].kind(), Mark::PUSH);
  EXPECT_EQ(trace.marks[0].source(), Mark::NVTX);
  EXPECT_EQ(trace.marks[0].time_us(), 4u);
  EXPECT_EQ(trace.strings[trace.marks[0].text()], "epoch");
  EXPECT_EQ(trace.strings[trace.marks[0].domain()], "NCCL");
  ASSERT_EQ(trace.device_memory.size(), 1u);
  EXPECT_EQ(trace.device_memory[0].free(), 10u);
  EXPECT_EQ(trace.device_memory[0].device(), 1);
}

// Some libraries name every operation: such marks are compressed.
TEST(Writer, ManyMarksAreSmall) {
  WriterBench bench;
  auto& slot = bench.NewThread(1, "main");
  constexpr uint64_t kMarks = 3000;
  for (uint64_t i = 0; i < kMarks; ++i) {
    const std::string text = "XLA#operation=" + std::to_string(i % 7) + "#";
    auto* mark = bench.New<ring_file::MarkRecord>(slot, ring_file::RecordKind::kMark, text.size());
    ASSERT_NE(mark, nullptr);
    mark->header.detail = i % 2 == 0 ? Mark::PUSH : Mark::POP;
    mark->header.flags = Mark::NVTX;
    mark->sequence = i + 1;
    mark->time_ns = i * 10'000;
    mark->text_bytes = static_cast<uint32_t>(text.size());
    std::memcpy(mark + 1, text.data(), text.size());
    slot.ring.Publish();
  }
  bench.next_sequence = kMarks + 1;
  ASSERT_EQ(bench.writer->Finish(), 0);
  DecodedTrace trace = bench.Decode();
  ASSERT_EQ(trace.marks.size(), kMarks);
  for (uint64_t i = 0; i < kMarks; ++i) {
    ASSERT_EQ(trace.marks[i].sequence(), i + 1);
    ASSERT_EQ(trace.strings[trace.marks[i].text()], "XLA#operation=" + std::to_string(i % 7) + "#");
  }
  EXPECT_LT(ReadFileBytes(bench.path).size(), kMarks * 8);
}

// A reader that lost packets goes on from a restart: it finds the sites that are in use defined again.
TEST(Writer, RestartsDefineTheirSitesAgain) {
  WriterBench bench;
  auto& slot = bench.NewThread(1, "main");
  uint64_t sequence = 0;
  for (int packet = 0; packet < 300; ++packet) {
    for (int i = 0; i < 3; ++i) {
      ++sequence;
      bench.Put(slot,
                Block(recorder::EventKind::kBlockAllocate, sequence, sequence << 12, 512, sequence * 512),
                sequence * 1000);
    }
    ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  }
  ASSERT_EQ(bench.writer->Finish(), 0);
  EXPECT_EQ(bench.Decode().restarts, 3u);
  Trace trace;
  ASSERT_TRUE(trace.ParseFromString(ReadFileBytes(bench.path)));
  for (const Packet& packet : trace.packet()) {
    if (!packet.content().has_events() || !packet.content().events().restart()) continue;
    EXPECT_EQ(packet.content().site_size(), 1);
    EXPECT_EQ(packet.content().site(0).id(), 1u);
  }
}

// A part of a trace that will be folded ends when it has much that stays. Where the next packet has a mark
// and no event, the one after it tells of the new part.
TEST(Writer, PacketsWithoutEventsPutARestartOff) {
  WriterBench bench(recorder::RingPlace::kPrivate, recorder::SystemFileLayer(), uint64_t{2} << 20);
  bench.writer->SetBound(uint64_t{2} << 30);
  auto& slot = bench.NewThread(1, "main");
  uint64_t sequence = 0;
  const auto allocate = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      ++sequence;
      ASSERT_TRUE(bench.Put(slot,
                            Block(recorder::EventKind::kBlockAllocate, sequence, (sequence % 1000000) << 12,
                                  512, sequence * 512),
                            sequence * 1000));
    }
    ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  };
  allocate(17000);
  auto* mark = bench.New<ring_file::MarkRecord>(slot, ring_file::RecordKind::kMark, 0);
  ASSERT_NE(mark, nullptr);
  mark->header.detail = Mark::STEP;
  mark->sequence = ++sequence;
  slot.ring.Publish();
  bench.next_sequence = sequence + 1;
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kExact), 0);
  allocate(100);
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  EXPECT_EQ(trace.restarts, 2u);
  EXPECT_EQ(trace.marks.size(), 1u);
  ASSERT_EQ(trace.events.size(), 17100u);
  EXPECT_EQ(trace.events.back().address, (sequence % 1000000) << 12);
}

}  // namespace
}  // namespace gpumemtrace::tests
