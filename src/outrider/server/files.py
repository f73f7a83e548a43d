"""How many connections the process has files for: each takes one, and without a file to spare nobody is let in."""

from __future__ import annotations

import sys

_OWN = 96
"""Files that everything else may need: weights, pages, a GPU's driver, bodies of requests on their way."""
_FEWEST = 2


def affordable(connections: int) -> int:
    """So many of the connections wanted as there are files for. The soft limit is raised as far as that needs and the
    hard one allows."""
    if sys.platform == "win32":  # it has no such limit
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless, wanted = resource.RLIM_INFINITY, connections + _OWN
    if soft == endless or soft >= wanted:
        return connections
    most = wanted if hard == endless else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(_FEWEST, most - _OWN)
