// Exit codes of gpumem-analyze; docs/exit-codes.md lists them for users. 64 to 66 are those of sysexits.h.
#pragma once

namespace gpumemtrace::analyzer {

enum ExitCode : int {
  kExitOk = 0,
  kExitLimitBroken = 1,    // check: a limit was broken
  kExitUnjudged = 2,       // check: the trace could not be judged
  kExitDamaged = 3,        // damaged or incomplete: read in part, the report says what is missing
  kExitUsage = 64,         // wrong use of the command line
  kExitNotATrace = 65,     // no valid packet in the file
  kExitCannotRead = 66,    // no such file, no permission, I/O error
  kExitNewerVersion = 67,  // written by a newer recorder than this program understands
};

}  // namespace gpumemtrace::analyzer
