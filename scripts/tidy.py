#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over our sources, with the compile commands of build/release.
  scripts/tidy.py          the rooms that run inside the host: interpose/ and recorder/
  scripts/tidy.py all      the analyzer too (its headers are heavy: some minutes more); a build/release that was
                           configured without GPUMEMTRACE_UNITY, which leaves single files of it no compile command
  scripts/tidy.py FILE…    these files
  scripts/tidy.py --quick  (before any of these) the path-sensitive checks give a function up after 50,000 states, not 225,000:
                           half the time; what test.sh takes

Files of a folder are read as one, with their text put one after the other, so that their headers are parsed once: half the time.
Where their file-local names clash, they are read one by one."""

import collections
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATABASE = os.path.join(ROOT, "build", "release", "compile_commands.json")
TIDY = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
# More of them take longer in one process than two processes side by side.
LARGEST_UNIT = 8
QUICK = "--quick" in sys.argv[1:]
# "path:line:column:" at the start of what clang-tidy says.
PLACE = re.compile(r"^(?P<path>[^\s:]+):(?P<line>\d+)(?=:\d+: )")


def wanted_files(arguments):
    if arguments in ([], ["rooms"], ["all"]):
        rooms = ["interpose", "recorder"] + (["analyzer"] if arguments == ["all"] else [])
        found = [os.path.join(folder, name) for room in rooms for folder, _, names in os.walk(os.path.join(ROOT, room))
                 for name in names if name.endswith(".cc") and os.path.basename(folder) != "benchmarks"]
        return sorted(found)
    return [os.path.abspath(argument) for argument in arguments]


def compile_commands(files):
    """Which flags each file is compiled with. A file for another processor, say, has none, and is left out."""
    wanted = set(files)
    found = {}
    with open(DATABASE) as database:
        for entry in json.load(database):
            path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
            if path in wanted and path not in found:
                words = shlex.split(entry["command"])
                # From after the compiler (a launcher may stand before it) to before what is written.
                first = next(i for i, word in enumerate(words) if word.startswith("-"))
                found[path] = entry["directory"], tuple(words[first:words.index("-o")])
    return found


def units(commands):
    """Groups of files that lie in one folder and are compiled alike."""
    groups = collections.defaultdict(list)
    for path, (directory, flags) in sorted(commands.items()):
        groups[os.path.dirname(path), directory, flags].append(path)
    for (_, directory, flags), paths in groups.items():
        for i in range(0, len(paths), LARGEST_UNIT):
            yield paths[i:i + LARGEST_UNIT], directory, flags


def run(source, directory, flags, folder):
    """clang-tidy over one source; (good, what it says)."""
    if QUICK:
        flags = (*flags, "-Xclang", "-analyzer-config", "-Xclang", "max-nodes=50000")
    database = tempfile.mkdtemp(dir=folder)
    with open(os.path.join(database, "compile_commands.json"), "w") as file:
        json.dump([{"directory": directory, "file": source, "arguments": ["c++", *flags, "-c", source]}], file)
    done = subprocess.run([TIDY, "--quiet", "-p", database, "--config-file=" + os.path.join(ROOT, ".clang-tidy"),
                           "--warnings-as-errors=*", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    # A failure that says nothing there is one of clang-tidy itself.
    return done.returncode == 0, done.stdout or (done.stderr if done.returncode != 0 else "")


def check(unit, folder):
    paths, directory, flags = unit
    if len(paths) > 1:
        origin = []
        handle, joined = tempfile.mkstemp(suffix=".cc", dir=folder)
        with os.fdopen(handle, "w") as file:
            for path in paths:
                with open(path) as source:
                    for number, line in enumerate(source, 1):
                        file.write(line)
                        origin.append((path, number))

        def place(match):
            if match["path"] != joined:
                return match[0]
            return "%s:%d" % origin[int(match["line"]) - 1]

        good, text = run(joined, directory, flags, folder)
        if good or "[clang-diagnostic-error" not in text:
            return good, "\n".join(PLACE.sub(place, line) for line in text.splitlines())
    results = [run(path, directory, flags, folder) for path in paths]
    return all(good for good, _ in results), "\n".join(text for _, text in results if text)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if TIDY is None:
        sys.exit("tidy.py: clang-tidy is not installed (scripts/setup.sh installs it)")
    if not os.path.exists(DATABASE):
        sys.exit("tidy.py: configure first: cmake --preset release")
    commands = compile_commands(wanted_files(arguments))
    if arguments == ["all"] and not any("/analyzer/report/" in path for path in commands):
        sys.exit("tidy.py: build/release compiles several files as one: configure it with -DGPUMEMTRACE_UNITY=OFF and build once, "
                 "then again")
    if not commands:
        sys.exit("tidy.py: none of these files is compiled in build/release")
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The largest first.
        work = sorted(units(commands), key=lambda unit: -sum(map(os.path.getsize, unit[0])))
        results = list(pool.map(lambda unit: check(unit, folder), work))
    for good, text in results:
        if text:
            print(text)
    print("%d files in %d units: %s" % (len(commands), len(work), "clean" if all(good for good, _ in results) else "faults"))
    return 0 if all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
