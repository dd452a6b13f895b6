// The ring file: what a running process has recorded and not yet written to its trace.
//
// Every thread of the traced process appends records to a ring of its own; all rings live in one
// MAP_SHARED file, so that their content outlives a process that is killed. The recorder's writer moves
// records from the rings into trace packets; each packet carries the positions up to which it consumed
// each ring (trace.proto, RingPosition). Trace and ring file together therefore hold every event exactly
// once, at any moment:
//
//   for each ring i of the file:
//     begin = the RingPosition of ring i in the last intact packet that has one, else 0
//     read the records in [begin, head)
//
// `tail` is advanced only after the packet was written, so begin >= tail. A begin below the tail means that
// the trace lost packets which had been written: read from the tail and say what is missing. Bytes before
// the tail may be overwritten and are never to be read.
//
// How a reader finds it: Header.ring_file and Header.ring_key of the trace. A file with another key, or
// whose process still lives (process_id and process_start_ticks), is not a leftover. The file is removed
// at an orderly end.
//
// How ids of the trace are continued: a stack, code object or module is named in the rings by number or
// address, and a ring defines each before its first use in that ring, perhaps in a part already consumed.
// The trace therefore carries these names too: Content.stack_name and CodeObject.number; modules are
// found by address among Module messages, later ones first. The thread of a ring's records is the last
// ThreadRecord before them, at the start RingPosition.thread of the last packet.
//
// Little-endian, natural alignment, no pointers. Plain C++ without other includes of ours: this file and
// trace.proto are all that the recorder and the analyzer share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumemtrace::ring_file {

inline constexpr char kMagic[8] = {'G', 'M', 'T', 'R', 'I', 'N', 'G', 'S'};
// Raised when an old reader would misread.
inline constexpr uint32_t kVersion = 1;

// Indices of FileHeader::lost; values of Loss.Cause in trace.proto.
inline constexpr size_t kLossCauses = 8;

// At offset 0. The names of API functions follow at `names_offset`: `names_count` zero-terminated
// strings, indexed by EventRecord::api.
struct FileHeader {
  char magic[8];
  uint32_t version;
  // sizeof(FileHeader); a later version may append fields.
  uint32_t header_bytes;
  // Header.ring_key of the trace.
  uint64_t ring_key;
  uint64_t process_id;
  // Field 22 (starttime) of /proc/<pid>/stat: tells a process from a later one with the same id.
  uint64_t process_start_ticks;
  // /proc/sys/kernel/random/boot_id, zero-terminated.
  char boot_id[40];

  // Ring i begins with a RingHeader at first_ring_offset + i · ring_stride; its bytes begin
  // kRingDataOffset later. All rings have ring_capacity bytes, a power of two.
  uint64_t first_ring_offset;
  uint64_t ring_stride;
  uint64_t ring_capacity;
  // Rings made so far (atomic). The file may be longer.
  uint32_t ring_count;
  // Rings beyond `ring_limit` never exist.
  uint32_t ring_limit;

  uint64_t names_offset;
  uint32_t names_count;
  uint32_t names_bytes;

  // Events lost so far by cause (atomic).
  uint64_t lost[kLossCauses];
  // The next sequence number to be given out (atomic), updated now and then.
  uint64_t next_sequence;
  // Path of the trace, zero-terminated, for people who find a ring file; cut when longer.
  char trace_path[1024];
};

// Before the bytes of every ring.
struct RingHeader {
  uint32_t index;
  // 0 = no thread uses it, 1 = a thread uses it.
  uint32_t in_use;
  uint64_t reserved_0[7];

  // Written by the owning thread. Running counts of bytes since the file was made: the record at
  // position p starts at data[p % capacity], and everything before `head` is complete.
  uint64_t head;
  // Lowest sequence number that this thread may still write; all ones when it holds none.
  uint64_t pending;
  uint64_t reserved_1[6];

  // Written by whoever drains: everything before it is in the trace.
  uint64_t tail;
  uint64_t reserved_2[7];
};

// From the RingHeader to the first byte of the ring.
inline constexpr uint64_t kRingDataOffset = 4096;

enum class RecordKind : uint8_t {
  // Never written: memory that holds no record.
  kNone = 0,
  // Nothing; fills the space up to the end of the ring (a record never wraps).
  kPad = 1,
  kThread = 2,
  kModule = 3,
  kCode = 4,
  kStack = 5,
  kEvent = 6,
  kMark = 7,
  kDeviceMemory = 8,
  kDevice = 9,
  kInterpreter = 10,
  kNote = 11,
  kContent = 12,
};

// Every record starts with this and is a multiple of 8 bytes long. A reader skips kinds it does not know.
struct RecordHeader {
  // Of the whole record, this header and trailing bytes and their padding included. At least 8.
  uint32_t bytes;
  RecordKind kind;
  // Meaning depends on the kind.
  uint8_t detail;
  uint16_t flags;
};

// Variable parts follow a record's struct in the order in which their lengths appear in it, without
// padding between them; the record's end is padded to 8 bytes.

