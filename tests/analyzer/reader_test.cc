// The reader: what was written comes out; damage costs what it touches and nothing else, and is always said.
#include "analyzer/trace/reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "analyzer/trace/crc32c.h"
#include "analyzer/trace/varint.h"
#include "tests/analyzer/support/collecting_sink.h"
#include "tests/analyzer/support/random_events.h"
#include "tests/analyzer/support/trace_builder.h"

namespace gpumemtrace::tests {
namespace {

using analyzer::ReaderOptions;
using analyzer::ReadResult;
using analyzer::ReadTraceBytes;
using analyzer::TraceEvent;
using analyzer::TraceFault;
using analyzer::TraceModel;

struct Reading {
  TraceModel model;
  CollectingSink sink;
  ReadResult result;
};

Reading Read(const std::string& bytes) {
  Reading reading;
  ReaderOptions options;
  options.recover = false;
  reading.result = ReadTraceBytes(bytes, "test.pb", options, reading.model, reading.sink);
  return reading;
}

// What must be equal in an event however it is encoded.
void ExpectSame(const TraceModel& model, const TraceEvent& event, const BuiltEvent& built, uint64_t index) {
  const analyzer::SiteInfo& site = model.Site(event.site);
  ASSERT_EQ(event.index, index);
  ASSERT_EQ(event.kind, built.kind) << "event " << index;
  ASSERT_EQ(site.kind, built.kind);
  ASSERT_EQ(site.space, built.space);
  ASSERT_EQ(site.device, built.device);
  ASSERT_EQ(site.result, built.result);
  ASSERT_EQ(model.String(site.api), built.api);
  if (built.kind != EventKind::kBlockOutOfMemory) {
    ASSERT_EQ(event.address, built.address) << "event " << index;
  }
  ASSERT_EQ(event.argument[0], built.argument[0]) << "event " << index;
  ASSERT_EQ(event.argument[1], built.argument[1]);
}

void ExpectSame(const TraceEvent& a, const TraceEvent& b) {
  ASSERT_EQ(a.index, b.index);
  ASSERT_EQ(a.sequence, b.sequence) << a.index;
  ASSERT_EQ(a.time_us, b.time_us) << a.index;
  ASSERT_EQ(a.address, b.address) << a.index;
  ASSERT_EQ(a.size, b.size) << a.index;
  ASSERT_EQ(a.argument[0], b.argument[0]) << a.index;
  ASSERT_EQ(a.argument[1], b.argument[1]) << a.index;
  ASSERT_EQ(a.birth_index, b.birth_index) << a.index;
  ASSERT_EQ(a.site, b.site) << a.index;
}

std::string Build(const std::vector<BuiltEvent>& events, TraceBuilder::Options options, bool end = true) {
  TraceBuilder builder(options);
  for (const BuiltEvent& event : events) builder.Add(event);
  if (end) {
    builder.Finish();
  } else {
    builder.Flush();
  }
  return builder.bytes();
}

TEST(Crc32c, AgreesWithPublishedValues) {
  EXPECT_EQ(analyzer::Crc32c(std::string("123456789")), 0xe3069283u);
  EXPECT_EQ(analyzer::Crc32c(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720, B.4
  EXPECT_EQ(analyzer::Crc32c(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720, B.4
  std::mt19937_64 random(1);
  for (size_t size = 0; size < 70; ++size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_EQ(analyzer::Crc32c(bytes), SlowCrc32c(bytes)) << size;
  }
}

TEST(VarintCursor, ReadsEveryLength) {
  std::mt19937_64 random(2);
  std::vector<uint64_t> values;
  std::string bytes;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t value = random() >> (random() % 64);
    values.push_back(value);
    uint64_t rest = value;
    for (; rest >= 0x80; rest >>= 7) bytes += static_cast<char>(rest | 0x80);
    bytes += static_cast<char>(rest);
  }
  const size_t size = bytes.size();
  bytes.append(analyzer::VarintCursor::kPadding, '\0');
  const unsigned char* begin = reinterpret_cast<const unsigned char*>(bytes.data());
  analyzer::VarintCursor cursor(begin, begin + size);
  for (const uint64_t value : values) ASSERT_EQ(cursor.Next(), value);
  EXPECT_TRUE(cursor.at_end());
  EXPECT_FALSE(cursor.exhausted());
  cursor.Next();
  EXPECT_TRUE(cursor.exhausted());
  analyzer::VarintCursor absent;
  EXPECT_EQ(absent.Next(), 0u);
  EXPECT_FALSE(absent.exhausted());
}

class RoundTrip : public testing::TestWithParam<int> {};

TEST_P(RoundTrip, EveryEventComesOutAsItWentIn) {
  const int seed = GetParam();
  TraceBuilder::Options options;
  options.compress = seed % 2 == 0;
  options.compress_definitions = seed % 3 == 0;
  options.repeat_sites = seed % 5 == 0;
  options.predict = seed % 7 < 4;
  options.restart_every = static_cast<uint32_t>(1 + seed % 4);
  options.events_per_packet = static_cast<size_t>(1 + seed * 37 % 3000);
  const std::vector<BuiltEvent> events = RandomEvents(static_cast<uint64_t>(seed), 5000, seed % 2 == 1);
  const Reading reading = Read(Build(events, options));
  EXPECT_EQ(reading.result.fault, TraceFault::kNone) << reading.result.message;
  EXPECT_FALSE(reading.result.damage.any()) << reading.result.damage.first_fault;
  EXPECT_TRUE(reading.model.has_end);
  EXPECT_EQ(reading.result.events, events.size());
  ASSERT_EQ(reading.sink.events.size(), events.size());
  for (size_t i = 0; i < events.size(); ++i) ExpectSame(reading.model, reading.sink.events[i], events[i], i);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RoundTrip, testing::Range(0, 12));

TEST(Reader, EndsCarryBirthAndSizeOfTheirObject) {
  TraceBuilder builder;
  BuiltEvent allocate{.address = 0x7000, .size = 4096};
  builder.Add(allocate);
  builder.Add({.kind = EventKind::kFree, .address = 0x7000, .result = 1});  // failed: it lives on
  builder.Add({.kind = EventKind::kFree, .address = 0x7000});
  builder.Add({.kind = EventKind::kFree, .address = 0x7000});
  builder.Finish();
  const Reading reading = Read(builder.bytes());
  ASSERT_EQ(reading.sink.events.size(), 4u);
  const auto& events = reading.sink.events;
  EXPECT_EQ(events[1].birth_index, 0u);
  EXPECT_EQ(events[2].birth_index, 0u);
  EXPECT_EQ(events[2].size, 4096u);
  EXPECT_EQ(events[2].object, events[0].object);
  EXPECT_EQ(events[3].birth_index, analyzer::kNoIndex);
  EXPECT_EQ(events[3].object, analyzer::kNoSlot);
  EXPECT_EQ(events[3].address, 0x7000u);
}

class MarksInPlace : public testing::TestWithParam<bool> {};

TEST_P(MarksInPlace, MarksAndReadingsComeBetweenTheirEvents) {
  TraceBuilder builder({.events_per_packet = 100000, .compress_definitions = GetParam()});
  std::vector<size_t> places;
  for (size_t i = 0; i < 5000; ++i) {
    builder.Add({.kind = EventKind::kHandleCreate, .address = 0x1000 + i});
    if (i % 700 == 3) {
      builder.AddMark(Mark::STEP, "step", i);
      places.push_back(i + 1);
    }
    if (i == 1234) builder.AddDeviceMemory(1, 10, 100);
  }
  builder.Finish();
  const Reading reading = Read(builder.bytes());
  EXPECT_EQ(reading.sink.events.size(), 5000u);
  EXPECT_EQ(reading.sink.events_before_mark, places);
  ASSERT_EQ(reading.sink.readings.size(), 1u);
  EXPECT_EQ(reading.sink.readings[0].total, 100u);
  EXPECT_EQ(reading.model.String(reading.sink.marks[0].text), "step");
}
INSTANTIATE_TEST_SUITE_P(Compressed, MarksInPlace, testing::Bool());

TEST(Reader, StacksComeInnermostFirst) {
  TraceBuilder builder;
  const uint32_t code = builder.Code("/home/u/train.py", "main", 10);
  const uint32_t outer = builder.PythonFrame(code, 4, true);
  const uint32_t inner = builder.PythonFrame(code, 8, false);
  const uint32_t stack = builder.Stack({inner, outer});
  builder.Add({.address = 0x7000, .size = 1, .python_stack = stack});
  builder.Finish();
  const Reading reading = Read(builder.bytes());
  EXPECT_EQ(reading.model.StackFrames(reading.model.Site(1).python_stack),
            (std::vector<analyzer::FrameId>{inner, outer}));
}

// A small trace with several restarts, for the tests that damage it everywhere.
struct SmallTrace {
  TraceBuilder builder{{.restart_every = 3, .events_per_packet = 8, .repeat_sites = true}};
  std::vector<TraceEvent> events;

  SmallTrace() {
    const std::vector<BuiltEvent> built = RandomEvents(99, 90, false);
    for (const BuiltEvent& event : built) builder.Add(event);
    builder.Finish();
    events = Read(builder.bytes()).sink.events;
    EXPECT_EQ(events.size(), built.size());
  }
};

TEST(Damage, EveryCutGivesThePrefix) {
  const SmallTrace small;
  const std::string& bytes = small.builder.bytes();
  const std::vector<size_t>& offsets = small.builder.packet_offsets();
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    SCOPED_TRACE(cut);
    const Reading reading = Read(bytes.substr(0, cut));
    const size_t whole =
        static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.end(), cut) - offsets.begin());
    const bool at_boundary = cut == offsets[whole - 1];
    const size_t packets = whole - 1;
    if (packets == 0) {
      ASSERT_EQ(reading.result.fault, TraceFault::kNotATrace);
      continue;
    }
    ASSERT_EQ(reading.result.fault, TraceFault::kNone);
    ASSERT_EQ(reading.result.packets, packets);
    ASSERT_EQ(reading.result.damage.cut, !at_boundary);
    if (!at_boundary) {
      ASSERT_EQ(reading.result.damage.cut_at, offsets[packets]);
    }
    ASSERT_FALSE(reading.model.has_end);
    ASSERT_EQ(reading.sink.events.size(), small.builder.packet_first_event()[packets]);
    for (size_t i = 0; i < reading.sink.events.size(); ++i)
      ExpectSame(reading.sink.events[i], small.events[i]);
  }
}

TEST(Damage, EveryFlippedBitIsFoundAndCostsLittle) {
  const SmallTrace small;
  const std::string& bytes = small.builder.bytes();
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    SCOPED_TRACE(bit);
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const Reading reading = Read(damaged);
    ASSERT_EQ(reading.result.fault, TraceFault::kNone);
    ASSERT_TRUE(reading.result.damage.any());
    ASSERT_FALSE(reading.result.damage.first_fault.empty() && !reading.result.damage.cut);
    // Whatever is read is what was written, and every event is either read or counted as lost, unless the end
    // of the trace itself was lost.
    size_t next = 0;
    for (const TraceEvent& event : reading.sink.events) {
      ASSERT_GE(event.index, next);
      next = event.index + 1;
      ASSERT_LT(event.index, small.events.size());
      TraceEvent expected = small.events[event.index];
      if (event.birth_index != analyzer::kNoIndex && event.object == analyzer::kNoSlot) {
        // Its birth was lost, and with it what only the birth says.
        expected.address = event.address;
        expected.size = event.size;
        expected.argument[0] = event.argument[0];
      }
      if (!event.totals_known) expected.argument[0] = event.argument[0];
      ExpectSame(event, expected);
    }
    ASSERT_LE(reading.sink.events.size() + reading.result.damage.events_lost, small.events.size());
    if (reading.model.has_end) {
      ASSERT_EQ(reading.sink.events.size() + reading.result.damage.events_lost, small.events.size());
    }
    // At most the packets up to the next restart: three of eight events.
    ASSERT_GE(reading.sink.events.size() + 24 + 8, small.events.size());
  }
}

TEST(Damage, APacketLostIsSkippedToTheNextRestart) {
  const SmallTrace small;
  const std::vector<size_t>& offsets = small.builder.packet_offsets();
  const std::vector<uint64_t>& first = small.builder.packet_first_event();
  // Packets 3, 6, 9 restart; lose 4, so 5 cannot be decoded either.
  std::string bytes = small.builder.bytes();
  bytes.erase(offsets[4], offsets[5] - offsets[4]);
  const Reading reading = Read(bytes);
  EXPECT_EQ(reading.result.damage.packets_lost, 1u);
  EXPECT_EQ(reading.result.damage.events_lost, first[6] - first[4]);
  EXPECT_EQ(reading.sink.events.size(), small.events.size() - (first[6] - first[4]));
  EXPECT_GE(reading.sink.gaps, 1);
}

TEST(Damage, NoiseBetweenPacketsIsSkipped) {
  const SmallTrace small;
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    std::string noise(1 + random() % 3000, '\0');
    for (char& byte : noise) byte = static_cast<char>(random() % 3 == 0 ? 0x0a : random());
    std::string bytes = small.builder.bytes();
    const size_t packet = 1 + random() % (small.builder.packet_offsets().size() - 1);
    bytes.insert(small.builder.packet_offsets()[packet], noise);
    const Reading reading = Read(bytes);
    EXPECT_EQ(reading.sink.events.size(), small.events.size());
    EXPECT_TRUE(reading.result.damage.any());
    EXPECT_EQ(reading.result.damage.events_lost, 0u);
  }
}

