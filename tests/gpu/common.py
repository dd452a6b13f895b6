"""What every runner in this folder shares: where the two files are, how a program is run with and without
the shim, how its trace is read, and how tables are printed. Standard library only: a training box has no more."""
import argparse
import concurrent.futures
import dataclasses
import glob
import io
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def find_products(given=None):
    """Returns (shim, analyzer), from --dist, from dist/, or from a build folder."""
    folders = [pathlib.Path(given)] if given else [ROOT / "dist", ROOT / "build/release", ROOT / "build/package"]
    for folder in folders:
        shim = sorted(folder.glob("**/libgpumemtrace.so"))
        analyzer = [p for p in sorted(folder.glob("**/gpumem-analyze")) if os.access(p, os.X_OK) and p.is_file()]
        if shim and analyzer:
            return shim[0].resolve(), analyzer[0].resolve()
    raise SystemExit("libgpumemtrace.so and gpumem-analyze were not found in "
                     + ", ".join(map(str, folders)) + "; scripts/package.sh makes them, --dist DIR names their folder")


@dataclasses.dataclass
class Run:
    """One finished program."""
    command: list
    code: object  # exit code, or "timeout"
    seconds: float
    stdout: str
    stderr: str
    traces: list  # every trace file that the program and its children left

    @property
    def trace(self):
        return max(self.traces, key=lambda p: p.stat().st_size) if self.traces else None


def environment(env, shim, folder, name):
    """The environment of one run: ours without leftovers, `env` on top (None takes a variable out), and, with `shim`
    set, the preload and where the traces go."""
    merged = dict(os.environ)
    for variable in list(merged):
        if variable.startswith("GPUMEMTRACE"):
            del merged[variable]
    merged.update({k: str(v) for k, v in (env or {}).items() if v is not None})
    for variable in (k for k, v in (env or {}).items() if v is None):
        merged.pop(variable, None)
    merged.setdefault("PYTHONUNBUFFERED", "1")
    before = merged.get("LD_PRELOAD", "")
    if "{shim}" in before:  # a row that says itself which side of others ours is on
        merged["LD_PRELOAD"] = ":".join(part for part in before.replace("{shim}", str(shim or "")).split(":") if part)
    elif shim:
        merged["LD_PRELOAD"] = str(shim) + (f":{before}" if before else "")
    if shim:
        merged.setdefault("GPUMEMTRACE_OUT", str(folder / f"{name}.%p.pb"))
    return merged


def run(command, *, folder, name, shim=None, env=None, timeout=120, cwd=None):
    """Runs `command` once; with `shim` set it is preloaded and the traces go to folder/name*.pb. Never raises."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    merged = environment(env, shim, folder, name)
    for old in folder.glob(glob.escape(name) + ".*.pb"):  # of an earlier run in the same folder
        old.unlink()
    start = time.monotonic()
    with open(folder / f"{name}.stdout", "wb") as out, open(folder / f"{name}.stderr", "wb") as err:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=merged, cwd=cwd,
                                       start_new_session=True)
        except OSError as error:
            return Run(command, f"cannot start: {error}", 0.0, "", str(error), [])
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = "timeout"
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
            process.wait()
    read = lambda suffix: (folder / f"{name}{suffix}").read_text(errors="replace")
    traces = sorted(folder.glob(glob.escape(name) + ".*.pb")) if shim else []
    return Run(command, code, time.monotonic() - start, read(".stdout"), read(".stderr"), traces)


def last_words(stderr, limit=160):
    """The end of a program's standard error without the shim's own line."""
    lines = [line for line in stderr.strip().split("\n") if not line.startswith("gpumemtrace:")]
    return " ".join(lines[-2:]).strip()[-limit:]


def analyze(analyzer, trace, *arguments, timeout=120):
    """Returns (exit code, stdout, stderr) of gpumem-analyze. Never raises."""
    try:
        done = subprocess.run([str(analyzer), str(trace), *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=timeout)
    except subprocess.TimeoutExpired:
        return "timeout", "", "gpumem-analyze did not finish"
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def analyze_json(analyzer, trace, timeout=120):
    """Returns (report or None, error text)."""
    code, out, err = analyze(analyzer, trace, "--json", timeout=timeout)
    try:
        return json.loads(out), "" if code == 0 else f"gpumem-analyze exit {code}: {err.strip()[-200:]}"
    except ValueError as error:
        return None, f"gpumem-analyze exit {code}, no JSON ({error}): {err.strip()[-200:]}"


def in_parallel(function, items, jobs):
    """Calls function(item) for each item; an exception becomes the item's result, and the others go on."""
    def safe(item):
        try:
            return function(item)
        except Exception as error:  # one failure never stops the rest
            return error
    with concurrent.futures.ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(safe, items))


def markdown_table(head, rows):
    """A Markdown table, padded so that it also reads well as text."""
    rows = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max([len(h), *(len(r[i]) for r in rows)]) for i, h in enumerate(head)]
    line = lambda cells: "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths)) + " |"
    return "\n".join([line(head), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)])


def pack(paths, target, limit=14 << 20):
    """Writes the files into target (tar.gz), smallest first, as long as their sizes stay under `limit`."""
    total, left_out = 0, []
    with tarfile.open(target, "w:gz", compresslevel=6) as archive:
        for path in sorted(set(map(pathlib.Path, paths)), key=lambda p: p.stat().st_size):
            size = path.stat().st_size
            if total + size > limit:
                left_out.append(path.name)
                continue
            total += size
            archive.add(path, arcname=path.name)
    return left_out


def machine():
    """Card, driver and library versions, for the heading of a table. Each is looked up in a process of its own."""
    facts = {"date": time.strftime("%Y-%m-%d"), "kernel": platform.release(), "python": platform.python_version()}
    def output(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return ""
    facts["gpu"] = output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").replace("\n", "; ")
    facts["versions"] = output(sys.executable, "-c", (
        "import importlib.metadata as m\n"
        "for n in ('torch','jax','jaxlib','cupy-cuda13x','cupy-cuda12x','numpy'):\n"
        "  try: print(n, m.version(n), end='; ')\n"
        "  except Exception: pass\n"))
    nvcc = output("nvcc", "--version")
    facts["nvcc"] = nvcc.split("release ")[1].split(",")[0] if "release " in nvcc else ""
    return facts


def has_module(name):
    return subprocess.run([sys.executable, "-c", f"import importlib.util as u; raise SystemExit(u.find_spec({name!r}) is None)"],
                          capture_output=True).returncode == 0


def arguments(description):
    """The options that every runner has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--dist", help="folder that holds libgpumemtrace.so and gpumem-analyze")
    parser.add_argument("--out", default="gpu-acceptance", help="folder for tables, JSON and packed traces")
    parser.add_argument("--work", default="/tmp/gpumemtrace-acceptance", help="folder for traces and logs")
    parser.add_argument("--jobs", type=int, default=4, help="programs at a time")
    parser.add_argument("--timeout", type=int, default=120, help="seconds for one program")
    parser.add_argument("--only", action="append", default=[], help="only items whose name contains this; may be repeated")
    return parser


def chosen(name, only):
    return not only or any(part in name for part in only)


def write(folder, name, text):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
