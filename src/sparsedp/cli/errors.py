"""Bad input at the command line: one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import typer

from sparsedp.core.extras import missing_extra

P = ParamSpec("P")
R = TypeVar("R")


def refuse_bad_input(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors a person can act on into one line on standard error and exit code 2."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (ValueError, OSError) as error:
            refuse(error)
        except MemoryError as error:
            refuse(_out_of_memory(error))
        except RuntimeError as error:
            from sparsedp.accounting import (
                BudgetExceeded,
            )  # here: a wrong option is refused before it is loaded

            if isinstance(error, BudgetExceeded):
                refuse(error)
            if not _is_out_of_memory(error):
                raise
            refuse(_out_of_memory(error))
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise
            refuse(missing)

    return guarded


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch had no memory: on the CPU it says so in the message alone."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _out_of_memory(error: Exception) -> MemoryError:
    return MemoryError(
        f"out of memory ({str(error)[:120] or 'no details'}); a run that had begun goes on with `sparsedp resume` when there is "
        "more (steps that were charged stay charged), or begin another with a smaller physical_batch_size"
    )


def refuse(error: Exception) -> NoReturn:
    """End the command with the error's message on one line and exit code 2."""
    line = " ".join(str(error).split()) or type(error).__name__
    typer.echo(f"sparsedp: {line}", err=True)
    raise typer.Exit(2) from error


def refuse_special_file(name: str, path: Path) -> None:
    """Refuse a folder, a device or a pipe: reading one may never end. A missing file is left to its reader."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{name}: {path} is not a regular file")
