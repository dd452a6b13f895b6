// The recorder repeats numbers of trace.proto, because it does not link libprotobuf. Here they are compared
// with the schema itself.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "gpumemtrace/trace.pb.h"
#include "proto/gpumemtrace/event_columns.h"
#include "proto/gpumemtrace/ring_file.h"
#include "recorder/event.h"
#include "recorder/recorder.h"
#include "recorder/writer/event_column.h"
#include "recorder/writer/fields.h"
#include "recorder/writer/writer.h"

namespace gpumemtrace {
namespace {

namespace f = recorder::fields;

// "BLOCK_OUT_OF_MEMORY" → "kBlockOutOfMemory".
std::string ConstantName(const std::string& name) {
  std::string result = "k";
  bool upper = true;
  for (const char c : name) {
    if (c == '_') {
      upper = true;
    } else {
      result += static_cast<char>(upper ? c : tolower(c));
      upper = false;
    }
  }
  return result;
}

// The constants of an enum of recorder/event.h, read from the file itself, so that none is forgotten here.
std::map<std::string, int> Constants(const std::string& enum_name) {
  std::ifstream in(GPUMEMTRACE_EVENT_H);
  EXPECT_TRUE(in.good());
  std::map<std::string, int> constants;
  const std::regex constant(R"(^\s*(k[A-Za-z]+) = (\d+),.*)");
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("enum class " + enum_name + " ", 0) == 0) inside = true;
    if (line.rfind("};", 0) == 0) inside = false;
    std::smatch match;
    if (inside && std::regex_match(line, match, constant)) constants[match[1]] = std::stoi(match[2]);
  }
  return constants;
}

void ExpectEqual(const google::protobuf::EnumDescriptor* schema,
                 const std::map<std::string, int>& constants) {
  EXPECT_EQ(static_cast<size_t>(schema->value_count()), constants.size());
  for (int i = 0; i < schema->value_count(); ++i) {
    const auto* value = schema->value(i);
    const auto found = constants.find(value->number() == 0 ? "kUnspecified" : ConstantName(value->name()));
    if (found == constants.end()) {
      ADD_FAILURE() << value->name() << " is not in event.h";
    } else {
      EXPECT_EQ(found->second, value->number()) << value->name();
    }
  }
}

TEST(Contract, EventKinds) {
  ExpectEqual(EventKind_descriptor(), Constants("EventKind"));
  EXPECT_EQ(static_cast<int>(recorder::EventKind::kBlockFree), BLOCK_FREE);
}

TEST(Contract, Spaces) {
  ExpectEqual(Space_descriptor(), Constants("Space"));
  EXPECT_EQ(static_cast<int>(recorder::Space::kAlias), ALIAS);
}

TEST(Contract, MarksAndLosses) {
  EXPECT_EQ(static_cast<int>(recorder::MarkKind::kInstant), Mark::INSTANT);
  EXPECT_EQ(static_cast<int>(recorder::MarkKind::kPush), Mark::PUSH);
  EXPECT_EQ(static_cast<int>(recorder::MarkKind::kPop), Mark::POP);
  EXPECT_EQ(static_cast<int>(recorder::MarkKind::kStep), Mark::STEP);
  EXPECT_EQ(static_cast<int>(recorder::MarkKind::kRangeStart), Mark::RANGE_START);
  EXPECT_EQ(static_cast<int>(recorder::MarkKind::kRangeEnd), Mark::RANGE_END);
  EXPECT_EQ(static_cast<int>(recorder::MarkSource::kApi), Mark::API);
  EXPECT_EQ(static_cast<int>(recorder::MarkSource::kNvtx), Mark::NVTX);
  EXPECT_EQ(static_cast<int>(recorder::NoteSeverity::kWarning), Note::WARNING);
  EXPECT_EQ(static_cast<int>(recorder::LossCause::kNoRing), Loss::NO_RING);
  EXPECT_EQ(static_cast<int>(recorder::LossCause::kStorage), Loss::STORAGE);
  EXPECT_EQ(static_cast<int>(recorder::LossCause::kReentered), Loss::REENTERED);
  EXPECT_EQ(static_cast<int>(recorder::LossCause::kFormat), Loss::FORMAT);
  EXPECT_LT(static_cast<size_t>(Loss::Cause_MAX), ring_file::kLossCauses);
  EXPECT_EQ(f::kCodecZstd, static_cast<uint32_t>(Column::ZSTD));
}

