"""Predictions of a text classifier for a file of sentences."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model

from sparsedp.core.durable import replace_file
from sparsedp.data.sentences import read_tsv
from sparsedp.runs.evaluation import TEXTS
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.scores import SCORE, STDOUT, check_out, frame_writer
from sparsedp.runs.text import fresh_classifier, tokens_of
from sparsedp.runs.text_config import TextConfig


@torch.no_grad()
def predict_texts(folder: RunFolder, path: Path, out: Path) -> int:
    """Write the likeliest label of every text and the probability of each; returns the number of texts.

    The encoder and its tokeniser are read from where the run's config names them: a run holds the weights alone.
    """
    config = folder.config()
    assert isinstance(config, TextConfig)
    check_out(out, path)
    if not folder.weights.exists():
        raise folder.incomplete()
    texts = read_tsv(path, **{**config.columns, "label": None})
    data, model = tokens_of(config, texts), fresh_classifier(config).eval()
    try:
        load_model(model, str(folder.weights))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ValueError(f"{folder.weights} does not fit the model ({str(error)[:300]})") from error
    logits = torch.cat([model(**batch).double() for batch in data.batches(TEXTS)])
    scores = torch.softmax(logits, dim=1).numpy()
    predicted = pl.Series("predicted", [config.class_names[at] for at in scores.argmax(axis=1)])
    columns = [pl.Series(f"{SCORE}_{name}", scores[:, at]) for at, name in enumerate(config.class_names)]
    frame = pl.DataFrame([predicted, *columns])

    def write(partial: Path | None) -> None:
        with frame_writer(partial, out.suffix, frame.schema) as write_frame:
            write_frame(frame)

    if out == STDOUT:
        write(None)
    else:
        replace_file(out, write)
    return len(data)
