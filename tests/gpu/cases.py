#!/usr/bin/env python3
"""Records every program of a folder of cases with ground truth under the shim, has gpumem-analyze judge the trace,
and writes the confusion table: verdict, bytes per step, culprit line, holder.

    python3 tests/gpu/cases.py --cases DIR --dist dist --out OUT

A case is a .py or .cu file whose head has one line `TRUTH {json}` (id, verdict, bytes_per_step, exact, steps) and,
for .cu, `build: nvcc … && ./case`; `# LEAK` marks the line with the mistake, `# ALLOC` the line of birth when that is
another one, `# GROWS` in controls a line that only looks guilty. With --truth manifest.json the marks are taken from
there, so that copies without comments can be judged."""
import json
import os
import pathlib
import re
import shlex
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common
import report_reader

VERDICTS = ["leak", "fragmentation", "peak", "clean", "unjudged"]
PEAK_LINES = 5  # a peak is explained when the marked line is among this many first lines of its composition


class Case:
    def __init__(self, path, manifest):
        self.path = path
        text = path.read_text(errors="replace")
        lines = text.split("\n")
        number = re.match(r"(?:case)?(\d+)", path.stem)
        entry = manifest.get(number[1] if number else path.stem)
        found = re.search(r"(?:#|//) TRUTH (\{.*\})", text)
        if entry is None:
            if not found:
                raise ValueError(f"{path.name}: no TRUTH line")
            marks = {mark: [i for i, line in enumerate(lines, 1) if i > 7 and re.search(rf"(?:#|//) {mark}\b", line)]
                     for mark in ("LEAK", "ALLOC", "GROWS")}
            entry = dict(json.loads(found[1]), leak_lines=marks["LEAK"], alloc_lines=marks["ALLOC"] or marks["LEAK"])
        self.truth = entry
        self.id = entry["id"]
        build = re.search(r"(?:#|//) build: (.*?)(?:&&|$)", text, re.M)
        self.build = build[1].strip() if build else None
        # Programs that read the device's free memory see every other program on the card.
        self.alone = bool(re.search(r"mem_get_info|cudaMemGetInfo|memory\.total|nvidia-smi", text))

    def accept(self):
        return set(self.truth.get("leak_lines", [])) | set(self.truth.get("alloc_lines", []))


def compile_case(case, folder):
    """Builds a .cu by the line in its head. Returns (command, error)."""
    binary = folder / case.path.stem
    words = shlex.split(case.build or f"nvcc -g -lineinfo -o case {case.path.name}")
    words[words.index("-o") + 1] = str(binary)
    words = [str(case.path) if w == case.path.name or w.endswith(".cu") else w for w in words]
    words = ["-arch=native" if w.startswith("-arch=") else w for w in words]
    done = common.run(words, folder=folder, name=f"{case.path.stem}.build", timeout=180)
    if done.code != 0 and "-arch=native" in words:
        words = [w if w != "-arch=native" else "-arch=sm_90" for w in words]
        done = common.run(words, folder=folder, name=f"{case.path.stem}.build", timeout=180)
    return ([str(binary)], "") if done.code == 0 else (None, f"build failed: {(done.stderr or done.stdout).strip()[-200:]}")


def measured(stdout):
    found = re.search(r"measured bytes/step ([-\d.e+]+)", stdout)
    return float(found[1]) if found else None


def judge(case, report):
    """Compares the report with the truth. Returns a dict of what was told and whether it is right."""
    truth = case.truth
    file = case.path.name
    found = report_reader.findings(report)
    kinds = [f.kind for f in found]
    told = report.get("verdict")
    if told not in VERDICTS:
        told = next((k for k in ("leak", "fragmentation", "peak") if k in kinds), "clean")
    same = [f for f in found if f.kind == truth["verdict"]]
    result = {"told": told, "line": None, "top": None, "holder": None, "bytes": None, "bytes_ok": None}
    if truth["verdict"] in ("leak", "fragmentation"):
        ours = [f for f in same if f.names_line(file, case.accept()) or f.names_holder(file, case.truth["leak_lines"])]
        result["line"] = bool(ours)
        result["top"] = bool(ours) and same[0] is ours[0]
        result["holder"] = any(f.names_holder(file, case.truth["leak_lines"]) for f in ours)
        result["bytes"] = sum(f.bytes_per_step for f in (ours or same))
        expected = truth.get("bytes_per_step")
        if expected and truth.get("exact"):
            result["bytes_ok"] = abs(result["bytes"] - expected) <= 0.01 * expected
        result["right"] = told == truth["verdict"] and result["line"]
    elif truth["verdict"] == "peak":
        lines = report_reader.peak_lines(report)[:PEAK_LINES]
        result["line"] = any(f.names_line(file, case.accept()) for f in same) or any(
            f == file and n in case.accept() for f, n, _ in lines)
        result["right"] = told in ("peak", "clean") and result["line"]
    else:
        result["right"] = told in ("clean", "peak")
    result["findings"] = [f"{f.kind} {f.bytes_per_step:.0f} B/step {f.culprit[0]}:{f.culprit[1]}"
                          + (f" held by {f.holder_text}" if f.holder_text else "") for f in found[:3]]
    return result


