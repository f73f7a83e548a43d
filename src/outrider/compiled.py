"""The compiled libraries: found, loaded, and held to what this version of Outrider expects of them.

They are plain C behind ctypes, so nothing but this stands between a library of another version and memory that is read
at the wrong places. Each says how large the structures are that it shares with Python, and which sources it was made of
(`digest`, set by setup.py; one that was compiled by hand does not know).
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from outrider.errors import ModelError

UNKNOWN = "unknown"


class _Size(ctypes.Structure):
    """`Size` of the C code: the end of a list has no name."""

    _fields_ = [("name", ctypes.c_char_p), ("bytes", ctypes.c_int64)]


def find(folder: Path, name: str) -> Path | None:
    """The library called `name`; of several, the one built last: earlier ones had the interpreter's version in their
    names."""
    suffixes = dict.fromkeys([".so", ".dll", *EXTENSION_SUFFIXES])
    paths = [path for suffix in suffixes if (path := folder / f"{name}{suffix}").exists()]
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def load(folder: Path, name: str, shared: Iterable[type[ctypes.Structure]]) -> ctypes.CDLL | None:
    """The library, checked, or None where it was not built (no C compiler at install time). `shared`: the structures
    it reads and writes, by the names C has for them."""
    path = find(folder, name)
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    if trouble := _trouble(library, folder, shared):
        raise ModelError(
            f"{path} does not fit this version of Outrider: {trouble}; build it again "
            "(make setup in a checkout, else pip install --force-reinstall --no-deps outrider)"
        )
    return library


def built_of(library: ctypes.CDLL) -> str:
    """The `digest` of the sources it was made of."""
    library.outrider_build.restype = ctypes.c_char_p
    return str(library.outrider_build().decode())


def digest(folder: Path) -> str:
    """Of the C sources in a folder; the same wherever they lie."""
    total = hashlib.sha256()
    for source in sorted(folder.glob("*.[ch]"), key=lambda path: path.name):
        total.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def _trouble(library: ctypes.CDLL, folder: Path, shared: Iterable[type[ctypes.Structure]]) -> str | None:
    """Why it cannot be used, in words."""
    if not hasattr(library, "outrider_sizes"):  # of C, whose symbols nobody declares
        return "it was built before libraries told the sizes of their structures"
    library.outrider_sizes.restype = ctypes.POINTER(_Size)
    told, sizes = library.outrider_sizes(), {}
    for i in range(256):
        if told[i].name is None:
            break
        sizes[told[i].name.decode()] = told[i].bytes
    for structure in shared:
        name, here = structure.__name__.lstrip("_"), ctypes.sizeof(structure)
        if sizes.get(name) != here:
            return f"its {name} has {sizes.get(name, 'no')} bytes where {here} are expected"
    built, sources = built_of(library), digest(folder)
    if built not in (UNKNOWN, sources):
        return f"it was built of other sources ({built}) than those beside it ({sources})"
    return None
