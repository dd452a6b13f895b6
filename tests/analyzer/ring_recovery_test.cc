// What a killed process left in its ring file is read after the trace: every event once, in order.
#include "analyzer/trace/ring_recovery.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>

#include "analyzer/symbols/symbolizer.h"
#include "tests/analyzer/support/collecting_sink.h"
#include "tests/analyzer/support/ring_builder.h"
#include "tests/analyzer/support/trace_builder.h"

namespace gpumemtrace::tests {
namespace {

using analyzer::ReadResult;
using analyzer::RecoveryReport;
using analyzer::TraceModel;

constexpr uint64_t kKey = 77;  // as TraceBuilder writes it

struct Recovered {
  TraceModel model;
  CollectingSink sink;
  ReadResult result;
};

class RingRecovery : public testing::Test {
 protected:
  RingRecovery() : ring_path_(testing::TempDir() + "/rings." + std::to_string(getpid())) {}
  ~RingRecovery() override { std::remove(ring_path_.c_str()); }

  void WriteRings(const std::string& bytes) { std::ofstream(ring_path_, std::ios::binary) << bytes; }

  // A trace without an end that names the ring file.
  std::string Trace(TraceBuilder& builder) {
    builder.Flush();
    return builder.bytes();
  }
  void NameRings(TraceBuilder& builder) { builder.content().mutable_header()->set_ring_file(ring_path_); }

  Recovered Read(const std::string& trace) {
    Recovered recovered;
    recovered.result = analyzer::ReadTraceBytes(trace, "test.pb", {}, recovered.model, recovered.sink);
    return recovered;
  }

