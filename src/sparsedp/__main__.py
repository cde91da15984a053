"""The `sparsedp` command, and ``python -m sparsedp``."""

from __future__ import annotations

import sys
import warnings

from sparsedp.core.extras import missing_extra


def main() -> None:
    """Run the command line; without its extra, say in one line how to install it, with exit code 2."""
    try:
        from sparsedp.cli.app import main as run
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        print(f"sparsedp: {missing}", file=sys.stderr)
        sys.exit(2)
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"  # one line, no source
    run()


if __name__ == "__main__":
    main()
