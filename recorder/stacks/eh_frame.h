// Reads call frame information (.eh_frame) of loaded objects, without memory of its own and with little
// stack. Format: Linux Standard Base Core 5.0, chapter 10.6, and DWARF 5, section 6.4.
#pragma once

#include <cstdint>

#include "recorder/stacks/own_code.h"
#include "recorder/stacks/unwind_rule.h"

namespace gpumemtrace::recorder::stacks {

// Finds the loader's lock-free lookup where glibc has it (2.35 and later). Takes the loader's lock.
void PrepareEhFrame();

// As on an older glibc: search the loader's list. For tests.
void ForgetLoaderLookup();

// The rule for a frame whose program counter is `address`. A return address belongs to the call before it:
// pass `exact` only for a frame that was interrupted at `address` itself. The code must be loaded.
UnwindRule FindUnwindRule(uint64_t address, bool exact);

// The range of the function, or the part of one, that contains `address`; empty when there is no CFI.
CodeRange FindFunction(uint64_t address);

}  // namespace gpumemtrace::recorder::stacks
