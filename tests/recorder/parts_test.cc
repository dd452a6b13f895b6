// Small parts of the recorder: checksums, tables, options, names of files.
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/gpumemtrace/options.h"
#include "recorder/file/crc32c.h"
#include "recorder/file/output_path.h"
#include "recorder/fold/field_reader.h"
#include "recorder/fold/live_births.h"
#include "recorder/memory/array.h"
#include "recorder/memory/hash_index.h"
#include "recorder/options.h"
#include "recorder/process_facts.h"
#include "recorder/writer/compressor.h"
#include "recorder/writer/dictionary.h"
#include "recorder/writer/fields.h"
#include "recorder/writer/live_table.h"
#include "recorder/writer/size_counts.h"
#include "tests/recorder/support/trace_decoder.h"

namespace gpumemtrace::tests {
namespace {

TEST(Crc32c, KnownValuesAndBothWays) {
  // RFC 3720, B.4.
  const std::string zeros(32, '\0');
  EXPECT_EQ(recorder::Crc32c(0, zeros.data(), zeros.size()), 0x8a9136aau);
  const std::string ones(32, '\xff');
  EXPECT_EQ(recorder::Crc32c(0, ones.data(), ones.size()), 0x62a8ab43u);
  std::mt19937 random(1);
  std::string bytes;
  for (int length = 0; length < 200; ++length) {
    EXPECT_EQ(recorder::Crc32c(0, bytes.data(), bytes.size()), SlowCrc32c(bytes));
    EXPECT_EQ(recorder::internal::Crc32cTable(0, bytes.data(), bytes.size()), SlowCrc32c(bytes));
    const size_t half = bytes.size() / 2;
    const uint32_t first = recorder::Crc32c(0, bytes.data(), half);
    EXPECT_EQ(recorder::Crc32c(first, bytes.data() + half, bytes.size() - half), SlowCrc32c(bytes));
    bytes += static_cast<char>(random());
  }
}

TEST(HashIndex, FindsWhatWasInserted) {
  recorder::HashIndex index;
  recorder::Array<uint64_t> values;
  std::mt19937_64 random(2);
  std::map<uint64_t, uint32_t> expected;
  for (int i = 0; i < 12000; ++i) {
    const uint64_t value = random() % 9000;
    const auto find = [&](uint32_t id) { return values[id - 1] == value; };
    // A poor hash, so that searches go on for long.
    const uint32_t id = index.Find(value / 16, find);
    const auto known = expected.find(value);
    ASSERT_EQ(id, known == expected.end() ? 0 : known->second);
    if (id != 0) continue;
    ASSERT_TRUE(values.Push(value));
    expected[value] = static_cast<uint32_t>(values.size());
    ASSERT_TRUE(index.Insert(value / 16, static_cast<uint32_t>(values.size()),
                             [&](uint32_t old) { return values[old - 1] / 16; }));
  }
}

TEST(LiveTable, AgreesWithAMap) {
  recorder::LiveTable table;
  std::map<std::pair<uint32_t, uint64_t>, recorder::LiveObject> expected;
  std::mt19937_64 random(3);
  for (uint64_t i = 1; i < 200000; ++i) {
    const auto kind = static_cast<uint16_t>(1 + random() % 3);
    const uint64_t address = (random() % 3000) << 9;
    const auto key = std::make_pair(kind, address);
    recorder::LiveObject object{};
    if (random() % 2 == 0 && expected.count(key) == 0) {
      object = {address, i, i, i * 3, kind, 0};
      ASSERT_TRUE(table.Insert(object));
      expected[key] = object;
    } else {
      const auto known = expected.find(key);
      ASSERT_EQ(table.Take(kind, address, i, &object), known != expected.end());
      if (known == expected.end()) continue;
      ASSERT_EQ(object.index, known->second.index);
      ASSERT_EQ(object.size, known->second.size);
      expected.erase(known);
    }
    ASSERT_EQ(table.size(), expected.size());
  }
  // Everything from some index on is forgotten, the rest is still there.
  const uint64_t from = 190000;
  table.ForgetFrom(from);
  for (const auto& [key, object] : expected) {
    recorder::LiveObject taken;
    ASSERT_EQ(table.Take(key.first, key.second, ~uint64_t{0}, &taken), object.index < from);
  }
}

// Native frames are kept in one word each, unless their address is too great for it.
TEST(Dictionary, TellsFramesOfAnyAddressApart) {
  recorder::Dictionary dictionary;
  const std::vector<uint64_t> addresses = {0x1000,
                                           (uint64_t{1} << 48) - 1,
                                           uint64_t{1} << 48,
                                           (uint64_t{1} << 48) + 0x1000,
                                           uint64_t{1} << 62 | 0x1000,
                                           uint64_t{1} << 63 | 0x1000,
                                           0xffffffffff600000,
                                           ~uint64_t{0},
                                           0};
  std::vector<recorder::StackIds> ids;
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < addresses.size(); ++i) {
      // And one Python frame.
      alignas(8) uint8_t bytes[sizeof(ring_file::StackRecord) + 8 + sizeof(ring_file::PythonFrame)] = {};
      auto* record = reinterpret_cast<ring_file::StackRecord*>(bytes);
      record->number = 1 + i + 100 * static_cast<uint64_t>(round);
      record->native_count = record->python_count = 1;
      memcpy(record + 1, &addresses[i], 8);
      const ring_file::PythonFrame python{0, static_cast<int32_t>(i) - 1, static_cast<uint32_t>(i % 2)};
      memcpy(bytes + sizeof *record + 8, &python, sizeof python);
      ASSERT_TRUE(dictionary.DefineStack(*record, {}));
      const recorder::StackIds found = dictionary.FindStack(record->number);
      if (round == 0) {
        ids.push_back(found);
      } else {
        EXPECT_EQ(found.native, ids[i].native);
        EXPECT_EQ(found.python, ids[i].python);
      }
    }
  }
  // One frame and one node for each.
  recorder::ByteBuffer definitions;
  recorder::ByteBuffer names;
  dictionary.AppendPending(definitions, names);
  std::vector<uint64_t> native;
  std::vector<std::pair<int64_t, bool>> python;
  recorder::FieldReader reader(definitions.span());
  for (recorder::Field field; reader.Next(&field);) {
    if (field.number != recorder::fields::kContentFrame) continue;
    bool is_python = false;
    bool entry = false;
    int64_t instruction = 0;
    uint64_t offset = 0;
    recorder::FieldReader frame(field.bytes);
    for (recorder::Field part; frame.Next(&part);) {
      if (part.number == recorder::fields::kFrameCode) is_python = true;
      if (part.number == recorder::fields::kFrameInstruction) instruction = part.Signed();
      if (part.number == recorder::fields::kFrameEntry) entry = part.value != 0;
      if (part.number == recorder::fields::kFrameOffset) offset = part.value;
    }
    if (is_python) {
      python.emplace_back(instruction, entry);
    } else {
      native.push_back(offset);
    }
  }
  EXPECT_EQ(native, addresses);
  ASSERT_EQ(python.size(), addresses.size());
  for (size_t i = 0; i < python.size(); ++i) {
    EXPECT_EQ(python[i], std::make_pair(static_cast<int64_t>(i) - 1, i % 2 == 1));
  }
}