TEST(Contract, ColumnNumbers) {
  const std::map<uint32_t, std::string> names = {
      {recorder::kSite, "SITE"},
      {recorder::kAddress, "ADDRESS"},
      {recorder::kLive, "LIVE"},
      {recorder::kTime, "TIME"},
      {recorder::kSequence, "SEQUENCE"},
      {recorder::kAllocated, "ALLOCATED"},
      {recorder::kReserved, "RESERVED"},
      {recorder::kArgument0, "ARGUMENT_0"},
      {recorder::kArgument1, "ARGUMENT_1"},
      {recorder::kSize, "SIZE"},
      {recorder::kIndex, "INDEX"},
  };
  EXPECT_EQ(names.size() + 1, recorder::kEventColumns);
  ASSERT_EQ(static_cast<uint32_t>(ColumnId_descriptor()->value_count()), recorder::kEventColumns);
  for (const auto& [number, name] : names) {
    EXPECT_EQ(ColumnId_descriptor()->FindValueByNumber(static_cast<int>(number))->name(), name);
  }
}

TEST(Contract, EventColumns) {
  EXPECT_EQ(event_columns::kAllocate, static_cast<uint32_t>(ALLOCATE));
  EXPECT_EQ(event_columns::kFree, static_cast<uint32_t>(FREE));
  EXPECT_EQ(event_columns::kAddressReserve, static_cast<uint32_t>(ADDRESS_RESERVE));
  EXPECT_EQ(event_columns::kAddressFree, static_cast<uint32_t>(ADDRESS_FREE));
  EXPECT_EQ(event_columns::kImport, static_cast<uint32_t>(IMPORT));
  EXPECT_EQ(event_columns::kImportClose, static_cast<uint32_t>(IMPORT_CLOSE));
  EXPECT_EQ(event_columns::kGraphTrim, static_cast<uint32_t>(GRAPH_TRIM));
  EXPECT_EQ(event_columns::kHandleCreate, static_cast<uint32_t>(HANDLE_CREATE));
  EXPECT_EQ(event_columns::kHandleDestroy, static_cast<uint32_t>(HANDLE_DESTROY));
  EXPECT_EQ(event_columns::kBlockAllocate, static_cast<uint32_t>(BLOCK_ALLOCATE));
  EXPECT_EQ(event_columns::kBlockFree, static_cast<uint32_t>(BLOCK_FREE));
  EXPECT_EQ(event_columns::kBlockOutOfMemory, static_cast<uint32_t>(BLOCK_OUT_OF_MEMORY));
}

struct FieldNumber {
  const google::protobuf::Descriptor* message;
  const char* name;
  uint32_t number;
};

