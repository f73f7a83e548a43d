"""Memory of a fresh process that loads the default model and generates, beyond what its imports take.

    python benchmarks/memory.py [--dtype bf16]

Prints one JSON object: the weights and the part of the cache that is touched, the peak and what stays, in MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

SCRIPT = """
import resource, sys, psutil, torch
from outrider import LLM, SamplingParams
import outrider.llm
before = psutil.Process().memory_info().rss
llm = LLM("smollm2-135m", max_batch=1, dtype=sys.argv[1])
llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(before, peak, psutil.Process().memory_info().rss)
"""
PARAMETERS = 134_515_008
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "int8": 1}
CACHED_VALUES = 30 * 2 * 3 * 64 * 128  # layers, keys and values, heads, width, positions touched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bf16", choices=BYTES)
    dtype = parser.parse_args().dtype
    out = subprocess.run([sys.executable, "-c", SCRIPT, dtype], capture_output=True, text=True, check=True).stdout
    before, peak, now = map(int, out.split()[-3:])
    weights = PARAMETERS * BYTES[dtype]
    cache = CACHED_VALUES * max(2, BYTES[dtype])
    result = {
        "dtype": dtype,
        "weights_mb": weights / 1e6,
        "cache_mb": cache / 1e6,
        "peak_mb": (peak - before) / 1e6,
        "resident_mb": (now - before) / 1e6,
        "peak_over_weights_and_cache": (peak - before) / (weights + cache),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