TEST(Damage, LargePacketsStraddleTheBuffer) {
  // About 12 MB of trace in packets of hundreds of kilobytes, with damage in the middle of it.
  TraceBuilder::Options options{.restart_every = 2, .events_per_packet = 60000, .compress = false};
  options.repeat_sites = true;
  std::vector<BuiltEvent> events;
  std::mt19937_64 random(8);
  for (size_t i = 0; i < 600000; ++i) {
    events.push_back({.kind = EventKind::kHandleCreate, .address = random() >> 8, .api = "x"});
  }
  std::string bytes = Build(events, options);
  EXPECT_EQ(Read(bytes).sink.events.size(), events.size());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  const Reading reading = Read(bytes);
  EXPECT_EQ(reading.result.damage.packets_lost, 1u);
  EXPECT_EQ(reading.sink.events.size() + reading.result.damage.events_lost, events.size());
  EXPECT_GE(reading.sink.events.size(), events.size() - 120000);
}

TEST(Damage, HostileFilesDoNotTakeForever) {
  // Thousands of headers that claim large packets: each would cost a checksum over all that follows.
  std::string bytes;
  while (bytes.size() < (3u << 20))
    bytes += std::string("\x0a\x80\x80\x20\x0d\x01\x02\x03\x04\x12\xf7\xff\x1f", 13);
  EXPECT_EQ(Read(bytes).result.fault, TraceFault::kNotATrace);
}