TEST(LiveTable, AnEndBeforeABirthEndsTheOlderOne) {
  recorder::LiveTable table;
  recorder::LiveObject object;
  ASSERT_TRUE(table.Insert({0x1000, 0, 1, 10, 1, 0}));
  ASSERT_TRUE(table.Insert({0x1000, 1, 5, 20, 1, 0}));
  ASSERT_TRUE(table.Take(1, 0x1000, 3, &object));
  EXPECT_EQ(object.index, 0u);
  ASSERT_TRUE(table.Take(1, 0x1000, 7, &object));
  EXPECT_EQ(object.index, 1u);
  EXPECT_FALSE(table.Take(1, 0x1000, 9, &object));
  // Numbered before the only birth: it ended something that was never seen.
  ASSERT_TRUE(table.Insert({0x1000, 2, 10, 20, 1, 0}));
  EXPECT_FALSE(table.Take(1, 0x1000, 9, &object));
}

TEST(LiveBirths, AgreesWithAMap) {
  recorder::LiveBirths births;
  std::map<uint64_t, uint64_t> expected;
  std::mt19937_64 random(5);
  uint64_t index = 0;
  for (int i = 0; i < 200000; ++i) {
    // Few ever end at first, then most, and the young ones sooner.
    if (expected.empty() || random() % 100 < (i < 50000 ? 70u : 45u)) {
      index += 1 + random() % 5;
      ASSERT_TRUE(births.Insert({index, index << 9, 512, 1, 0, 0}));
      expected[index] = index << 9;
    } else {
      auto known =
          expected.lower_bound(index - std::min(index, random() % (random() % 8 == 0 ? index + 1 : 99)));
      if (known == expected.end()) --known;
      recorder::LiveBirth* birth = births.Find(known->first);
      ASSERT_NE(birth, nullptr);
      ASSERT_EQ(birth->address, known->second);
      births.Erase(birth);
      ASSERT_EQ(births.Find(known->first), nullptr);
      expected.erase(known);
    }
    const uint64_t any = random() % (index + 3);
    const recorder::LiveBirth* found = births.Find(any);
    ASSERT_EQ(found != nullptr, expected.count(any) != 0);
  }
  EXPECT_FALSE(births.Insert({index, 0, 0, 1, 0, 0}));
}

