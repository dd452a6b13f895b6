"""docs/options.md is what `gpumem-analyze options --markdown` prints: options_document.py ANALYZER ROOT"""
import difflib
import pathlib
import subprocess
import sys

printed = subprocess.run([sys.argv[1], "options", "--markdown"], check=True, capture_output=True, text=True).stdout
kept = (pathlib.Path(sys.argv[2]) / "docs/options.md").read_text()
sys.stdout.writelines(difflib.unified_diff(kept.splitlines(True), printed.splitlines(True), "docs/options.md", "printed"))
sys.exit(printed != kept)
