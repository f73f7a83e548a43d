"""The threads of the compiled decoder: every part of a share is done once, also where one of them is held up."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_int, c_uint, c_void_p
from threading import Event

import pytest

from outrider.models.native.library import library


class Share(Structure):
    """As in pool.h."""

    _fields_ = [
        *((name, c_int) for name in ("parts", "thread", "threads")),
        ("number", c_uint),
        *((name, c_int) for name in ("ahead", "next", "end")),
    ]


POOL = library()
pytestmark = pytest.mark.skipif(POOL is None, reason="the kernels are not compiled")
if POOL is not None:
    POOL.pool_share.restype = Share
    POOL.pool_share.argtypes = [c_int, c_int, c_int]
    POOL.pool_take.argtypes = [POINTER(Share)]


def run(job: Callable[[int, int], None], threads: int) -> None:
    assert POOL is not None
    POOL.pool_run(CFUNCTYPE(None, c_void_p, c_int, c_int)(lambda _, thread, all_: job(thread, all_)), None, threads)


def taken(parts: int, thread: int, threads: int) -> list[int]:
    """All parts that fall to a thread."""
    assert POOL is not None
    share, found = POOL.pool_share(parts, thread, threads), list[int]()
    while POOL.pool_take(byref(share)):
        found += range(share.next, share.end)
    return found


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_part_is_taken_once_though_nobody_waits_between_shares(threads: int) -> None:
    sizes = [*range(12), 100, 1, 1537, 0, 30] * 3
    found: dict[int, list[tuple[int, int]]] = {}

    def job(thread: int, threads: int) -> None:
        found[thread] = [(n, part) for n, parts in enumerate(sizes) for part in taken(parts, thread, threads)]

    for _ in range(5):
        run(job, threads)
        every = Counter(one for parts in found.values() for one in parts)
        assert every == Counter((n, part) for n, parts in enumerate(sizes) for part in range(parts))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_others_do_the_parts_of_a_thread_that_is_held_up(late: int) -> None:
    done, counts = Event(), [0] * 3

    def job(thread: int, threads: int) -> None:
        if thread == late:
            assert done.wait(60)
        counts[thread] = len(taken(100, thread, threads))
        if sum(counts) == 100:
            done.set()

    run(job, 3)
    assert counts[late] == 0
    assert sum(counts) == 100


def test_alone_a_thread_takes_its_own_parts_in_order() -> None:
    found = list[int]()
    run(lambda thread, threads: found.extend(taken(1000, thread, threads)), 1)
    assert found == list(range(1000))


def test_a_forked_child_has_threads_of_its_own() -> None:
    program = """
import os
from test_pool import run, taken
def shared(threads):
    found = {}
    run(lambda thread, all_: found.update({thread: taken(64, thread, all_)}), threads)
    return sorted(part for parts in found.values() for part in parts) == list(range(64)) and len(found) == threads
right = shared(3)
child = os.fork()
if not child:
    os._exit(0 if shared(3) and shared(2) and shared(4) else 1)
raise SystemExit(0 if right and os.waitpid(child, 0)[1] == 0 and shared(2) else 1)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=__file__.rpartition("/")[0], timeout=120, check=False)
    assert done.returncode == 0
