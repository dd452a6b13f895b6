// The exported symbols: one jump each, into the entry that the family's file defines. A jump, not a call, so
// that the entry sees the return address of the caller and with it the library that called.
#include "interpose/hooks.h"

#if defined(__x86_64__)
#define GPUMEMTRACE_JUMP(symbol) "endbr64\n jmp *gpumemtrace_entries_" symbol "(%rip)\n"
#elif defined(__aarch64__)
#define GPUMEMTRACE_JUMP(symbol)                      \
  "hint #34\n"                                        \
  "adrp x16, gpumemtrace_entries_" symbol             \
  "\n"                                                \
  "ldr x16, [x16, #:lo12:gpumemtrace_entries_" symbol \
  "]\n"                                               \
  "br x16\n"
#endif

#define GPUMEMTRACE_EXPORT(symbol, ...) \
  asm(".pushsection .text\n"                   \
      ".p2align 4\n"                           \
      ".globl " #symbol "\n"                   \
      ".type " #symbol ", @function\n"         \
      #symbol ":\n"                            \
      ".cfi_startproc\n"                       \
      GPUMEMTRACE_JUMP(#symbol)                \
      ".cfi_endproc\n"                         \
      ".size " #symbol ", .-" #symbol "\n"     \
      ".popsection\n");

GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_EXPORT)
