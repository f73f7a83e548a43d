"""The server begun anew in its own place: a GPU that is lost to one process can be used by the next.

The process keeps its number and its sockets: whoever supervises it sees none end, and clients that come meanwhile wait.
What it knew of requests is gone: they have been told to ask again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import NoReturn

from outrider.errors import DeviceLost

log = logging.getLogger("outrider.server")

_NAME = "OUTRIDER_RESTARTED"
"""The environment's variable in which a process leaves word for the one it becomes."""
_MOST = 3
"""Times in `_WITHIN` seconds: what ends it so often does not get better by itself."""
_WITHIN = 600.0


@dataclass(frozen=True, slots=True)
class Past:
    """What was before this server. `listeners`: its sockets, none where it is the first."""

    begun: tuple[float, ...] = ()
    """When it was begun anew, in seconds since 1970."""
    listeners: tuple[socket.socket, ...] = ()

    @staticmethod
    def of_process() -> Past:
        """Asked once: nothing that this process starts is told."""
        left = json.loads(os.environ.pop(_NAME, "{}"))
        if left.get("process") != os.getpid():
            return Past()
        return Past(tuple(left["begun"]), tuple(socket.socket(fileno=number) for number in left["files"]))

    def begin_anew(self, error: DeviceLost, listeners: list[socket.socket]) -> NoReturn:
        """Become the same command, listening as before. Raises `error` where that has happened too often lately, or
        where this system cannot."""
        lately = [at for at in self.begun if time() - at < _WITHIN]
        if os.name != "posix" or len(lately) >= _MOST:
            raise error
        log.error("the server begins anew", extra={"facts": {"reason": str(error)}})
        files = [listener.fileno() for listener in listeners]
        _inherit(files)
        left = {"process": os.getpid(), "begun": [*self.begun, time()], "files": files}
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _NAME: json.dumps(left)})


def _inherit(files: list[int]) -> None:
    """These stay open, and nothing else: the old process must let go of the GPU."""
    everything = Path("/proc/self/fd")
    for number in [int(entry.name) for entry in everything.iterdir()] if everything.exists() else []:
        if number > 2:
            with suppress(OSError):  # the one that listed them is closed by now
                os.set_inheritable(number, False)
    for number in files:
        os.set_inheritable(number, True)
