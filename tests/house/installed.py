"""`cmake --install` puts each file where a user looks for it: installed.py CMAKE BUILD_FOLDER"""
import os
import pathlib
import subprocess
import sys
import tempfile

cmake, build = sys.argv[1:3]
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([cmake, "--install", build, "--prefix", folder], check=True, stdout=subprocess.DEVNULL)
    files = {str(p.relative_to(folder)) for p in pathlib.Path(folder).rglob("*") if p.is_file()}
    runs = subprocess.run([f"{folder}/bin/gpumem-analyze", "--version"], capture_output=True).returncode if os.path.exists(
        f"{folder}/bin/gpumem-analyze") else "missing"
    preloads = subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": f"{folder}/lib/libgpumemtrace.so"}, capture_output=True)
expected = {"lib/libgpumemtrace.so", "bin/gpumem-analyze", "include/gpumemtrace.h", "share/gpumemtrace/python/gpumemtrace.py"}
print("installed:", *sorted(files))
print("missing:", *sorted(expected - files))
print("unexpected:", *sorted(files - expected))
print("gpumem-analyze --version:", runs, "; preload:", preloads.stderr.decode())
sys.exit(files != expected or runs != 0 or preloads.returncode != 0 or preloads.stderr != b"")