TEST(Damage, ImpossibleDefinitionsAreRefused) {
  TraceBuilder builder;
  builder.content().add_string()->set_id(4000000000u);
  builder.content().add_site()->set_id(3000000000u);
  StackNodes& nodes = *builder.content().add_stack_nodes();
  nodes.set_first_id(1);
  nodes.add_parent_distance(5);  // before the first
  nodes.add_frame(1);
  builder.Finish();
  const Reading reading = Read(builder.bytes());
  EXPECT_TRUE(reading.result.damage.any());
  EXPECT_LT(reading.model.strings.size(), 100u);
  EXPECT_EQ(reading.model.Node(1).parent, 0u);
}

TEST(Damage, ColumnsThatDoNotFitAreSaid) {
  // A packet that claims more events than its columns hold.
  TraceBuilder builder;
  builder.Add({.address = 0x7000, .size = 1});
  builder.Finish();
  Trace trace;
  ASSERT_TRUE(trace.ParseFromString(builder.bytes()));
  Content content = trace.packet(0).content();
  content.mutable_events()->set_count(4000000000u);
  const Reading reading = Read(Frame(content.SerializeAsString()));
  EXPECT_EQ(reading.sink.events.size(), 1u);
  EXPECT_TRUE(reading.result.damage.any());
}

