"""torchrun, which ends its processes when the process that started it ends: ``python -m sparsedp.runs.torchrun``."""

from __future__ import annotations

import sys

from sparsedp.core.starter import end_with_starter


def main() -> None:
    """Run torchrun with the arguments of this process; ended by a signal, it says nothing."""
    end_with_starter()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main as torchrun

    try:
        torchrun()
    except SignalException as ended:
        sys.exit(128 + ended.sigval)


if __name__ == "__main__":
    main()
