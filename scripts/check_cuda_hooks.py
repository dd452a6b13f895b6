#!/usr/bin/env python3
"""Every CUDA function is either hooked or on a list of those that need not be, with the reason.

Compares what a toolkit has (the exported symbols of its libcuda stub and its libcudart, and the entries of
cudaTypedefs.h) with interpose/hook_list.h and interpose/not_hooked.txt, so that a newer toolkit shows what is
new. Exit code 0: all accounted for; 1: something is missing or stated twice; 2: no toolkit was found.

    scripts/check_cuda_hooks.py [--toolkit FOLDER]
"""

import argparse
import pathlib
import re
import struct
import sys

# The toolkit that the lists were made from. An older one has functions that were removed since; they are
# reported and are no fault.
LIST_VERSION = 13000

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPEDEF = re.compile(r"\bPFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\b")
ROW = re.compile(r"^\s*H\((\w+),\s*\"([^\"]+)\",\s*(\d+),\s*(k\w+),\s*(k\w+),", re.M)
ALIAS = re.compile(r"^\s*A\(\"(\w+)\",\s*(\d+),\s*(k\w+),\s*(\w+)\)", re.M)


def exported_functions(path):
    """Names of the functions that a 64-bit little-endian ELF file defines for others."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit ELF file")
    section_offset, = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * entry_size) for i in range(count)]
    names = set()
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        strings = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], 24):
            name, info, _, index = struct.unpack_from("<IBBH", data, offset)
            if index != 0 and info & 15 in (2, 10):  # STT_FUNC, STT_GNU_IFUNC
                start = strings + name
                names.add(data[start:data.index(b"\0", start)].decode())
    return names


def find_toolkit(folder):
    candidates = [folder] if folder else ["/usr/local/cuda", "/usr"]
    for candidate in map(pathlib.Path, candidates):
        if (candidate / "include/cudaTypedefs.h").exists():
            return candidate
    return None


def libraries(toolkit):
    """The stub of the driver and the runtime, where the toolkit has them."""
    for pattern in ("lib64/stubs/libcuda.so", "lib/stubs/libcuda.so", "targets/*/lib/stubs/libcuda.so"):
        driver = next(iter(sorted(toolkit.glob(pattern))), None)
        if driver:
            break
    for pattern in ("lib64/libcudart.so", "lib64/libcudart.so.[0-9]*", "lib/libcudart.so.[0-9]*"):
        runtime = next(iter(sorted(toolkit.glob(pattern))), None)
        if runtime:
            break
    return [path for path in (driver, runtime) if path]


def read_not_hooked(path):
    """{name: reason}, and what is wrong with the file."""
    reasons, problems, reason = {}, [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#", 1)[0].rstrip()
        if not line:
            continue
        if not line[0].isspace():
            reason = line.rstrip(":")
            continue
        for name in line.split():
            if reason is None:
                problems.append(f"{path.name}:{number}: {name} has no reason")
            if name in reasons:
                problems.append(f"{path.name}:{number}: {name} stands twice")
            reasons[name] = reason
    return reasons, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--toolkit", help="folder with include/ and lib64/ (default: /usr/local/cuda)")
    arguments = parser.parse_args()
    toolkit = find_toolkit(arguments.toolkit)
    if toolkit is None:
        print("No CUDA toolkit found; nothing checked.")
        return 2

    match = re.search(r"#define CUDA_VERSION (\d+)", (toolkit / "include/cuda.h").read_text(errors="replace"))
    older = match is not None and int(match.group(1)) < LIST_VERSION
    text = (ROOT / "interpose/hook_list.h").read_text()
    rows = ROW.findall(text)
    hooked = {symbol for symbol, *_ in rows}
    abis = {(base, int(since), "_ptsz" if variant == "kPerThread" else "") for _, base, since, variant, _ in rows}
    abis |= {(base, int(since), "_ptsz" if variant == "kPerThread" else "") for base, since, variant, _ in ALIAS.findall(text)}
    not_hooked, problems = read_not_hooked(ROOT / "interpose/not_hooked.txt")

    known = set()
    for library in libraries(toolkit):
        names = {name for name in exported_functions(library) if re.match(r"cu[A-Z]|cuda[A-Z]", name)}
        known |= names
        missing = sorted(names - hooked - set(not_hooked))
        print(f"{library.name}: {len(names)} functions, {len(names & hooked)} hooked, {len(missing)} not accounted for")
        problems += [f"{library.name}: {name} is neither hooked nor in not_hooked.txt" for name in missing]

    # The typedefs tell which version has which ABI: a new one of a hooked function needs a row of its own.
    hooked_bases = {base for base, _, _ in abis}
    entries = set(TYPEDEF.findall((toolkit / "include/cudaTypedefs.h").read_text()))
    for base, since, variant in sorted(entries, key=lambda entry: (entry[0], int(entry[1]), entry[2])):
        label = f"{base}@{since}{variant}"
        if base in hooked_bases:
            if (base, int(since), variant) not in abis and label not in not_hooked:
                problems.append(f"cudaTypedefs.h: {label} is an ABI of a hooked function without a row")
        elif base not in not_hooked and base + "_v2" not in not_hooked:
            problems.append(f"cudaTypedefs.h: {base} is neither hooked nor in not_hooked.txt")
    print(f"cudaTypedefs.h: {len(entries)} entries")

    # Functions of the toolkit that are hooked and excused at once.
    problems += [f"{name} is hooked and in not_hooked.txt" for name in sorted(hooked & set(not_hooked))]
    for problem in problems:
        print(problem)
    if older and problems:
        print(f"The toolkit is older than {LIST_VERSION}: reported only.")
    return 1 if problems and not older else 0


if __name__ == "__main__":
    sys.exit(main())
