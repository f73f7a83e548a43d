"""How the compiled libraries are built and packed; everything else is in pyproject.toml.

They are plain C behind ctypes, no extension modules: one build serves every Python 3, so they are called `_kernels.so`,
`_sampler.so` and `_lookup.so`, and wheels are tagged py3-none-<platform>. Without a C compiler an installation goes on
without them (PyTorch decodes then); a release (OUTRIDER_RELEASE=1, see docs/releasing.md) fails instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "src"))

from outrider.compiled import digest

RELEASE = os.environ.get("OUTRIDER_RELEASE") == "1"


class BuildLibraries(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + (".dll" if os.name == "nt" else ".so")

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # no PyInit_… : Python does not import them

    def build_extension(self, ext: Extension) -> None:
        ext.optional = ext.optional and not RELEASE
        ext.define_macros = [("OUTRIDER_BUILD", f'"{digest(Path(ext.sources[0]).parent)}"')]
        if RELEASE:
            ext.extra_link_args = [*ext.extra_link_args, "-s"]  # nobody debugs them there
        super().build_extension(ext)

    def run(self) -> None:
        super().run()
        built = [Path(self.get_ext_fullpath(ext.name)) for ext in self.extensions]
        if RELEASE and not all(path.exists() for path in built):
            sys.exit("a release needs its kernels, and they were not built: is there a C compiler?")


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_ext": BuildLibraries, "bdist_wheel": Wheel})