def neutral_copy(folder, neutral):
    """The programs, copied to where no path tells of this machine: traces name the files, and become fixtures."""
    neutral.mkdir(parents=True, exist_ok=True)
    copies = []
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.cu")]):
        copy = neutral / path.name
        if not copy.exists() or not os.path.samefile(path, copy):
            shutil.copyfile(path, copy)
        copies.append(copy)
    return copies


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--cases", default=os.environ.get("GPUMEMTRACE_CASES", str(common.ROOT.parent / "shared/cases")))
    parser.add_argument("--truth", help="manifest.json with the truth of cases whose comments were taken out")
    parser.add_argument("--neutral", default="/tmp/cases", help="where the programs are copied to and run")
    parser.add_argument("--compare", action="store_true", help="also run each program without the shim and compare its output")
    parser.add_argument("--pack-each", type=int, default=2 << 20, help="traces up to this many bytes are packed")
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    manifest = {}
    if options.truth:
        manifest = {e["id"].split("_")[0]: e for e in json.loads(pathlib.Path(options.truth).read_text())}
    cases, rows = [], []
    folder = pathlib.Path(options.neutral).resolve()
    for path in neutral_copy(pathlib.Path(options.cases).resolve(), folder):
        if not re.match(r"(case)?\d", path.name) or not common.chosen(path.name, options.only):
            continue
        try:
            cases.append(Case(path, manifest))
        except (ValueError, KeyError) as error:
            print(f"left out: {error}")
    if not cases:
        raise SystemExit(f"no cases in {options.cases}")
    work = pathlib.Path(options.work) / "cases"

    def one(case):
        if case.path.suffix == ".cu":
            command, error = compile_case(case, work)
            if error:
                return {"id": case.id, "error": error}
        else:
            command = [sys.executable, str(case.path)]
        done = common.run(command, folder=work, name=case.path.stem, shim=shim, timeout=options.timeout, cwd=str(folder))
        result = {"id": case.id, "code": done.code, "seconds": round(done.seconds, 1), "measured": measured(done.stdout),
                  "stderr": done.stderr.strip()[-300:], "trace": str(done.trace or "")}
        if "skipped:" in done.stdout:
            return dict(result, error=done.stdout.strip()[-80:], skipped=True)
        if options.compare:
            plain = common.run(command, folder=work, name=case.path.stem + ".plain", timeout=options.timeout, cwd=str(folder))
            result["same_exit"] = plain.code == done.code
            result["same_output"] = plain.stdout == done.stdout or case.alone and plain.code == done.code
        if done.code != 0:
            result["error"] = f"exit {done.code}: " + common.last_words(done.stderr)
        if not done.trace:
            return dict(result, error=result.get("error", "no trace was written"))
        result["trace_bytes"] = done.trace.stat().st_size
        report, error = common.analyze_json(analyzer, done.trace)
        if report is None:
            return dict(result, error=error)
        (work / f"{case.path.stem}.report.json").write_text(json.dumps(report))
        (work / f"{case.path.stem}.report.txt").write_text(common.analyze(analyzer, done.trace)[1])
        checked, disagree = report_reader.self_check(report)
        result.update(judge(case, report), checked=checked, disagree=disagree, note=error)
        return result

    together = [c for c in cases if not c.alone]
    results = dict(zip([c.id for c in together], common.in_parallel(one, together, options.jobs)))
    alone = [c for c in cases if c.alone]
    results.update(zip([c.id for c in alone], common.in_parallel(one, alone, 1)))

    confusion = {truth: dict.fromkeys(VERDICTS, 0) for truth in VERDICTS[:4]}
    right = failed = skipped = 0
    say = lambda value: {True: "yes", False: "NO", None: ""}[value]
    for case in cases:
        r = results[case.id]
        if isinstance(r, Exception):
            r = results[case.id] = {"id": case.id, "error": f"{type(r).__name__}: {r}"}
        if r.get("skipped"):
            skipped += 1
        elif "told" not in r:
            failed += 1
        else:
            confusion[case.truth["verdict"]][r["told"]] += 1
            right += bool(r["right"])
        expected = case.truth.get("bytes_per_step")
        rows.append([case.id, case.truth["verdict"], r.get("told", "-"), say(r.get("right")), say(r.get("line")), say(r.get("top")),
                     say(r.get("holder")), "" if expected is None else f"{expected:g}{'' if case.truth.get('exact') else '~'}",
                     "" if r.get("bytes") is None else f"{r['bytes']:.0f}", say(r.get("bytes_ok")), r.get("trace_bytes", ""),
                     r.get("error") or "; ".join(r.get("findings", []))[:110]])
    facts = common.machine()
    head = ["case", "truth", "told", "right", "line", "top", "holder", "bytes/step", "told", "±1 %", "trace bytes", "findings or error"]
    table = [f"# Cases with ground truth", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
             common.markdown_table(head, rows), "",
             f"{right} of {len(cases) - failed - skipped} judged right; {failed} not judged, {skipped} skipped.", "",
             common.markdown_table(["truth \\ told", *VERDICTS], [[t, *c.values()] for t, c in confusion.items()])]
    if options.compare:
        different = [c.id for c in cases if results[c.id].get("same_exit") is False or results[c.id].get("same_output") is False]
        table += ["", f"Same output and exit code with and without the shim: {'all' if not different else 'all but ' + ', '.join(different)}."]
    print("\n".join(table))
    common.write(options.out, "cases.md", "\n".join(table) + "\n")
    common.write(options.out, "cases.json", json.dumps({"machine": facts, "results": results}, indent=1, default=str))
    files = [p for c in cases for p in [pathlib.Path(results[c.id].get("trace") or "/nonexistent")]
             if p.is_file() and p.stat().st_size <= options.pack_each]
    files += [p for pattern in ("*.report.txt", "*.report.json") for p in work.glob(pattern) if p.stat().st_size < 1 << 20]
    left = common.pack(files, pathlib.Path(options.out) / "cases-traces.tar.gz")
    if left:
        print("not packed:", ", ".join(left))
    return 0 if right == len(cases) - skipped else 1


if __name__ == "__main__":
    sys.exit(main())
