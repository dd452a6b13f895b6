// Field numbers of trace.proto that the recorder writes. It does not link libprotobuf, so they stand here
// again; a test compares each with the schema's descriptor.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder::fields {

enum : uint32_t {
  kTracePacket = 1,

  kPacketCrc32c = 1,
  kPacketContent = 2,

  kContentPacketIndex = 1,
  kContentHeader = 2,
  kContentString = 3,
  kContentModule = 4,
  kContentCode = 5,
  kContentFrame = 6,
  kContentNodes = 7,
  kContentThread = 8,
  kContentSite = 9,
  kContentEvents = 10,
  kContentMark = 11,
  kContentDeviceMemory = 12,
  kContentDevice = 13,
  kContentInterpreter = 14,
  kContentNote = 15,
  kContentRingPosition = 16,
  kContentStatistics = 17,
  kContentEnd = 18,
  kContentStackNames = 19,
  kContentCompressedDefinitions = 20,

  kHeaderFormatVersion = 1,
  kHeaderProducer = 2,
  kHeaderClock = 3,
  kHeaderHostName = 4,
  kHeaderProcessId = 5,
  kHeaderParentProcessId = 6,
  kHeaderArgument = 7,
  kHeaderExecutable = 8,
  kHeaderWorkingDirectory = 9,
  kHeaderRank = 10,
  kHeaderWorldSize = 11,
  kHeaderEnvironment = 12,
  kHeaderRingFile = 13,
  kHeaderRingKey = 14,
  kHeaderBootId = 15,
  kHeaderOption = 16,

  kClockMonotonic = 1,
  kClockRealtime = 2,

  kVariableName = 1,
  kVariableValue = 2,

  kStringId = 1,
  kStringValue = 2,

  kModuleId = 1,
  kModulePath = 2,
  kModuleBuildId = 3,
  kModuleLoadBias = 4,
  kModuleStart = 5,
  kModuleEnd = 6,

  kCodeId = 1,
  kCodeFile = 2,
  kCodeQualifiedName = 3,
  kCodeFirstLine = 4,
  kCodeLineTable = 5,
  kCodePythonVersion = 6,
  kCodeNumber = 7,

  kFrameId = 1,
  kFrameModule = 2,
  kFrameOffset = 3,
  kFrameCode = 4,
  kFrameInstruction = 5,
  kFrameEntry = 6,

  kNodesFirstId = 1,
  kNodesParentDistance = 2,
  kNodesFrame = 3,

  kNamesNumber = 1,
  kNamesNative = 2,
  kNamesPython = 3,

  kThreadId = 1,
  kThreadTid = 2,
  kThreadName = 3,

  kSiteId = 1,
  kSiteKind = 2,
  kSiteSpace = 3,
  kSiteApi = 4,
  kSiteDevice = 5,
  kSiteThread = 6,
  kSiteStream = 7,
  kSiteSize = 8,
  kSiteNativeStack = 9,
  kSitePythonStack = 10,
  kSiteForwardStack = 11,
  kSiteResult = 12,
  kSiteAddressShift = 13,
  kSiteFlags = 14,
  kSiteSizeVaries = 15,

  kEventsCount = 1,
  kEventsFirstIndex = 2,
  kEventsFirstTime = 3,
  kEventsFirstSequence = 4,
  kEventsRestart = 5,
  kEventsColumn = 6,

  kColumnId = 1,
  kColumnCodec = 2,
  kColumnRawSize = 3,
  kColumnData = 4,

  kCompressedCodec = 1,
  kCompressedRawSize = 2,
  kCompressedData = 3,

  kMarkKind = 1,
  kMarkSource = 2,
  kMarkSequence = 3,
  kMarkTime = 4,
  kMarkThread = 5,
  kMarkText = 6,
  kMarkDomain = 7,
  kMarkNumber = 8,

  kMemorySequence = 1,
  kMemoryTime = 2,
  kMemoryDevice = 3,
  kMemoryFree = 4,
  kMemoryTotal = 5,

  kDeviceOrdinal = 1,
  kDeviceName = 2,
  kDeviceUuid = 3,
  kDeviceTotalMemory = 4,
  kDeviceDriverVersion = 5,
  kDeviceRuntimeVersion = 6,

  kInterpreterVersion = 1,
  kInterpreterFreeThreaded = 2,
  kInterpreterSupported = 3,
  kInterpreterReason = 4,

  kNoteSeverity = 1,
  kNoteTime = 2,
  kNoteText = 3,

  kPositionRing = 1,
  kPositionPosition = 2,
  kPositionThread = 3,

  kLossCause = 1,
  kLossEvents = 2,

  kStatisticsEvents = 1,
  kStatisticsLoss = 2,
  kStatisticsHookNs = 3,
  kStatisticsHookEvents = 4,
  kStatisticsStackHits = 5,
  kStatisticsStackMisses = 6,
  kStatisticsMemory = 7,
  kStatisticsRings = 8,
  kStatisticsBytesWritten = 9,
  kStatisticsFullRings = 10,

  kEndReason = 1,
  kEndTime = 2,
};

// Column.Codec
inline constexpr uint32_t kCodecZstd = 1;

}  // namespace gpumemtrace::recorder::fields
