#!/usr/bin/env python3
"""Makes fixtures of the traces that tests/gpu/cases.py recorded: tests/fixtures/cases/*.pb and truth.json.

    python3 scripts/fixtures_from_cases.py OUT/cases-traces.tar.gz [--cases DIR] [--fixtures tests/fixtures/cases]

Run again, it changes nothing. Entries of truth.json for programs that the archive does not have stay as they are; of
those that it has, what people added (note, native, a bytes_per_step that is null) stays, and the lines come from the
manifest of the cases. A trace that names a folder of the machine's own (anything but /tmp/cases for the programs) is
refused, so that fixtures say nothing of where they were made."""
import argparse
import json
import pathlib
import re
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LARGEST = 400_000  # bytes of one fixture


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("archive")
    parser.add_argument("--cases", default=str(ROOT.parent / "shared/cases"), help="folder with manifest.json")
    parser.add_argument("--fixtures", default=str(ROOT / "tests/fixtures/cases"))
    options = parser.parse_args()
    manifest = {entry["id"]: entry for entry in json.loads((pathlib.Path(options.cases) / "manifest.json").read_text())}
    folder = pathlib.Path(options.fixtures)
    truth_file = folder / "truth.json"
    truth = json.loads(truth_file.read_text()) if truth_file.exists() else {}
    refused = 0
    with tarfile.open(options.archive) as archive:
        for member in sorted(archive.getmembers(), key=lambda entry: entry.name):
            found = re.fullmatch(r"(?:.*/)?([\w-]+?)(?:\.\d+)*\.pb", member.name)
            name = found[1] if found else ""
            entry = manifest.get(name) or next((e for key, e in manifest.items() if key.split("_")[0] == name.split("_")[0]), None)
            if not member.isfile() or entry is None or name.endswith(".plain"):
                continue
            data = archive.extractfile(member).read()
            if len(data) > LARGEST:
                print(f"{name}: {len(data)} B is too large for a fixture")
                refused += 1
                continue
            foreign = {path.decode(errors="replace") for path in re.findall(rb"[\x21-\x7e]*/" + name.encode() + rb"\.(?:py|cu)", data)}
            foreign = {path[path.find("/"):] for path in foreign if "/tmp/cases/" not in path}
            if foreign:
                print(f"{name}: names {', '.join(sorted(foreign)[:2])}; record from /tmp/cases")
                refused += 1
                continue
            target = folder / (name + ".pb")
            if not target.exists() or target.read_bytes() != data:
                target.write_bytes(data)
                print(f"{name}: {len(data)} B written")
            known = truth.setdefault(name, {"verdict": entry["verdict"], "accept_lines": [], "bytes_per_step":
                                            entry.get("bytes_per_step") if entry.get("exact") else None})
            known["accept_lines"] = sorted(set(entry.get("leak_lines", [])) | set(entry.get("alloc_lines", [])))
    text = json.dumps(dict(sorted(truth.items())), indent=1) + "\n"
    if not truth_file.exists() or truth_file.read_text() != text:
        truth_file.write_text(text)
        print("truth.json written")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
