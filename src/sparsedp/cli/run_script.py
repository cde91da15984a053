"""``python -m sparsedp.cli.run_script PATH ...``: a script; a missing extra or data set is one line and exit code 2."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from sparsedp.cli.data_sets import MissingDataSet
from sparsedp.core.extras import missing_extra


def main() -> None:
    """Run the script as ``python PATH ...`` would."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except (ModuleNotFoundError, MissingDataSet) as error:
        missing = error if isinstance(error, MissingDataSet) else missing_extra(error)
        if missing is None:
            raise
        print(f"sparsedp: {missing}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