  const std::string ring_path_;
};

TEST_F(RingRecovery, EventsOfAllRingsComeInOrderOfSequence) {
  TraceBuilder builder;
  NameRings(builder);
  builder.Add({.address = 0x7000, .size = 4096});  // sequence 1, index 0
  RingPosition& position = *builder.content().add_ring_position();

  RingBuilder rings(3, 1 << 16, kKey, {"", "cudaMalloc", "cudaFree"});
  rings.Thread(0, 1234, "main");
  rings.Event(0, {.address = 0x7000, .size = 4096, .sequence = 1, .time_us = 5}, 1);
  rings.Consume(0);
  position.set_ring(0);
  position.set_position(rings.head(0));
  position.set_thread(1);
  rings.Thread(1, 99, "worker");
  rings.Event(1, {.address = 0x8000, .size = 512, .sequence = 3, .time_us = 7}, 1);
  rings.Event(1, {.kind = EventKind::kFree, .address = 0x7000, .sequence = 4, .time_us = 8}, 2);
  rings.Event(0, {.address = 0x9000, .size = 256, .sequence = 2, .time_us = 6}, 1);
  rings.Mark(0, 5, "step");
  rings.Event(0, {.kind = EventKind::kFree, .address = 0x8000, .sequence = 6, .time_us = 9}, 2);
  WriteRings(rings.Bytes());

  const Recovered recovered = Read(Trace(builder));
  EXPECT_EQ(recovered.result.recovery.state, RecoveryReport::State::kRead)
      << recovered.result.recovery.detail;
  EXPECT_EQ(recovered.result.recovery.events, 4u);
  EXPECT_EQ(recovered.result.recovery.rings, 2u);
  const auto& events = recovered.sink.events;
  ASSERT_EQ(events.size(), 5u);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(events[i].index, i);
  EXPECT_EQ(events[1].address, 0x9000u);
  EXPECT_EQ(events[2].address, 0x8000u);
  EXPECT_EQ(events[3].birth_index, 0u);  // made in the trace, freed in a ring
  EXPECT_EQ(events[3].size, 4096u);
  EXPECT_EQ(events[4].birth_index, 2u);  // made in one ring, freed in another
  EXPECT_EQ(recovered.sink.events_before_mark, std::vector<size_t>{4});
  EXPECT_EQ(recovered.model.Thread(recovered.model.Site(events[2].site).thread).tid, 99u);
  EXPECT_EQ(recovered.model.Thread(recovered.model.Site(events[1].site).thread).name, "main");
  EXPECT_EQ(recovered.model.String(recovered.model.Site(events[3].site).api), "cudaFree");
}

TEST_F(RingRecovery, StacksAreThoseOfTheTraceOrOfTheRing) {
  TraceBuilder builder;
  NameRings(builder);
  const uint32_t module = builder.Module("/lib/libold.so", "", 0x10000, 0x10000, 0x20000);
  const uint32_t native = builder.Stack({builder.NativeFrame(module, 0x123)});
  const uint32_t code = builder.Code("/a/train.py", "main", 10);
  const uint32_t python = builder.Stack({builder.PythonFrame(code, -1, true)});
  StackNames& names = *builder.content().mutable_stack_name();
  names.add_number(0xabc);
  names.add_native_stack(native);
  names.add_python_stack(python);
  builder.Add({.address = 0x7000, .size = 512, .native_stack = native, .python_stack = python});

  RingBuilder rings(1, 1 << 16, kKey, {"", "cudaMalloc"});
  rings.Thread(0, 1234, "main");
  rings.Event(0, {.address = 0x8000, .size = 512, .sequence = 2, .time_us = 6}, 1, 0xabc);
  rings.Module(0, "/lib/libnew.so", 0x40000, 0x40000, 0x50000);
  rings.Code(0, 555, "/a/model.py", "forward", 70);
  // The trace's code object by its number (1000 + id), and the ring's.
  rings.Stack(0, 0xdef, {0x40456, 0x10123, 0x99999}, {{555, -1, 0}, {1000 + code, -1, 1}});
  rings.Event(0, {.address = 0x9000, .size = 512, .sequence = 3, .time_us = 7}, 1, 0xdef, 0xabc);
  WriteRings(rings.Bytes());

  const Recovered recovered = Read(Trace(builder));
  ASSERT_EQ(recovered.sink.events.size(), 3u);
  const TraceModel& model = recovered.model;
  // The same stack, size and thread give the same site, however the event was found.
  EXPECT_EQ(recovered.sink.events[1].site, recovered.sink.events[0].site);
  const analyzer::SiteInfo& site = model.Site(recovered.sink.events[2].site);
  EXPECT_EQ(site.forward_stack, python);
  const auto frames = model.StackFrames(site.native_stack);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(model.String(model.Module(model.Frame(frames[0]).module).path), "/lib/libnew.so");
  EXPECT_EQ(model.Frame(frames[0]).offset, 0x456u);
  EXPECT_EQ(frames[1], model.StackFrames(native)[0]);
  EXPECT_EQ(model.Frame(frames[2]).module, 0u);
  EXPECT_EQ(model.Frame(frames[2]).offset, 0x99999u);
  const auto python_frames = model.StackFrames(site.python_stack);
  ASSERT_EQ(python_frames.size(), 2u);
  EXPECT_EQ(model.String(model.Code(model.Frame(python_frames[0]).code_object).qualified_name), "forward");
  EXPECT_EQ(model.Frame(python_frames[1]).code_object, code);
}

TEST_F(RingRecovery, ARingThatWrappedIsReadAcrossItsEnd) {
  TraceBuilder builder;
  NameRings(builder);
  RingBuilder rings(1, 4096, kKey, {"", "cudaMalloc"});
  rings.Thread(0, 1234, "main");
  uint64_t sequence = 1;
  for (int round = 0; round < 10; ++round) {
    rings.Consume(0);
    for (int i = 0; i < 40; ++i, ++sequence) {
      rings.Event(0, {.address = 0x1000 * sequence, .size = 512, .sequence = sequence, .time_us = 6}, 1);
    }
    if (round == 8) {
      RingPosition& position = *builder.content().add_ring_position();
      position.set_ring(0);
      position.set_position(rings.head(0));
      position.set_thread(1);
    }
  }
  WriteRings(rings.Bytes());
  const Recovered recovered = Read(Trace(builder));
  EXPECT_EQ(recovered.result.recovery.state, RecoveryReport::State::kRead)
      << recovered.result.recovery.detail;
  ASSERT_EQ(recovered.sink.events.size(), 40u);
  EXPECT_EQ(recovered.sink.events.front().sequence, 361u);
  EXPECT_EQ(recovered.sink.events.back().address, 0x1000u * 400);
}

TEST_F(RingRecovery, WhatTheTraceLostCannotBeReadFromOverwrittenBytes) {
  TraceBuilder builder;  // no RingPosition: its packet was lost
  NameRings(builder);
  RingBuilder rings(1, 4096, kKey, {"", "cudaMalloc"});
  rings.Thread(0, 1234, "main");
  rings.Event(0, {.address = 0x7000, .size = 1, .sequence = 1, .time_us = 1}, 1);
  rings.Consume(0);
  rings.Event(0, {.address = 0x8000, .size = 1, .sequence = 2, .time_us = 2}, 1);
  WriteRings(rings.Bytes());
  const Recovered recovered = Read(Trace(builder));
  EXPECT_EQ(recovered.result.recovery.state, RecoveryReport::State::kDamaged);
  ASSERT_EQ(recovered.sink.events.size(), 1u);
  EXPECT_EQ(recovered.sink.events[0].address, 0x8000u);
}

TEST_F(RingRecovery, AnotherRunsRingsAreLeftAlone) {
  TraceBuilder builder;
  NameRings(builder);
  RingBuilder rings(1, 4096, kKey + 1, {""});
  rings.Event(0, {.address = 0x7000, .size = 1, .sequence = 1, .time_us = 1}, 0);
  WriteRings(rings.Bytes());
  const Recovered recovered = Read(Trace(builder));
  EXPECT_EQ(recovered.result.recovery.state, RecoveryReport::State::kForeign);
  EXPECT_TRUE(recovered.sink.events.empty());
}

TEST_F(RingRecovery, MissingAndUnnamedRingsAreSaid) {
  {
    TraceBuilder builder;
    NameRings(builder);
    EXPECT_EQ(Read(Trace(builder)).result.recovery.state, RecoveryReport::State::kNoRingFile);
  }
  {
    TraceBuilder builder;
    const Recovered recovered = Read(Trace(builder));
    EXPECT_EQ(recovered.result.recovery.state, RecoveryReport::State::kNoRingFile);
    EXPECT_FALSE(recovered.result.recovery.detail.empty());
  }
  TraceBuilder builder;
  NameRings(builder);
  builder.Finish();
  EXPECT_EQ(Read(builder.bytes()).result.recovery.state, RecoveryReport::State::kNotNeeded);
}

TEST_F(RingRecovery, LossesCountedInTheRingsAreReported) {
  TraceBuilder builder;
  NameRings(builder);
  RingBuilder rings(1, 4096, kKey, {""});
  rings.header().lost[Loss::STORAGE] = 12;
  WriteRings(rings.Bytes());
  const Recovered recovered = Read(Trace(builder));
  ASSERT_EQ(recovered.model.statistics.loss_size(), 1);
  EXPECT_EQ(recovered.model.statistics.loss(0).cause(), Loss::STORAGE);
  EXPECT_EQ(recovered.model.statistics.loss(0).events(), 12u);
}

// Damage anywhere must neither crash nor go unsaid when it costs events.
TEST_F(RingRecovery, RandomDamageIsSurvived) {
  TraceBuilder builder;
  NameRings(builder);
  const std::string trace = Trace(builder);
  RingBuilder rings(2, 4096, kKey, {"", "cudaMalloc"});
  rings.Thread(0, 1234, "main");
  rings.Module(0, "/lib/libx.so", 0x40000, 0x40000, 0x50000);
  rings.Code(0, 555, "/a/model.py", "forward", 70);
  rings.Stack(0, 7, {0x40456}, {{555, -1, 1}});
  for (uint64_t i = 1; i < 20; ++i) {
    rings.Event(i % 2, {.address = 0x1000 * i, .size = 512, .sequence = i, .time_us = i}, 1, 7);
  }
  const std::string good = rings.Bytes();
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (uint64_t i = 0; i <= random() % 4; ++i) {
      // The header, a ring header, or the beginning of a ring's data.
      static constexpr uint64_t kPlaces[] = {0, 8192, 8192 + 4096, 8192 + 8192, 8192 + 8192 + 4096};
      const size_t at = kPlaces[random() % 5] + random() % 1200;
      if (at < bytes.size()) bytes[at] = static_cast<char>(random());
    }
    if (random() % 10 == 0) bytes.resize(random() % bytes.size());
    TraceModel model;
    CollectingSink sink;
    analyzer::DamageReport damage;
    analyzer::EventDecoder decoder(model, sink, damage);
    RecoveryReport report;
    const analyzer::RingBytes read = [&](uint64_t offset, std::span<char> out) {
      if (offset > bytes.size() || out.size() > bytes.size() - offset) return false;
      bytes.copy(out.data(), out.size(), offset);
      return true;
    };
    RecoverRings(read, bytes.size(), /*any_key=*/true, {}, model, decoder, sink, report);
    ASSERT_LE(sink.events.size(), 400u);
  }
}

}  // namespace
}  // namespace gpumemtrace::tests
