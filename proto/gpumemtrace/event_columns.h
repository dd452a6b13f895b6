// Which columns of `Events` (trace.proto) hold an entry for an event: follows from the kind of its site
// alone. Shared by the writer and the reader, so that they cannot disagree. No includes of ours.
//
// Order within an event does not matter (every column is read on its own); within a column, entries stand in
// the order of the events.
#pragma once

#include <cstdint>

namespace gpumemtrace::event_columns {

// Kinds by number, as EventKind in trace.proto.
inline constexpr uint32_t kAllocate = 1;
inline constexpr uint32_t kFree = 2;
inline constexpr uint32_t kAddressReserve = 3;
inline constexpr uint32_t kAddressFree = 4;
inline constexpr uint32_t kMap = 8;
inline constexpr uint32_t kImport = 10;
inline constexpr uint32_t kImportClose = 11;
inline constexpr uint32_t kGraphTrim = 20;
inline constexpr uint32_t kHandleCreate = 23;
inline constexpr uint32_t kHandleDestroy = 24;
inline constexpr uint32_t kBlockAllocate = 40;
inline constexpr uint32_t kBlockFree = 41;
inline constexpr uint32_t kBlockOutOfMemory = 42;

// An entry in LIVE, and one in ADDRESS (and, for BLOCK_FREE, one in SIZE) only when that entry is 0.
constexpr bool HasLive(uint32_t kind) {
  return kind == kFree || kind == kAddressFree || kind == kImportClose || kind == kHandleDestroy ||
         kind == kBlockFree;
}

// A successful event of this kind can be referred to by LIVE, under its address, until the kind that ends it;
// the pairs do not mix: ALLOCATE–FREE, ADDRESS_RESERVE–ADDRESS_FREE, IMPORT–IMPORT_CLOSE,
// HANDLE_CREATE–HANDLE_DESTROY, BLOCK_ALLOCATE–BLOCK_FREE. Returns the kind that begins what `kind` ends.
constexpr uint32_t BirthOf(uint32_t kind) {
  return kind == kFree            ? kAllocate
         : kind == kAddressFree   ? kAddressReserve
         : kind == kImportClose   ? kImport
         : kind == kHandleDestroy ? kHandleCreate
         : kind == kBlockFree     ? kBlockAllocate
                                  : 0;
}

constexpr bool BeginsObject(uint32_t kind) {
  return kind == kAllocate || kind == kAddressReserve || kind == kImport || kind == kHandleCreate ||
         kind == kBlockAllocate;
}

// An entry in ADDRESS, always.
constexpr bool HasAddress(uint32_t kind) {
  return !HasLive(kind) && kind != kBlockOutOfMemory && kind != kGraphTrim;
}

// Entries in ALLOCATED and RESERVED.
constexpr bool HasTotals(uint32_t kind) {
  return kind >= kBlockAllocate;
}

// Entries in ARGUMENT_0 and ARGUMENT_1.
constexpr bool HasArguments(uint32_t kind) {
  return !HasTotals(kind);
}

// An entry in SIZE: when the site says `size_varies`, whatever the kind; else never, except for a BLOCK_FREE
// whose LIVE entry is 0.

}  // namespace gpumemtrace::event_columns