TEST(Contract, FieldNumbers) {
  const FieldNumber fields[] = {
      {Trace::descriptor(), "packet", f::kTracePacket},
      {Packet::descriptor(), "crc32c", f::kPacketCrc32c},
      {Packet::descriptor(), "content", f::kPacketContent},
      {Content::descriptor(), "packet_index", f::kContentPacketIndex},
      {Content::descriptor(), "header", f::kContentHeader},
      {Content::descriptor(), "string", f::kContentString},
      {Content::descriptor(), "module", f::kContentModule},
      {Content::descriptor(), "code_object", f::kContentCode},
      {Content::descriptor(), "frame", f::kContentFrame},
      {Content::descriptor(), "stack_nodes", f::kContentNodes},
      {Content::descriptor(), "thread", f::kContentThread},
      {Content::descriptor(), "site", f::kContentSite},
      {Content::descriptor(), "events", f::kContentEvents},
      {Content::descriptor(), "mark", f::kContentMark},
      {Content::descriptor(), "device_memory", f::kContentDeviceMemory},
      {Content::descriptor(), "device", f::kContentDevice},
      {Content::descriptor(), "interpreter", f::kContentInterpreter},
      {Content::descriptor(), "note", f::kContentNote},
      {Content::descriptor(), "ring_position", f::kContentRingPosition},
      {Content::descriptor(), "statistics", f::kContentStatistics},
      {Content::descriptor(), "end", f::kContentEnd},
      {Content::descriptor(), "stack_name", f::kContentStackNames},
      {Content::descriptor(), "compressed_definitions", f::kContentCompressedDefinitions},
      {Content::descriptor(), "folded", f::kContentFolded},
      {Folded::descriptor(), "begin", f::kFoldedBegin},
      {Folded::descriptor(), "end", f::kFoldedEnd},
      {Folded::descriptor(), "first_index", f::kFoldedFirstIndex},
      {Folded::descriptor(), "last_index", f::kFoldedLastIndex},
      {Folded::descriptor(), "first_time_us", f::kFoldedFirstTime},
      {Folded::descriptor(), "last_time_us", f::kFoldedLastTime},
      {Folded::descriptor(), "first_sequence", f::kFoldedFirstSequence},
      {Folded::descriptor(), "last_sequence", f::kFoldedLastSequence},
      {Folded::descriptor(), "windows", f::kFoldedWindows},
      {Folded::descriptor(), "events", f::kFoldedEvents},
      {Folded::descriptor(), "events_dropped", f::kFoldedEventsDropped},
      {Folded::descriptor(), "totals_agreed", f::kFoldedTotalsAgreed},
      {Folded::descriptor(), "totals_disagreed", f::kFoldedTotalsDisagreed},
      {Folded::descriptor(), "packets", f::kFoldedPackets},
      {Folded::descriptor(), "peak", f::kFoldedPeak},
      {Folded::descriptor(), "stacks", f::kFoldedStacks},
      {FoldedPeak::descriptor(), "device", f::kFoldedPeakDevice},
      {FoldedPeak::descriptor(), "blocks", f::kFoldedPeakBlocks},
      {FoldedPeak::descriptor(), "bytes", f::kFoldedPeakBytes},
      {FoldedPeak::descriptor(), "index", f::kFoldedPeakIndex},
      {FoldedPeak::descriptor(), "time_us", f::kFoldedPeakTime},
      {FoldedPeak::descriptor(), "least_bytes", f::kFoldedPeakLeastBytes},
      {FoldedStacks::descriptor(), "site", f::kFoldedStacksSite},
      {FoldedStacks::descriptor(), "births", f::kFoldedStacksBirths},
      {FoldedStacks::descriptor(), "born_bytes", f::kFoldedStacksBornBytes},
      {FoldedStacks::descriptor(), "least_count", f::kFoldedStacksLeastCount},
      {FoldedStacks::descriptor(), "most_count", f::kFoldedStacksMostCount},
      {FoldedStacks::descriptor(), "least_bytes", f::kFoldedStacksLeastBytes},
      {FoldedStacks::descriptor(), "most_bytes", f::kFoldedStacksMostBytes},
      {FoldedStacks::descriptor(), "count", f::kFoldedStacksCount},
      {FoldedStacks::descriptor(), "bytes", f::kFoldedStacksBytes},
      {FoldedStacks::descriptor(), "last_birth", f::kFoldedStacksLastBirth},
      {Header::descriptor(), "format_version", f::kHeaderFormatVersion},
      {Header::descriptor(), "producer", f::kHeaderProducer},
      {Header::descriptor(), "clock", f::kHeaderClock},
      {Header::descriptor(), "host_name", f::kHeaderHostName},
      {Header::descriptor(), "process_id", f::kHeaderProcessId},
      {Header::descriptor(), "parent_process_id", f::kHeaderParentProcessId},
      {Header::descriptor(), "argument", f::kHeaderArgument},
      {Header::descriptor(), "executable", f::kHeaderExecutable},
      {Header::descriptor(), "working_directory", f::kHeaderWorkingDirectory},
      {Header::descriptor(), "rank", f::kHeaderRank},
      {Header::descriptor(), "world_size", f::kHeaderWorldSize},
      {Header::descriptor(), "environment", f::kHeaderEnvironment},
      {Header::descriptor(), "ring_file", f::kHeaderRingFile},
      {Header::descriptor(), "ring_key", f::kHeaderRingKey},
      {Header::descriptor(), "boot_id", f::kHeaderBootId},
      {Header::descriptor(), "option", f::kHeaderOption},
      {Clock::descriptor(), "monotonic_ns", f::kClockMonotonic},
      {Clock::descriptor(), "realtime_ns", f::kClockRealtime},
      {EnvironmentVariable::descriptor(), "name", f::kVariableName},
      {EnvironmentVariable::descriptor(), "value", f::kVariableValue},
      {InternedString::descriptor(), "id", f::kStringId},
      {InternedString::descriptor(), "value", f::kStringValue},
      {Module::descriptor(), "id", f::kModuleId},
      {Module::descriptor(), "path", f::kModulePath},
      {Module::descriptor(), "build_id", f::kModuleBuildId},
      {Module::descriptor(), "load_bias", f::kModuleLoadBias},
      {Module::descriptor(), "start", f::kModuleStart},
      {Module::descriptor(), "end", f::kModuleEnd},
      {CodeObject::descriptor(), "id", f::kCodeId},
      {CodeObject::descriptor(), "file", f::kCodeFile},
      {CodeObject::descriptor(), "qualified_name", f::kCodeQualifiedName},
      {CodeObject::descriptor(), "first_line", f::kCodeFirstLine},
      {CodeObject::descriptor(), "line_table", f::kCodeLineTable},
      {CodeObject::descriptor(), "python_version", f::kCodePythonVersion},
      {CodeObject::descriptor(), "number", f::kCodeNumber},
      {Frame::descriptor(), "id", f::kFrameId},
      {Frame::descriptor(), "module", f::kFrameModule},
      {Frame::descriptor(), "offset", f::kFrameOffset},
      {Frame::descriptor(), "code_object", f::kFrameCode},
      {Frame::descriptor(), "instruction", f::kFrameInstruction},
      {Frame::descriptor(), "entry", f::kFrameEntry},
      {StackNodes::descriptor(), "first_id", f::kNodesFirstId},
      {StackNodes::descriptor(), "parent_distance", f::kNodesParentDistance},
      {StackNodes::descriptor(), "frame", f::kNodesFrame},
      {StackNames::descriptor(), "number", f::kNamesNumber},
      {StackNames::descriptor(), "native_stack", f::kNamesNative},
      {StackNames::descriptor(), "python_stack", f::kNamesPython},
      {Thread::descriptor(), "id", f::kThreadId},
      {Thread::descriptor(), "tid", f::kThreadTid},
      {Thread::descriptor(), "name", f::kThreadName},
      {Site::descriptor(), "id", f::kSiteId},
      {Site::descriptor(), "kind", f::kSiteKind},
      {Site::descriptor(), "space", f::kSiteSpace},
      {Site::descriptor(), "api", f::kSiteApi},
      {Site::descriptor(), "device", f::kSiteDevice},
      {Site::descriptor(), "thread", f::kSiteThread},
      {Site::descriptor(), "stream", f::kSiteStream},
      {Site::descriptor(), "size", f::kSiteSize},
      {Site::descriptor(), "native_stack", f::kSiteNativeStack},
      {Site::descriptor(), "python_stack", f::kSitePythonStack},
      {Site::descriptor(), "forward_stack", f::kSiteForwardStack},
      {Site::descriptor(), "result", f::kSiteResult},
      {Site::descriptor(), "address_shift", f::kSiteAddressShift},
      {Site::descriptor(), "flags", f::kSiteFlags},
      {Site::descriptor(), "size_varies", f::kSiteSizeVaries},
      {Events::descriptor(), "count", f::kEventsCount},
      {Events::descriptor(), "first_index", f::kEventsFirstIndex},
      {Events::descriptor(), "first_time_us", f::kEventsFirstTime},
      {Events::descriptor(), "first_sequence", f::kEventsFirstSequence},
      {Events::descriptor(), "restart", f::kEventsRestart},
      {Events::descriptor(), "column", f::kEventsColumn},
      {Events::descriptor(), "predicted", f::kEventsPredicted},
      {Events::descriptor(), "time_step_us", f::kEventsTimeStep},
      {Events::descriptor(), "addresses_predicted", f::kEventsAddressesPredicted},
      {Column::descriptor(), "id", f::kColumnId},
      {Column::descriptor(), "codec", f::kColumnCodec},
      {Column::descriptor(), "raw_size", f::kColumnRawSize},
      {Column::descriptor(), "data", f::kColumnData},
      {Compressed::descriptor(), "codec", f::kCompressedCodec},
      {Compressed::descriptor(), "raw_size", f::kCompressedRawSize},
      {Compressed::descriptor(), "data", f::kCompressedData},
      {Mark::descriptor(), "kind", f::kMarkKind},
      {Mark::descriptor(), "source", f::kMarkSource},
      {Mark::descriptor(), "sequence", f::kMarkSequence},
      {Mark::descriptor(), "time_us", f::kMarkTime},
      {Mark::descriptor(), "thread", f::kMarkThread},
      {Mark::descriptor(), "text", f::kMarkText},
      {Mark::descriptor(), "domain", f::kMarkDomain},
      {Mark::descriptor(), "number", f::kMarkNumber},
      {DeviceMemory::descriptor(), "sequence", f::kMemorySequence},
      {DeviceMemory::descriptor(), "time_us", f::kMemoryTime},
      {DeviceMemory::descriptor(), "device", f::kMemoryDevice},
      {DeviceMemory::descriptor(), "free", f::kMemoryFree},
      {DeviceMemory::descriptor(), "total", f::kMemoryTotal},
      {Device::descriptor(), "ordinal", f::kDeviceOrdinal},
      {Device::descriptor(), "name", f::kDeviceName},
      {Device::descriptor(), "uuid", f::kDeviceUuid},
      {Device::descriptor(), "total_memory", f::kDeviceTotalMemory},
      {Device::descriptor(), "driver_version", f::kDeviceDriverVersion},
      {Device::descriptor(), "runtime_version", f::kDeviceRuntimeVersion},
      {Interpreter::descriptor(), "version", f::kInterpreterVersion},
      {Interpreter::descriptor(), "free_threaded", f::kInterpreterFreeThreaded},
      {Interpreter::descriptor(), "supported", f::kInterpreterSupported},
      {Interpreter::descriptor(), "reason", f::kInterpreterReason},
      {Note::descriptor(), "severity", f::kNoteSeverity},
      {Note::descriptor(), "time_us", f::kNoteTime},
      {Note::descriptor(), "text", f::kNoteText},
      {RingPosition::descriptor(), "ring", f::kPositionRing},
      {RingPosition::descriptor(), "position", f::kPositionPosition},
      {RingPosition::descriptor(), "thread", f::kPositionThread},
      {Loss::descriptor(), "cause", f::kLossCause},
      {Loss::descriptor(), "events", f::kLossEvents},
      {Statistics::descriptor(), "events", f::kStatisticsEvents},
      {Statistics::descriptor(), "loss", f::kStatisticsLoss},
      {Statistics::descriptor(), "sampled_hook_ns", f::kStatisticsHookNs},
      {Statistics::descriptor(), "sampled_hook_events", f::kStatisticsHookEvents},
      {Statistics::descriptor(), "stack_cache_hits", f::kStatisticsStackHits},
      {Statistics::descriptor(), "stack_cache_misses", f::kStatisticsStackMisses},
      {Statistics::descriptor(), "memory_bytes", f::kStatisticsMemory},
      {Statistics::descriptor(), "rings", f::kStatisticsRings},
      {Statistics::descriptor(), "bytes_written", f::kStatisticsBytesWritten},
      {Statistics::descriptor(), "full_rings", f::kStatisticsFullRings},
      {End::descriptor(), "reason", f::kEndReason},
      {End::descriptor(), "time_us", f::kEndTime},
  };
  for (const FieldNumber& field : fields) {
    const auto* found = field.message->FindFieldByName(field.name);
    ASSERT_NE(found, nullptr) << field.message->name() << "." << field.name;
    EXPECT_EQ(static_cast<uint32_t>(found->number()), field.number)
        << field.message->name() << "." << field.name;
  }
}

}  // namespace
}  // namespace gpumemtrace
