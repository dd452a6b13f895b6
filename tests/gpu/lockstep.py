"""Measures variants of one workload in turn: all of them are started once and warmed up, then asked for one short block at
a time, in an order that changes from round to round, so that whatever disturbs the machine meets all of them alike.

What is compared is the ratio of a variant's block to the plain block of the same round; told are the median over the rounds
and a 95 % interval of that median by bootstrap. Where a variant runs in several processes, their blocks of one round are
taken together (mean), which also averages over what differs between two processes of the same kind."""
import collections
import json
import math
import queue
import random
import statistics
import subprocess
import sys
import threading

import common

PLAIN = "plain"


class Worker:
    """One workload process that answers requests."""

    def __init__(self, workload, folder, variant, shim, env, arguments, number=0):
        self.variant = variant
        self.folder = folder
        self.label = f"{variant} {number}".replace(" ", "_").replace(",", "").replace("+", "and")
        self.trace_pattern = f"{self.label}.*.pb"
        for old in folder.glob(self.trace_pattern):
            old.unlink()
        merged = common.environment(env, shim, folder, self.label)
        self.errors = open(folder / f"{self.label}.stderr", "wb")
        self.process = subprocess.Popen([sys.executable, str(workload), *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, env=merged, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, request, timeout=60):
        """The answer, or None when the process is gone or does not answer."""
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            return None
        return self.answer(timeout)

    def answer(self, timeout):
        try:
            line = self.lines.get(timeout=timeout)
            return json.loads(line) if line else None
        except (queue.Empty, ValueError):
            return None

    def end(self, timeout=60):
        try:
            self.process.stdin.write("quit\n")
            self.process.stdin.close()
        except (OSError, ValueError):
            pass
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()
        return self.process.returncode

    def last_words(self):
        return common.last_words((self.folder / f"{self.label}.stderr").read_text(errors="replace"))

    def trace(self):
        return max(self.folder.glob(self.trace_pattern), key=lambda p: p.stat().st_size, default=None)


def pin_request(cores):
    """The request that puts a worker on two neighboring cores in the middle of `cores`."""
    middle = len(cores) // 2
    return f"pin {cores[middle]} {cores[middle - 1]}"


def rounds(workers, request, most, seconds, clock):
    """Up to `most` rounds within `seconds`: [{variant: [answers of its processes]}]."""
    rng = random.Random(1)
    begun = clock()
    taken = []
    for _ in range(most):
        if taken and clock() - begun > seconds:
            break
        order = list(workers)
        rng.shuffle(order)
        answers = collections.defaultdict(list)
        for worker in order:
            answer = worker.ask(request)
            if answer is not None:
                answers[worker.variant].append(answer)
        taken.append(dict(answers))
    return taken


def values(taken, variant, key):
    """One number a round; None where the variant did not answer."""
    found = []
    for answers in taken:
        numbers = [a[key] for a in answers.get(variant, []) if key in a]
        found.append(statistics.fmean(numbers) if numbers else None)
    return found


def compare(taken, variant, key, base=PLAIN):
    """What the variant costs against `base`, or None: its median, the median of the ratios and of the differences with
    their 95 % intervals, and the number of rounds."""
    pairs = [(v, b) for v, b in zip(values(taken, variant, key), values(taken, base, key)) if v is not None and b]
    if len(pairs) < 3:
        return None
    result = {"median": statistics.median(v for v, _ in pairs), "rounds": len(pairs)}
    for name, numbers in (("ratio", [v / b - 1 for v, b in pairs]), ("difference", [v - b for v, b in pairs])):
        result[name] = statistics.median(numbers)
        result[name + "_interval"] = interval_of_median(numbers)
    return result


def center(taken, key, base=PLAIN, draws=1000):
    """{variant: (its cost against `base`, the ends of the 95 % interval)} as ratios − 1, more exact than compare(): each value is
    first set against the mean of all variants of its round, so that what slows a whole round falls out and the base's own noise is
    not in every figure; then told are the median over the rounds, and the interval by drawing rounds again."""
    rows = []
    for answers in taken:
        row = {v: math.log(statistics.fmean(a[key] for a in found)) for v, found in answers.items() if found and all(a.get(key) for a in found)}
        rows.append({v: x - statistics.median(row.values()) for v, x in row.items()})
    names = [v for v in rows[0] if v != base] if rows else []
    rows = [r for r in rows if base in r and all(v in r for v in names)]
    if len(rows) < 3:
        return {}
    rng = random.Random(3)
    samples = [rows, *(rng.choices(rows, k=len(rows)) for _ in range(draws))]
    found = {}
    for name in names:
        costs = [math.exp(statistics.median(r[name] for r in s) - statistics.median(r[base] for r in s)) - 1 for s in samples]
        drawn = sorted(costs[1:])
        found[name] = (costs[0], drawn[int(draws * 0.025)], drawn[int(draws * 0.975)])
    return found


def interval_of_median(numbers, draws=2000):
    rng = random.Random(2)
    medians = sorted(statistics.median(rng.choices(numbers, k=len(numbers))) for _ in range(draws))
    return [medians[int(draws * 0.025)], medians[int(draws * 0.975)]]


def spread_of_processes(taken, key):
    """How far two processes of the plain variant are apart, (second ÷ first − 1): what no comparison between processes
    can tell from an effect. None with a single one."""
    pairs = [(a[PLAIN][0][key], a[PLAIN][1][key]) for a in taken if len(a.get(PLAIN, [])) > 1]
    return statistics.median(b / a - 1 for a, b in pairs) if pairs else None
