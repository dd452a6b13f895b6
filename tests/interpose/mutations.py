#!/usr/bin/env python3
"""Takes out each fix of docs/interception.md ("What broke others"), one at a time, and expects the test that stands
against it to fail. Changes the sources of the tree that it lies in and puts them back: run it in a tree of its own
(git worktree), where nobody else builds.

    tests/interpose/mutations.py [--build build/release] [--only WORD]

$NINJA is the command to build with. Exit code 0: every mutation was noticed; 1: one was not; 2: the tests fail without any.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Where the answer of the driver's look-up is matched by its exported symbol as well, two layers stand against one mistake.
BY_NAME_ALONE = ("interpose/driver/resolver.cc", "  const ElfImage driver = ImageOf(returned);",
                 "  if (returned != nullptr) {\n    return by_name;\n  }\n  const ElfImage driver = ImageOf(returned);")

# (pitfall, tests, [(file, text, what stands there without the fix)]). A test is a regular expression for ctest, or
# end_to_end/FILE:NAME. The text must occur exactly once.
MUTATIONS = [
    ("a null status", ["Doors.GetProcAddressToleratesANullStatusAndTheEmptyName"],
     [("interpose/driver/resolver.cc",
       "int* status) {\n  const Result result = call(name, function, version, flags, status);\n  if (result == 0) {",
       "int* status) {\n  const Result result = call(name, function, version, flags, status);\n  if (*status == 0) {")]),
    ("one name, several ABIs", ["Doors.GetProcAddressHonorsTheVersion"],
     [BY_NAME_ALONE, ("interpose/hook_table.cc", "if (since > version ||", "if ((since > version && version < 0) ||")]),
    ("the per-thread-stream flag", ["Doors.GetProcAddressHonorsThePerThreadStreamFlag"],
     [BY_NAME_ALONE, ("interpose/driver/resolver.cc", "(flags & kPerThreadFlag) != 0 ?", "(flags & kPerThreadFlag) > 2 ?")]),
    ("unknown names", ["Doors.GetProcAddressPassesTheUnknownThrough"],
     [("interpose/driver/resolver.cc", "  if (id != HookId::kCount) {\n    *function = Substitute(id, *function);\n  }",
       "  *function = id != HookId::kCount ? Substitute(id, *function) : nullptr;")]),
    ("RTLD_NEXT finds the wrapper", ["other_behind_us.Company.NextFindsTheNextAndNotTheCaller",
                                     "end_to_end/edge_cases:Loading.test_next_of_the_caller"],
     [("interpose/loader.cc", "  if (handle == RTLD_NEXT || name == nullptr || !MayBeHooked(name)) {\n    return pass;",
       "  if (handle == RTLD_NEXT || name == nullptr || !MayBeHooked(name)) {\n    return {look_up(handle), nullptr};")]),
    ("RTLD_NEXT through another preload", ["end_to_end/edge_cases:Loading.test_second_preload_after_ours"],
     [("interpose/original.cc", 'libc_dlsym("dlsym", &LibcLoaderFunction)', 'libc_dlsym("dlsym", &NextLoaderFunction)')]),
    ("the second look-up", ["Doors.TheSecondLookUpAnswersLikeTheFirst"],
     [("interpose/loader.cc", "  void* found = look_up(handle);",
       "  void* found = look_up(handle);\n  static std::atomic<void*> last{nullptr};\n"
       "  if (last.exchange(found) == found) {\n    return {nullptr, nullptr};\n  }")]),
    ("the handle discarded", ["Doors.TheCallersHandleIsKept"],
     [("interpose/loader.cc", "  void* found = look_up(handle);", "  void* found = look_up(handle != nullptr ? RTLD_NEXT : handle);")]),
    ("names by prefix", ["Doors.OnlyExactNamesAreHooked"],
     [("interpose/hook_table.cc", "      return static_cast<HookId>(index);\n    }\n  }\n  return HookId::kCount;",
       "      return static_cast<HookId>(index);\n    }\n  }\n  for (size_t i = 0; i < kHookCount; ++i) {\n"
       "    if (std::strncmp(kHookRows[i].symbol, name, 3) == 0) {\n      return static_cast<HookId>(i);\n    }\n  }\n"
       "  return HookId::kCount;")]),
    ("the first look-up of a sanitizer", ["end_to_end/edge_cases:Loading.test_the_first_look_up_of_a_sanitized_program"],
     [("interpose/original.cc", 'next_dlsym("dlsym", &NextLoaderFunction)', 'next_dlsym("dlsym", &NextDefinition)')]),
    ("a failing look-up succeeds", ["WithoutCuda.LookUpsStillFail", "end_to_end/edge_cases:Interfaces.test_process_without_cuda"],
     [("interpose/loader.cc", "  return {look_up(RTLD_NEXT), nullptr};", "  return {found, nullptr};")]),
    ("RTLD_DEEPBIND", ["OutOfReach.DeepBoundReferencesArePatched"],
     [("interpose/loader.cc", "(mode & RTLD_DEEPBIND) != 0 && (mode", "(mode & RTLD_DEEPBIND) < 0 && (mode")]),
    ("dlmopen", ["OutOfReach.ANamespaceOfItsOwnIsPatched"],
     [("interpose/loader.cc", "  if (file == nullptr || space == LM_ID_BASE", "  if (file != nullptr || space == LM_ID_BASE")]),
    ("one answer for every namespace", ["OutOfReach.SeveralNamespacesKeepTheirOwnLookUps"],
     [("interpose/out_of_reach.cc", "    if (address < object.end.load(std::memory_order_acquire) &&",
       "    if (i != 0) {\n      continue;\n    }\n    if (object.end.load(std::memory_order_acquire) != 0 ||"),
      ]),
    ("the caller's RUNPATH", ["OutOfReach.TheCallersSearchPathIsKeptWithDeepBind"],
     [("interpose/loader.cc", '  if (ImageOf(caller).has_search_path()) {\n    NoteOutOfReach("RTLD_DEEPBIND"',
       '  if (caller == nullptr) {\n    NoteOutOfReach("RTLD_DEEPBIND"')]),
    ("the driver asks for itself", ["Doors.ADriverThatAsksForItselfFindsItself"],
     [("interpose/loader.cc", "id == HookId::kCount || CalledByDriver(caller)",
       "id == HookId::kCount || (CalledByDriver(caller) && name[0] == 0)")]),
    ("a dlopen of another thread", ["Doors.AFirstCallDuringAnotherThreadsDlopenDoesNotWait"],
     [("interpose/original.cc", "  void* original = OnlyDefinition(Row(id).symbol);", "  void* original = nullptr;")]),
    ("a named version node", ["House.ShimIsOneSelfContainedFile"],
     [("interpose/exports.map.in", "\n{\n", "\nGPUMEMTRACE_1 {\n")]),
    ("the preload needs a library", ["House.ShimIsOneSelfContainedFile"],
     [("interpose/CMakeLists.txt", "  -static-libstdc++ -static-libgcc)", "  -Wl,--no-as-needed -l:libstdc++.so.6)")]),
    ("two runtimes share one original", ["Doors.TwoRuntimesOfDifferentMajorsEachGetTheirOwn"],
     [("interpose/original.cc", "  if (library == Library::kRuntime || library == Library::kLibrary) {",
       "  if (library == Library::kLibrary) {")]),
    ("longjmp and exceptions", ["Doors.CallsThatAreEscapedFromLeaveTheThreadRecording"],
     [("interpose/reentrancy.h", "(thread_state.runtime_scope == 0 ||\n                                 "
       "thread_state.runtime_scope <= reinterpret_cast<uintptr_t>(this))", "thread_state.runtime_scope == 0")]),
    ("width × height", ["Memory.PitchedMemoryIsPitchTimesHeight"],
     [("interpose/driver/device_memory.cc", "pitch != nullptr ? *pitch : width", "pitch == nullptr ? *pitch : width")]),
    ("captured allocations", ["Memory.CapturedAllocationsAreNodesAndLiveOnLaunch"],
     [("interpose/driver/stream_ordered.cc", "const bool capturing = CaptureOf(stream, variant).active;",
       "const bool capturing = CaptureOf(stream, variant).active && size == 1;")]),
    ("out-parameters after a failure", ["Memory.FailuresAreRecordedWithTheirResult"],
     [("interpose/driver/wrappers.h", "  return result == 0 && out != nullptr ? *out : 0;",
       "  return result >= 0 && out != nullptr ? *out : 0;")]),
    ("children write the parent's trace", ["end_to_end/edge_cases:Processes.test_fork_after_cuda", "end_to_end/edge_cases:Processes.test_fork_storm"],
     [("recorder/recorder.cc", "void ResetInChild() {\n", "void ResetInChild() {\n  if (getpid() > 0) {\n    return;\n  }\n")]),
    ("nothing left after _exit or a signal", ["end_to_end/edge_cases:Ends.test__exit", "end_to_end/edge_cases:Ends.test_sigkill"],
     # After _exit there are two: the trace is finished, and the rings are in a file.
     [("recorder/rings/ring_memory.cc", "MAP_SHARED | MAP_POPULATE, fd,", "MAP_PRIVATE | MAP_POPULATE, fd,"),
      ("interpose/exit.cc", "  if (!OnSignalStack()) {", "  if (!OnSignalStack() && status > 255) {")]),
]


def build(folder, log):
    command = os.environ.get("NINJA", "ninja").split() + ["-C", str(folder), "gpumemtrace", "tests/interpose/all"]
    return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode == 0


def passes(test, folder, log):
    if not test.startswith("end_to_end/"):
        command, env = ["ctest", "--test-dir", str(folder), "--no-tests=error", "--timeout", "100", "-R", test.replace(".", r"\.") + "$"], None
    else:
        file, name = test.split(":")
        command = [sys.executable, "-B", str(ROOT / "tests" / f"{file}_test.py"), name]
        env = dict(os.environ, GPUMEMTRACE_TEST_SIMULATED=str(folder / "tests/simulated_cuda"),
                   GPUMEMTRACE_TEST_PROGRAMS=str(folder / "tests/programs"), GPUMEMTRACE_TEST_SHIM=str(folder / "interpose/libgpumemtrace.so"),
                   GPUMEMTRACE_TEST_ANALYZER=str(folder / "analyzer/gpumem-analyze"))
    process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout=400) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        # A mutated shim can leave children that spin for ever.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", default="build/release", help="a folder in which everything is built")
    parser.add_argument("--only", action="append", default=[], help="only pitfalls whose name has this word")
    options = parser.parse_args()
    folder = (ROOT / options.build).resolve()
    chosen = [m for m in MUTATIONS if not options.only or any(word in m[0] for word in options.only)]
    with open(folder / "mutations.log", "w") as log:
        broken = [] if build(folder, log) else ["the build"]
        broken += [test for test in sorted({t for m in chosen for t in m[1]}) if not broken and not passes(test, folder, log)]
        if broken:
            print("without any mutation these fail already:", ", ".join(broken))
            return 2
        unnoticed = 0
        for name, tests, edits in chosen:
            kept = {}
            try:
                for file, old, new in edits:
                    path = ROOT / file
                    text = path.read_text()
                    kept.setdefault(path, text)
                    if text.count(old) != 1:
                        raise SystemExit(f"{name}: {file} has the text to change {text.count(old)} times: {old}")
                    path.write_text(text.replace(old, new))
                built = build(folder, log)
                results = [(test, "noticed" if built and not passes(test, folder, log) else "NOT NOTICED" if built else "NOT BUILT")
                           for test in tests]
            finally:
                for path, text in kept.items():
                    path.write_text(text)
            unnoticed += any(result != "noticed" for _, result in results)
            for test, result in results:
                print(f"{result:12} {name}: {test}", flush=True)
        build(folder, log)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} mutations noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
