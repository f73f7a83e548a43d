"""What whole passes cost by their number of rows, several checkouts by turns.

    python benchmarks/pass_rows.py before=../other after=. [--dtype int8] [--rows 1,2,4,8,16] [--context 64]
                                   [--threads 2] [--rounds 8] [--out FILE.json]

Each checkout must have been built (`python setup.py build_ext --inplace`) and is a process of its own; they take turns,
three passes each, so that a machine that slows down slows down for all. Given are milliseconds: the least, and the
first quartile, which a busy machine disturbs less than the median. Passes of more than 32 rows are without logits, as
a prompt's are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

AT_ONCE = 3
"""Passes of one checkout before it is the next one's turn; one more before them is not counted."""
MOST_LOGITS = 32


def serve(dtype: str, context: int, threads: int) -> None:
    """A worker: numbers of rows in, seconds out, a line each."""
    from outrider.core.model import Rows
    from outrider.models.checkpoints.checkpoint import open_checkpoint
    from outrider.models.checkpoints.progress import SilentProgress
    from outrider.models.load import load_model, placement

    place = placement(device="cpu", dtype=dtype, bitwise=None, threads=threads, max_batch=1, max_context=context + 256)
    model = load_model(open_checkpoint("smollm2-135m", SilentProgress()), place)
    slot = model.open()
    model.forward([Rows.chain(slot, [1000 + i % 5000 for i in range(context)], logits=())])
    model.commit(slot, range(context))
    print("[]", flush=True)
    for line in sys.stdin:
        rows = int(line)
        found = []
        for _ in range(1 + AT_ONCE):
            start = perf_counter()
            model.forward([Rows.chain(slot, [100 + i for i in range(rows)], logits=() if rows > MOST_LOGITS else None)])
            found.append(perf_counter() - start)
            model.commit(slot, [])
        print(json.dumps(found[1:]), flush=True)


class Checkout:
    def __init__(self, name: str, path: Path, what: list[object]) -> None:
        self.name = name
        self.seconds: dict[int, list[float]] = {}
        environment = {**os.environ, "PYTHONPATH": str(path.resolve() / "src")}
        command, pipe = [sys.executable, __file__, "--worker", json.dumps(what)], subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)
        self._answer()

    def _answer(self) -> list[float]:
        assert self._process.stdout is not None
        found: list[float] = json.loads(self._process.stdout.readline())
        return found

    def run(self, rows: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()
        self.seconds.setdefault(rows, []).extend(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", help="NAME=FOLDER")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--rows", default="1,2,3,4,6,8,12,16")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(*json.loads(options.worker))
        return

    from outrider.models.native.library import chosen_kernels
    from outrider.provenance import provenance

    what = [options.dtype, options.context, options.threads]
    named = [given.partition("=") for given in options.checkouts]
    checkouts = [Checkout(name, Path(path), what) for name, _, path in named]
    counts = [int(rows) for rows in options.rows.split(",")]
    for _ in range(options.rounds):
        for rows in counts:
            for checkout in checkouts:
                checkout.run(rows)
    found: dict[str, dict[str, dict[int, float]]] = {}
    for checkout in checkouts:
        checkout.close()
        found[checkout.name] = {
            "least": {rows: round(1e3 * min(times), 2) for rows, times in checkout.seconds.items()},
            "first quartile": {
                rows: round(1e3 * statistics.quantiles(times, n=4)[0], 2) for rows, times in checkout.seconds.items()
            },
        }
        for measure, by_rows in found[checkout.name].items():
            print(f"{checkout.name:12} {measure:14}", *(f"{rows}:{ms}" for rows, ms in by_rows.items()), flush=True)
    if options.out:
        settings = {"dtype": options.dtype, "context": options.context, "threads": options.threads}
        origin = provenance() | {"kernels": chosen_kernels()}
        options.out.write_text(json.dumps({"provenance": origin, **settings, "ms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