TEST(SizeCounts, FindsTheFewPlacesWithManySizes) {
  recorder::SizeCounts counts;
  std::mt19937_64 random(6);
  const uint64_t often[] = {random(), random(), random()};
  for (int i = 0; i < 400; ++i) {
    // All within one stretch of the trace.
    for (const uint64_t place : often) {
      if (i < 150) {
        EXPECT_FALSE(counts.Vary(place));
      }
      counts.Add(place, 1);
    }
    // A crowd of others, of one size each.
    for (int other = 0; other < 400; ++other) ASSERT_FALSE(counts.Add(random(), 1));
  }
  for (int other = 0; other < 200000; ++other) counts.Add(random(), 1);
  for (const uint64_t place : often) EXPECT_TRUE(counts.Vary(place));
}

TEST(SizeCounts, FindsPlacesWithNewSizesAgainAndAgain) {
  recorder::SizeCounts counts;
  // A list of parameters: many sizes at once, then none that is new.
  for (uint64_t i = 0; i < 100; ++i) EXPECT_FALSE(counts.Add(1, i));
  EXPECT_FALSE(counts.Vary(1));
  // A length that changes with each step of 1,700 events.
  uint64_t steps = 0;
  while (steps < 100 && !counts.Add(2, steps * 1700)) ++steps;
  EXPECT_GT(steps, 4u);
  EXPECT_LT(steps, 20u);
  EXPECT_TRUE(counts.Vary(2));
}

TEST(Compressor, RefusesWhatDoesNotGetShorter) {
  recorder::Compressor compressor;
  recorder::ByteBuffer out;
  std::mt19937_64 random(4);
  std::vector<uint8_t> noise(1000);
  for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
  EXPECT_FALSE(compressor.Compress(noise, out));
  const std::vector<uint8_t> zeros(100000);
  ASSERT_TRUE(compressor.Compress(zeros, out));
  EXPECT_LT(out.size(), 100u);
}

