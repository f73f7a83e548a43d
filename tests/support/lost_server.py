"""`outrider`, as it is, over a CPU that is lost like a GPU: `python lost_server.py FILE LIVES serve …`.

Once FILE is there, passes fail for good in each of the first LIVES processes. Once FILE.slow is there they take their
time, so that requests are still running then.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import sleep
from typing import Any

import torch

from outrider.cli.main import main
from outrider.errors import DeviceLost
from outrider.models.native.decoder import NativeDecoder

SECONDS = 0.5


def plant(file: Path) -> None:
    forward = NativeDecoder.forward

    def failing(self: NativeDecoder, *args: Any) -> Any:
        if file.with_suffix(".slow").exists():
            sleep(SECONDS)
        if file.exists():
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return forward(self, *args)

    def recovers(self: NativeDecoder, error: Exception) -> bool:
        raise DeviceLost(f"the GPU has failed ({error}), and this process cannot use it any more")

    decoder: Any = NativeDecoder
    decoder.forward, decoder.recovers = failing, recovers


if __name__ == "__main__":
    _, file, lives, *arguments = sys.argv
    if len(json.loads(os.environ.get("OUTRIDER_RESTARTED", '{"begun": []}'))["begun"]) < int(lives):
        plant(Path(file))
    sys.argv = ["outrider", *arguments]
    main()
