"""Exactness on a GPU: runs every test that means something there, the equality suite included, and keeps the outcome.

    python benchmarks/gpu_check.py [--out benchmarks/results/gpu_check.json]

Kernels against PyTorch, bits of rows alone and in company, tokens with every drafter against plain decoding (levels A
and C). Exit status 1 if any test fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from outrider.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tests = Path(__file__).parents[1] / "tests"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        files = [str(tests / "gpu"), str(tests / "model" / "test_equality.py")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *files]
        status = subprocess.run([*command, "-m", "not slow"]).returncode
        cases = list(ElementTree.parse(report).iter("testcase"))
    outcome = {
        "provenance": provenance(),
        "passed": status == 0,
        "tests": {
            f"{case.get('classname')}::{case.get('name')}": {
                "outcome": next((child.tag for child in case if child.tag != "properties"), "passed"),
                "seconds": float(case.get("time", 0)),
            }
            for case in cases
        },
    }
    if options.out:
        options.out.write_text(json.dumps(outcome, indent=1))
    sys.exit(status)


if __name__ == "__main__":
    main()
