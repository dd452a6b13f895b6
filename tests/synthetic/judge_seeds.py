"""Judges every make-believe program with more seeds than the tests do, and prints those that are judged wrong.

usage: judge_seeds.py BUILD_FOLDER SEED…
"""
import json
import os
import subprocess
import sys
import tempfile


def main():
    build, seeds = sys.argv[1], [int(word) for word in sys.argv[2:]]
    synthesize = os.path.join(build, "tests", "synthetic", "gpumem-synthesize")
    analyze = os.path.join(build, "analyzer", "gpumem-analyze")
    usage = subprocess.run([synthesize], stderr=subprocess.PIPE, check=False).stderr.decode()
    names = [line.strip() for line in usage.splitlines()[2:]]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.pb")
        for seed in seeds:
            for name in names:
                made = subprocess.run([synthesize, trace, name, str(seed)], stdout=subprocess.PIPE, check=True)
                verdict, rate = made.stdout.decode().split()[:2]
                told = subprocess.run([analyze, "--json", trace], stdout=subprocess.PIPE, check=True)
                report = json.loads(told.stdout)
                exact = float(rate)
                right = report["verdict"] == verdict
                if right and exact:
                    right = abs((report["bytes_per_step"] or 0) - exact) <= 0.01 * exact
                if not right:
                    wrong += 1
                    print(f"{name} {seed}: {verdict} {rate} B/step, told: {report['headline']}", flush=True)
    print(f"{len(names)} programs, {len(seeds)} seeds: {wrong} of {len(names) * len(seeds)} judged wrong")


if __name__ == "__main__":
    main()