TEST(Bad, FilesGiveOneClearLine) {
  EXPECT_EQ(Read("").result.fault, TraceFault::kNotATrace);
  EXPECT_NE(Read("").result.message.find("empty"), std::string::npos);
  EXPECT_EQ(Read("#!/usr/bin/env python\nprint('no trace')\n").result.fault, TraceFault::kNotATrace);

  TraceBuilder builder;
  builder.content().mutable_header()->set_format_version(5);
  builder.Add({.address = 0x7000, .size = 1});
  builder.Finish();
  const Reading newer = Read(builder.bytes());
  EXPECT_EQ(newer.result.fault, TraceFault::kNewerVersion);
  EXPECT_NE(newer.result.message.find("version 5"), std::string::npos);
  EXPECT_TRUE(newer.sink.events.empty());

  TraceModel model;
  CollectingSink sink;
  EXPECT_EQ(analyzer::ReadTrace("/nonexistent/trace.pb", {}, model, sink).fault, TraceFault::kCannotRead);
  const ReadResult directory = analyzer::ReadTrace("/tmp", {}, model, sink);
  EXPECT_EQ(directory.fault, TraceFault::kCannotRead);
  EXPECT_NE(directory.message.find("/tmp"), std::string::npos);
}

TEST(Reader, UnknownFieldsAndColumnsAreSkipped) {
  TraceBuilder builder;
  builder.Add({.address = 0x7000, .size = 1});
  builder.Finish();
  Trace trace;
  ASSERT_TRUE(trace.ParseFromString(builder.bytes()));
  Content content = trace.packet(0).content();
  Column& column = *content.mutable_events()->add_column();
  column.set_id(static_cast<ColumnId>(99));
  column.set_data("whatever");
  std::string serialized = content.SerializeAsString();
  serialized += std::string("\xfa\x3e\x03xyz", 6);  // field 1007
  const Reading reading = Read(Frame(serialized));
  EXPECT_EQ(reading.sink.events.size(), 1u);
  EXPECT_FALSE(reading.result.damage.any()) << reading.result.damage.first_fault;
}

TEST(Reader, TwoTracesInOneFileAreNotMixed) {
  const std::string one = Build(RandomEvents(1, 50, false), {});
  const std::string two = Build(RandomEvents(2, 50, false), {});
  const Reading reading = Read(one + two);
  EXPECT_EQ(reading.sink.events.size(), 50u);
  EXPECT_TRUE(reading.result.damage.any());
  EXPECT_NE(reading.result.damage.first_fault.find("second trace"), std::string::npos);
}

}  // namespace
}  // namespace gpumemtrace::tests