std::string PathFor(const char* pattern, unsigned attempt, std::optional<uint32_t> rank = std::nullopt) {
  recorder::OutputName name;
  name.pattern = pattern;
  name.host_name = "node7";
  name.process_id = 123;
  name.rank = rank;
  char path[128];
  return recorder::OutputPath(name, attempt, path, sizeof path) ? path : "<too long>";
}

TEST(OutputPath, DefaultPatternAndNumbers) {
  EXPECT_EQ(PathFor("", 1), "trace.pb");
  EXPECT_EQ(PathFor("", 2), "trace.2.pb");
  EXPECT_EQ(PathFor("", 1, 5), "trace.rank5.pb");
  EXPECT_EQ(PathFor("", 12, 5), "trace.rank5.12.pb");
  EXPECT_EQ(PathFor("/tmp/%h-%p-%r.pb", 1), "/tmp/node7-123-0.pb");
  EXPECT_EQ(PathFor("/tmp/%h-%p-%r.pb", 3, 9), "/tmp/node7-123-9.3.pb");
  EXPECT_EQ(PathFor("100%%", 1), "100%");
  EXPECT_EQ(PathFor("50%", 1), "50%");
  EXPECT_EQ(PathFor("%x", 1), "%x");
  EXPECT_EQ(PathFor("/a.b/trace", 2), "/a.b/trace.2");
  EXPECT_EQ(PathFor("/a/.hidden", 2), "/a/.hidden.2");
  EXPECT_EQ(PathFor(std::string(127, 'x').c_str(), 1), std::string(127, 'x'));
  EXPECT_EQ(PathFor(std::string(128, 'x').c_str(), 1), "<too long>");
  EXPECT_EQ(PathFor(std::string(5000, 'x').c_str(), 1), "<too long>");
}

std::vector<std::string> g_lines;

recorder::Options Parse(std::vector<std::string> variables) {
  g_lines.clear();
  // The options point into the environment, which outlives them in a real process.
  static std::vector<std::string> kept;
  kept = std::move(variables);
  std::vector<const char*> environment;
  for (const std::string& variable : kept) environment.push_back(variable.c_str());
  environment.push_back(nullptr);
  return recorder::ParseOptions(environment.data(), [](const char* line) { g_lines.push_back(line); });
}

