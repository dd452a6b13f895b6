// The table of hooks in data, and look-ups in it. Built from hook_list.h at compile time.
#include <array>
#include <cstring>

#include "interpose/hooks.h"
#include "interpose/original.h"

namespace gpumemtrace::interpose {

const HookRow kHookRows[kHookCount] = {
#define GPUMEMTRACE_ROW(symbol, base, since, variant, library, ...) \
  {#symbol, base, since, Variant::variant, Library::library},
    GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_ROW)
#undef GPUMEMTRACE_ROW
};

namespace {

void* const* const kEntryTables[kHookCount] = {
#define GPUMEMTRACE_TABLE(symbol, ...) gpumemtrace_entries_##symbol,
    GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_TABLE)
#undef GPUMEMTRACE_TABLE
};

struct Alias {
  const char* base;
  int since;
  Variant variant;
  HookId id;
};
constexpr Alias kAliases[] = {
#define GPUMEMTRACE_ALIAS(base, since, variant, symbol) {base, since, Variant::variant, HookId::k_##symbol},
    GPUMEMTRACE_ALL_ALIASES(GPUMEMTRACE_ALIAS)
#undef GPUMEMTRACE_ALIAS
};

constexpr uint32_t Hash(const char* text) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (; *text != '\0'; ++text) {
    hash = (hash ^ static_cast<unsigned char>(*text)) * 16777619u;
  }
  return hash;
}

// Open addressing; a power of two at least twice the number of hooks.
constexpr size_t kSlots = 1024;
static_assert(kSlots >= 2 * kHookCount);

constexpr std::array<uint16_t, kSlots> MakeSlots() {
  constexpr const char* kSymbols[] = {
#define GPUMEMTRACE_SYMBOL(symbol, ...) #symbol,
      GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_SYMBOL)
#undef GPUMEMTRACE_SYMBOL
  };
  std::array<uint16_t, kSlots> slots{};
  for (uint16_t i = 0; i < kHookCount; ++i) {
    uint32_t slot = Hash(kSymbols[i]) % kSlots;
    while (slots[slot] != 0) {
      slot = (slot + 1) % kSlots;
    }
    slots[slot] = static_cast<uint16_t>(i + 1);
  }
  return slots;
}
constexpr std::array<uint16_t, kSlots> kSlotTable = MakeSlots();

}  // namespace

std::atomic<void*> originals[kHookCount][kEntries];

HookId FindBySymbol(const char* name) {
  for (uint32_t slot = Hash(name) % kSlots; kSlotTable[slot] != 0; slot = (slot + 1) % kSlots) {
    const size_t index = kSlotTable[slot] - 1u;
    if (std::strcmp(kHookRows[index].symbol, name) == 0) {
      return static_cast<HookId>(index);
    }
  }
  return HookId::kCount;
}

HookId FindByBase(const char* base, int version, Variant variant) {
  HookId found = HookId::kCount;
  int found_since = -1;
  const auto consider = [&](const char* row_base, int since, Variant row_variant, HookId id) {
    // A function without a per-thread variant is the same for both kinds of caller.
    if (since > version || std::strcmp(row_base, base) != 0 ||
        (row_variant == Variant::kPerThread && variant == Variant::kLegacy)) {
      return;
    }
    const bool better_variant = since == found_since && row_variant == variant;
    if (since > found_since || better_variant) {
      found = id;
      found_since = since;
    }
  };
  for (size_t i = 0; i < kHookCount; ++i) {
    if (kHookRows[i].library == Library::kDriver) {
      consider(kHookRows[i].base, kHookRows[i].since, kHookRows[i].variant, static_cast<HookId>(i));
    }
  }
  for (const Alias& alias : kAliases) {
    consider(alias.base, alias.since, alias.variant, alias.id);
  }
  return found;
}

void* Substitute(HookId id, void* original) {
  if (original == nullptr || IsOurs(original)) {
    return original;
  }
  std::atomic<void*>* behind = originals[Index(id)];
  void* const* entries = kEntryTables[Index(id)];
  for (size_t entry = 1; entry < kEntries; ++entry) {
    void* known = behind[entry].load(std::memory_order_acquire);
    if (known == nullptr &&
        behind[entry].compare_exchange_strong(known, original, std::memory_order_acq_rel)) {
      return entries[entry];
    }
    if (known == original) {
      return entries[entry];
    }
  }
  return SubstituteUnloaded(id, original, entries);
}

}  // namespace gpumemtrace::interpose