// The thread that writes the records after this one.
struct ThreadRecord {
  RecordHeader header;
  uint64_t tid;
  // As in /proc/<pid>/task/<tid>/comm, zero-terminated.
  char name[16];
};

// A loaded ELF object. Its addresses hold until another module covers them in the same ring.
struct ModuleRecord {
  RecordHeader header;
  uint64_t load_bias;
  uint64_t start;
  uint64_t end;
  uint32_t path_bytes;
  uint32_t build_id_bytes;
  // char path[path_bytes]; unsigned char build_id[build_id_bytes];
};

// A Python code object; fields as in CodeObject of trace.proto.
struct CodeRecord {
  RecordHeader header;
  uint64_t number;
  int32_t first_line;
  uint32_t python_version;
  uint32_t file_bytes;
  uint32_t qualified_name_bytes;
  uint32_t line_table_bytes;
  uint32_t reserved;
  // char file[]; char qualified_name[]; unsigned char line_table[];
};

struct PythonFrame {
  // CodeRecord::number.
  uint64_t code;
  // Byte offset of the executing instruction, −1 = unknown.
  int32_t instruction;
  // 1 = entered from C.
  uint32_t entry;
};

// A pair of stacks, innermost frames first.
struct StackRecord {
  RecordHeader header;
  // Unique in the process, never 0.
  uint64_t number;
  uint32_t native_count;
  uint32_t python_count;
  // uint64_t native[native_count] (return addresses; the innermost one too);
  // PythonFrame python[python_count];
};

// Bits of EventRecord::present: which optional words follow, in this order, 8 bytes each.
inline constexpr uint8_t kHasArgument0 = 1u << 0;
inline constexpr uint8_t kHasArgument1 = 1u << 1;
inline constexpr uint8_t kHasStream = 1u << 2;
inline constexpr uint8_t kHasForwardStack = 1u << 3;
inline constexpr uint8_t kHasResult = 1u << 4;  // int64_t: CUresult or cudaError_t

// An event. header.detail is its EventKind, header.flags its EventFlags (recorder/event.h; the kinds and
// the meaning of the numbers are those of EventKind in trace.proto).
struct EventRecord {
  RecordHeader header;
  uint8_t space;
  uint8_t present;
  // Index into the names.
  uint16_t api;
  // CUDA ordinal, −1 = host or unknown.
  int16_t device;
  uint16_t reserved;
  uint64_t sequence;
  // CLOCK_MONOTONIC.
  uint64_t time_ns;
  // StackRecord::number; 0 = none.
  uint64_t stack;
  uint64_t address;
  uint64_t size;
  // uint64_t optional[popcount(present)];
};

// header.detail is Mark.Kind, header.flags Mark.Source.
struct MarkRecord {
  RecordHeader header;
  uint64_t sequence;
  uint64_t time_ns;
  uint64_t number;
  uint32_t text_bytes;
  uint32_t domain_bytes;
  // char text[]; char domain[];
};

struct DeviceMemoryRecord {
  RecordHeader header;
  uint64_t sequence;
  uint64_t time_ns;
  int32_t device;
  uint32_t reserved;
  uint64_t free_bytes;
  uint64_t total_bytes;
};

struct DeviceRecord {
  RecordHeader header;
  int32_t device;
  uint32_t driver_version;
  uint32_t runtime_version;
  uint32_t name_bytes;
  uint64_t total_bytes;
  unsigned char uuid[16];
  // char name[];
};

// header.detail: bit 0 = supported, bit 1 = free-threaded.
struct InterpreterRecord {
  RecordHeader header;
  // PY_VERSION_HEX.
  uint32_t version;
  uint32_t reason_bytes;
  // char reason[];
};

// header.detail is Note.Severity.
struct NoteRecord {
  RecordHeader header;
  uint64_t time_ns;
  uint32_t text_bytes;
  uint32_t reserved;
  // char text[];
};

// Serialized fields of a Content message that go into the trace as they are (the census).
struct ContentRecord {
  RecordHeader header;
  uint64_t sequence;
  uint32_t content_bytes;
  uint32_t reserved;
  // unsigned char content[];
};

// The size of a record whose struct has `fixed` bytes and whose variable parts have `variable` bytes.
constexpr size_t RecordBytes(size_t fixed, size_t variable) {
  return (fixed + variable + 7) & ~static_cast<size_t>(7);
}

static_assert(sizeof(RingHeader) == 192);
static_assert(sizeof(RecordHeader) == 8);
static_assert(sizeof(ThreadRecord) == 32);
static_assert(sizeof(ModuleRecord) == 40);
static_assert(sizeof(CodeRecord) == 40);
static_assert(sizeof(PythonFrame) == 16);
static_assert(sizeof(StackRecord) == 24);
static_assert(sizeof(EventRecord) == 56);
static_assert(sizeof(MarkRecord) == 40);
static_assert(sizeof(DeviceMemoryRecord) == 48);
static_assert(sizeof(DeviceRecord) == 48);
static_assert(sizeof(InterpreterRecord) == 16);
static_assert(sizeof(NoteRecord) == 24);
static_assert(sizeof(ContentRecord) == 24);

}  // namespace gpumemtrace::ring_file
