"""``python -m sparsedp.cli.run_script PATH ...``: a script, where a missing extra is one line and exit code 2."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from sparsedp.core.extras import missing_extra


def main() -> None:
    """Run the script as ``python PATH ...`` would."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        print(f"sparsedp: {missing}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
