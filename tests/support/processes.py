"""Real processes that take part in a process group (gloo, one thread each), and run jobs together."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sparsedp.distributed import Exchange

LARGEST = 4


class Processes:
    """Four processes, started once; a job runs on the first W of them.

    A job is a function ``job(exchange, *arguments)`` of an importable module. Its results come back by rank.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["support.distributed_jobs"])  # imports once, not in every process
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        self._folder = tempfile.TemporaryDirectory()
        meeting = Path(self._folder.name) / "meeting"
        self._pipes, self._processes = [], []
        for rank in range(LARGEST):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, str(meeting)), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, job: Callable[..., Any], *arguments: Any, ranks: int) -> list[Any]:
        """The result of the job in each process; an error in one of them is raised here."""
        for pipe in self._pipes:
            pipe.send((job.__module__, job.__qualname__, arguments, ranks))
        answers = [pipe.recv() for pipe in self._pipes]
        for error, _ in answers:
            if error is not None:
                raise RuntimeError(error)
        return [result for _, result in answers[:ranks]]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
        self._folder.cleanup()


def _serve(pipe: Connection, rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=LARGEST,
        timeout=timedelta(seconds=60),
    )
    exchanges = {ranks: Exchange(dist.new_group(list(range(ranks)))) for ranks in range(1, LARGEST + 1)}
    while (task := pipe.recv()) is not None:
        module, name, arguments, ranks = task
        error, result = None, None
        if rank < ranks:
            try:
                job = getattr(importlib.import_module(module), name)
                result = job(exchanges[ranks], *arguments)
            except Exception:
                error = f"rank {rank}: {traceback.format_exc()}"
        pipe.send((error, result))
    dist.destroy_process_group()
