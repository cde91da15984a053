"""Click data: preparing raw files by public rules, reading them back at random, and generating them.

The public names are loaded when first used, so that preparing with hashes starts without the accountant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.extras import lazy_names

_HOME = {
    "Batch": "batch",
    "ClickData": "clicks",
    "ClickProcess": "click_process",
    "Columns": "table",
    "Criteo": "criteo",
    "Feature": "schema",
    "GeneratedClicks": "generated",
    "HashRule": "rules",
    "Label": "label",
    "MultiHot": "batch",
    "PartitionSelection": "partition_selection",
    "Period": "clicks",
    "PublicValues": "partition_selection",
    "Schema": "schema",
    "Table": "table",
    "VOCABULARY_SIZES": "criteo",
    "Vocabulary": "vocabulary",
    "VocabularyRule": "rules",
    "flights": "flights_3m",
    "generate": "generated",
    "learn_privately": "vocabulary",
    "learn_public": "vocabulary",
    "movielens": "movielens_small",
    "prepare": "preparation",
    "tennis": "atp_tennis",
    "write_criteo_days": "generated",
    "write_criteo_tsv": "generated",
}

__all__ = [
    "VOCABULARY_SIZES",
    "Batch",
    "ClickData",
    "ClickProcess",
    "Columns",
    "Criteo",
    "Feature",
    "GeneratedClicks",
    "HashRule",
    "Label",
    "MultiHot",
    "PartitionSelection",
    "Period",
    "PublicValues",
    "Schema",
    "Table",
    "Vocabulary",
    "VocabularyRule",
    "flights",
    "generate",
    "learn_privately",
    "learn_public",
    "movielens",
    "prepare",
    "tennis",
    "write_criteo_days",
    "write_criteo_tsv",
]

if TYPE_CHECKING:
    from sparsedp.data.atp_tennis import tennis
    from sparsedp.data.batch import Batch, MultiHot
    from sparsedp.data.click_process import ClickProcess
    from sparsedp.data.clicks import ClickData, Period
    from sparsedp.data.criteo import VOCABULARY_SIZES, Criteo
    from sparsedp.data.flights_3m import flights
    from sparsedp.data.generated import GeneratedClicks, generate, write_criteo_days, write_criteo_tsv
    from sparsedp.data.label import Label
    from sparsedp.data.movielens_small import movielens
    from sparsedp.data.partition_selection import PartitionSelection, PublicValues
    from sparsedp.data.preparation import prepare
    from sparsedp.data.rules import HashRule, VocabularyRule
    from sparsedp.data.schema import Feature, Schema
    from sparsedp.data.table import Columns, Table
    from sparsedp.data.vocabulary import Vocabulary, learn_privately, learn_public

__getattr__ = lazy_names(__name__, _HOME)
