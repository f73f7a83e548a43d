"""Kernels that start before the one they follow has ended (programmatic dependent launch).

A kernel launched so may set itself up, and ask for weights nobody writes, while its predecessor drains. Before it reads
anything a predecessor wrote it must call `after_previous`. What was written before that one began is there: it lets
others start only when it has waited itself. Such things are read past the L1 cache (`.cg`), which may be older.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def after_previous(DEPENDENT: tl.constexpr):
    if DEPENDENT:
        # In this order: the other way round a dozen small kernels pile up on the device, waiting for one another.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