TEST(Options, Defaults) {
  const recorder::Options options = Parse({"PATH=/bin", "HOME=/root"});
  EXPECT_TRUE(g_lines.empty());
  EXPECT_TRUE(options.enabled);
  EXPECT_STREQ(options.out, "");
  EXPECT_TRUE(options.stacks.python);
  EXPECT_EQ(options.stacks.native, recorder::stacks::NativeDepth::kToPython);
  EXPECT_EQ(options.flush_ns, 1'000'000'000u);
  EXPECT_EQ(options.ring_bytes, uint64_t{1} << 20);
  for (int space = 0; space <= 10; ++space) EXPECT_TRUE(options.Records(static_cast<recorder::Space>(space)));
}

TEST(Options, Values) {
  const recorder::Options options = Parse(
      {"GPUMEMTRACE=off", "GPUMEMTRACE_OUT=x.pb", "GPUMEMTRACE_STACKS=Native", "GPUMEMTRACE_MIN_SIZE=4KiB",
       "GPUMEMTRACE_SPACES=managed,alias", "GPUMEMTRACE_FLUSH_MS=250", "GPUMEMTRACE_RING_BYTES=300k",
       "GPUMEMTRACE_RINGS=trace", "GPUMEMTRACE_COMMAND_LINE=no", "GPUMEMTRACE_QUIET=yes",
       "GPUMEMTRACE_MAX_NATIVE_FRAMES=7", "GPUMEMTRACE_MAX_PYTHON_FRAMES=1024"});
  EXPECT_TRUE(g_lines.empty()) << g_lines[0];
  EXPECT_FALSE(options.enabled);
  EXPECT_STREQ(options.out, "x.pb");
  EXPECT_FALSE(options.stacks.python);
  // Without Python stacks there is no reason to stop at Python frames.
  EXPECT_EQ(options.stacks.native, recorder::stacks::NativeDepth::kFull);
  EXPECT_EQ(options.stacks.max_native, 7);
  EXPECT_EQ(options.stacks.max_python, 1024);
  EXPECT_EQ(options.min_size, 4096u);
  EXPECT_FALSE(options.Records(recorder::Space::kDevice));
  EXPECT_TRUE(options.Records(recorder::Space::kManaged));
  EXPECT_TRUE(options.Records(recorder::Space::kAlias));
  EXPECT_FALSE(options.Records(recorder::Space::kHostPool));
  EXPECT_TRUE(options.Records(recorder::Space::kUnspecified));
  EXPECT_EQ(options.flush_ns, 250'000'000u);
  EXPECT_EQ(options.ring_bytes, uint64_t{512} << 10);
  EXPECT_EQ(options.rings, recorder::RingPlace::kBesideTrace);
  EXPECT_FALSE(options.command_line);
  EXPECT_TRUE(options.quiet);
}

TEST(Options, EveryMalformedValueIsNamedAndTheDefaultTaken) {
  const std::map<std::string, std::string> bad = {
      {"GPUMEMTRACE", "maybe"},
      {"GPUMEMTRACE_STACKS", "all"},
      {"GPUMEMTRACE_MIN_SIZE", "4X"},
      {"GPUMEMTRACE_SPACES", "device,"},
      {"GPUMEMTRACE_FLUSH_MS", "9"},
      {"GPUMEMTRACE_RINGS", "disk"},
      {"GPUMEMTRACE_RING_BYTES", "1"},
      {"GPUMEMTRACE_QUIET", ""},
      {"GPUMEMTRACE_COMMAND_LINE", "2"},
      {"GPUMEMTRACE_MAX_NATIVE_FRAMES", "0"},
      {"GPUMEMTRACE_MAX_PYTHON_FRAMES", "99999999999999999999999"},
      {"GPUMEMTRACE_MIN_SIZE", "99999999999T"},
  };
  for (const auto& [name, value] : bad) {
    const recorder::Options options = Parse({name + "=" + value});
    ASSERT_EQ(g_lines.size(), 1u) << name;
    EXPECT_EQ(g_lines[0].find("gpumemtrace: " + name + "=" + value), 0u) << g_lines[0];
    const recorder::Options defaults = Parse({});
    EXPECT_EQ(options.enabled, defaults.enabled);
    EXPECT_EQ(options.ring_bytes, defaults.ring_bytes);
    EXPECT_EQ(options.spaces, defaults.spaces);
    EXPECT_EQ(options.min_size, defaults.min_size);
    EXPECT_EQ(options.stacks.max_native, defaults.stacks.max_native);
  }
}

TEST(Options, TableIsConsistent) {
  std::set<std::string> names;
  for (const options::Option& option : options::kOptions) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_GT(std::string(option.text).size(), 20u) << option.name;
    // The default is a value that is understood.
    if (option.type == options::Type::kText) continue;
    Parse({std::string(option.name) + "=" + option.default_value});
    EXPECT_TRUE(g_lines.empty()) << g_lines[0];
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(options::kOptionCount));
}

TEST(ProcessFacts, OnlyListedVariablesAreRecorded) {
  const auto recorded = [](const std::string& name) {
    return recorder::IsRecordedVariable(name.c_str(), name.size());
  };
  EXPECT_TRUE(recorded("PYTORCH_CUDA_ALLOC_CONF"));
  EXPECT_TRUE(recorded("TORCH_NCCL_AVOID_RECORD_STREAMS"));
  EXPECT_FALSE(recorded("TORCH_NCC"));
  for (const char* name : {"PATH", "HOME", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "LD_PRELOAD",
                           "NCCL_COMM_ID", "PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CON", ""}) {
    EXPECT_FALSE(recorded(name)) << name;
  }
}

}  // namespace
}  // namespace gpumemtrace::tests
