"""Runs a script under every CPython that can be found, and says which.

usage: run_under_pythons.py SCRIPT [ARGUMENT...]

Interpreters: those listed in GPUMEMTRACE_TEST_PYTHONS (separated by colons), else every pyenv version and
every /usr/bin/python3.N from 3.8 on. Of these GPUMEMTRACE_TEST_PYTHONS_WHICH takes "every" one (the default), one of
each minor version ("versions"), or the oldest and the newest ("ends").
Exit status 77 (skipped) when there is none.
"""
import glob
import os
import re
import subprocess
import sys


def candidates():
    listed = os.environ.get("GPUMEMTRACE_TEST_PYTHONS")
    if listed:
        return [path for path in listed.split(":") if path]
    found = []
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found += sorted(glob.glob(os.path.join(root, "versions", "*", "bin", "python3")))
    found += sorted(path for path in glob.glob("/usr/bin/python3*") if path[len("/usr/bin/python3"):][1:].isdigit())
    return found


QUESTION = (
    "import platform, sys, sysconfig;"
    "import ctypes;"
    "print('%d.%d.%d%s' % (sys.version_info[:3] + ('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else '',)),"
    " platform.python_implementation(), int(sys.version_info >= (3, 8)))"
)


def describe(path):
    try:
        out = subprocess.run([path, "-c", QUESTION], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=clean_environment(), check=False)
    except OSError:
        return None
    words = out.stdout.decode().split()
    if out.returncode != 0 or len(words) != 3 or words[2] != "1":
        return None
    return " ".join(words[:2])


def numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def choose(found, which):
    if which == "every":
        return found
    # The latest of each minor version; a free-threaded build is a version of its own.
    latest = {}
    for one in sorted(found, key=lambda one: numbers(one[1])):
        latest[tuple(numbers(one[1])[:2]), one[1].split()[0].endswith("t")] = one
    ordered = [latest[key] for key in sorted(latest)]
    return ordered[:1] + ordered[1:][-1:] if which == "ends" else ordered


def clean_environment():
    # Nothing that one interpreter's settings would tell another.
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH", "LD_PRELOAD")}


def main():
    failed = []
    ran = 0
    found = []
    for path in candidates():
        version = describe(path)
        if version is None:
            print("%s: not a CPython >= 3.8 with ctypes, left out" % path)
            continue
        found.append((path, version))
    chosen = choose(found, os.environ.get("GPUMEMTRACE_TEST_PYTHONS_WHICH", "every"))
    if len(chosen) < len(found):
        print("left out here: " + ", ".join(version for path, version in found if (path, version) not in chosen))
    for path, version in chosen:
        print("%s: %s" % (path, version), flush=True)
        environment = clean_environment()
        preload = os.environ.get("GPUMEMTRACE_TEST_PRELOAD")
        if preload:
            environment["LD_PRELOAD"] = preload
        status = subprocess.run([path] + sys.argv[1:], env=environment, check=False).returncode
        ran += 1
        if status != 0:
            print("%s: FAILED with %d" % (path, status), flush=True)
            failed.append(path)
    if ran == 0:
        print("no interpreter was found")
        return 77
    print("%d interpreters, %d failed" % (ran, len(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
