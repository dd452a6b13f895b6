"""The documents point at things that exist, and nothing of ours names a machine or a person's folder.

    documents.py ROOT"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
faults = []
try:
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True).stdout.split("\n")
    files = [ROOT / n for n in names if n and (ROOT / n).is_file()]
except (OSError, subprocess.CalledProcessError):  # not a clone, e.g. an unpacked archive
    files = [p for p in ROOT.rglob("*") if p.is_file() and not {"build", ".cache", ".git", "dist"} & set(p.relative_to(ROOT).parts)]

for document in (f for f in files if f.suffix == ".md"):
    text = document.read_text()
    prose = re.sub(r"```.*?```|^    .*?$", "", text, flags=re.S | re.M)
    for target in re.findall(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
        if not re.match(r"[a-z]+:", target) and not (document.parent / target).exists():
            faults.append(f"{document.relative_to(ROOT)}: link to {target}, which is not there")
    for script in set(re.findall(r"\b(?:scripts|docs|cmake|tests/\w+)/[\w/.-]+\.(?:sh|py|md|cmake)\b", text)):
        if not (ROOT / script).exists():
            faults.append(f"{document.relative_to(ROOT)}: names {script}, which is not there")
    # A command, perhaps behind settings of variables.
    for script in set(re.findall(r"^    (?:\w+=\S+ )*((?:scripts|tests)/[\w/.-]+\.(?:sh|py))\b", text, flags=re.M)):
        if (ROOT / script).exists() and not os.access(ROOT / script, os.X_OK):
            faults.append(f"{document.relative_to(ROOT)}: calls {script}, which is not executable")

OWN_FOLDER = re.compile(r"/work/(?:main|shared)|/root/\w")
for file in files:
    if file.suffix in {".pb", ".gz", ".bin", ".png"} or "fixtures" in file.parts or file.name == "documents.py":
        continue
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        continue
    for number, line in enumerate(text.split("\n"), 1):
        if OWN_FOLDER.search(line):
            faults.append(f"{file.relative_to(ROOT)}:{number}: a folder of one machine: {line.strip()[:80]}")

for required in ("README.md", "LICENSE", "docs/how-it-works.md", "docs/limits.md", "docs/options.md", "docs/trace-format.md",
                 "docs/exit-codes.md", "docs/structure.md", "docs/building.md", "docs/measurements/README.md"):
    if not (ROOT / required).is_file():
        faults.append(f"{required} is missing")
print("\n".join(faults) or "documents agree with the tree")
sys.exit(bool(faults))
