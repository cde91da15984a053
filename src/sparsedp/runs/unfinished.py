"""The model of a run that has not finished, as its last checkpoint has it."""

from __future__ import annotations

from pathlib import Path

from sparsedp.accounting import PrivacyStatement
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.result import NOT_PRIVATE
from sparsedp.runs.setup import RunSetup
from sparsedp.runs.sources import split
from sparsedp.runs.trainer import PrivateTrainer, Trainer, open_ledger
from sparsedp.training.checkpoint import write_weights


def write_unfinished(folder: RunFolder, path: Path) -> PrivacyStatement | None:
    """Write the weights of the last checkpoint, and return the statement of all that was charged so far.

    Guarantee: that of the run's steps, whose statement covers the model after each of them: releasing one of these
    models costs nothing more. Lazy noise covers the final model alone, so such a run is refused, as are those
    whose checkpoints are of another kind (streaming, several processes). Needs the run's data, to rebuild
    the account.
    """
    config = folder.config()
    if config.method.lazy_noise:
        raise ValueError(f"unfinished: algorithm {config.algorithm} releases the final model only")
    if config.period is not None or folder.shared_checkpoint.exists():
        raise ValueError(
            "unfinished: of streaming runs and of several processes only finished models are released"
        )
    if not folder.checkpoint.exists():
        raise ValueError(f"unfinished: {folder.path} has no checkpoint yet")
    setup = RunSetup.reopen(folder)
    training, _ = split(config, setup.data)
    trainer: Trainer
    if config.is_private:
        ledger = open_ledger(config, folder.ledger, folder.run_name)
        trainer = PrivateTrainer(config, setup.model, training, ledger)
    else:
        trainer = PlainTrainer(config, setup.model, training)
    try:
        trainer.resume(folder.checkpoint)
        statement = trainer.statement()
        privacy = NOT_PRIVATE if statement is None else str(statement)
        write_weights(setup.model, path, privacy=privacy, without=trainer.withheld())
    finally:
        trainer.close()
    return statement
