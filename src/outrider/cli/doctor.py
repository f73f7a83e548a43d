"""`outrider doctor`: what this machine has, what of it is used, and what would help."""

from __future__ import annotations

import json as json_module
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import typer

from outrider import __version__
from outrider.cli.screen import answers
from outrider.errors import OutriderError

_EXTRAS = {
    "serve": ("fastapi", "uvicorn", "prometheus-client"),
    "grammar": ("llguidance",),
    "bench": ("matplotlib", "psutil"),
}
"""As in pyproject.toml; a test compares them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`good`: whether all is as well as it can be here; else `advice` says what would help."""

    part: str
    told: str
    good: bool = True
    advice: str = ""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead.")] = False,
) -> None:
    """Say what runs here: CPU, kernels, GPU, optional packages, caches; and what would make it faster.

    Exit code 1 where something is broken: kernels that are missing or do not fit.
    """
    found = list(findings())
    if json:
        print(json_module.dumps({"findings": [asdict(each) for each in found]}, ensure_ascii=False))
    else:
        console = answers()
        for each in found:
            console.print(f"{'  ' if each.good else '! '}{each.part:<12}{each.told}", highlight=False, soft_wrap=True)
            if each.advice:
                console.print(f"{'':<14}{each.advice}", highlight=False, soft_wrap=True)
    if not all(each.good for each in found):
        raise typer.Exit(1)


def findings() -> Iterator[Finding]:
    for look in (_versions, _cpu, _kernels, _sampler, _lookup, _gpu, _extras, _head, _caches, _network):
        yield from look()


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    yield Finding("outrider", f"{__version__} on Python {platform.python_version()}, {system}; {packages}")


def _cpu() -> Iterator[Finding]:
    import torch

    from outrider.models.cpu import cpu_name
    from outrider.models.memory import available

    free = available()
    memory = "" if free is None else f", {free / 1e9:.1f} GB of memory free"
    yield Finding("CPU", f"{cpu_name()}, {torch.get_num_threads()} threads{memory}")


_BUILD = "install a C compiler, then: pip install --force-reinstall --no-deps --no-cache-dir outrider (or make setup)"


def _kernels() -> Iterator[Finding]:
    from outrider.compiled import built_of
    from outrider.models.native.library import FORCED, chosen_kernels, kernels_here, library

    def told() -> str:
        kernels = library()
        assert kernels is not None
        others = ", ".join(name for name in kernels_here() if name != chosen_kernels())
        return f"{chosen_kernels()} (also here: {others or 'none'}; {FORCED} forces one), build {built_of(kernels)}"

    yield from _library("kernels", library, told, "PyTorch decodes on the CPU, slower, and int8 and native are refused")


def _sampler() -> Iterator[Finding]:
    from outrider.sampling.native.sampler import library

    yield from _library("sampler", library, lambda: "compiled", "PyTorch chooses the tokens, the same ones, slower")


def _lookup() -> Iterator[Finding]:
    from outrider.drafters.native.texts import library

    yield from _library("lookup", library, lambda: "compiled", "Python looks up what was said, the same, slower")


def _library(part: str, load: Callable[[], object | None], told: Callable[[], str], without: str) -> Iterator[Finding]:
    try:
        built = load() is not None
        yield Finding(part, told()) if built else Finding(part, f"not built: {without}", good=False, advice=_BUILD)
    except OutriderError as error:
        yield Finding(part, str(error), good=False)


def _gpu() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        yield Finding("GPU", "PyTorch sees no CUDA GPU; the CPU decodes")
        return
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if _installed("triton"):
        yield Finding("GPU", ", ".join(names))
    else:
        yield Finding("GPU", ", ".join(names), advice="our GPU kernels need Triton: pip install triton")


def _extras() -> Iterator[Finding]:
    for extra, packages in _EXTRAS.items():
        missing = [name for name in packages if not _installed(name)]
        if missing:
            advice = f'to use it: pip install "outrider[{extra}]"'
            yield Finding(extra, f"not installed ({', '.join(missing)})", advice=advice)
        else:
            yield Finding(extra, "installed")


def _head() -> Iterator[Finding]:
    from outrider.models.checkpoints.catalog import DEFAULT_MODEL
    from outrider.models.head.shipped import shipped_head

    told = "comes with the package" if shipped_head(DEFAULT_MODEL) else "is missing from the package"
    yield Finding("head", f"the one for {DEFAULT_MODEL} {told}", good=shipped_head(DEFAULT_MODEL) is not None)


def _caches() -> Iterator[Finding]:
    from outrider.models.checkpoints.catalog import cache_root
    from outrider.models.checkpoints.disk import megabytes, places

    found = places()
    if not found:
        yield Finding("caches", f"nothing yet; models will be kept in {cache_root()} (OUTRIDER_CACHE)")
    for place in found:
        yield Finding("cache", f"{place.what}: {megabytes(place.bytes)} in {place.path}")


def _network() -> Iterator[Finding]:
    from outrider.models.checkpoints.hub import offline

    told = "off (OUTRIDER_OFFLINE)" if offline() else "used to fetch models that are asked for, and for nothing else"
    yield Finding("network", told)


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
