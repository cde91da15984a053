"""Click data: preparing raw files by public rules, reading them back at random, and generating them; text as word ids.

The public names are loaded when first used, so that preparing with hashes starts without the accountant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.core.extras import lazy_names

_HOME = {
    "Batch": "batch",
    "ClickData": "clicks",
    "ClickProcess": "click_process",
    "Columns": "table",
    "ContextWindows": "context_windows",
    "Corpus": "corpus",
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
    "Vocabulary": "vocabulary",
    "VocabularyRule": "rules",
    "WordVocabulary": "corpus",
    "generate": "generated",
    "learn_privately": "vocabulary",
    "learn_public": "vocabulary",
    "prepare": "preparation",
    "read_sentences": "corpus",
    "split_words": "corpus",
    "write_criteo_days": "generated",
    "write_criteo_tsv": "generated",
}

__all__ = [
    "VOCABULARY_SIZES",
    "Batch",
    "ClickData",
    "ClickProcess",
    "Columns",
    "ContextWindows",
    "Corpus",
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
    "WordVocabulary",
    "generate",
    "learn_privately",
    "learn_public",
    "prepare",
    "read_sentences",
    "split_words",
    "write_criteo_days",
    "write_criteo_tsv",
]

if TYPE_CHECKING:
    from sparsedp.data.batch import Batch, MultiHot
    from sparsedp.data.click_process import ClickProcess
    from sparsedp.data.clicks import ClickData, Period
    from sparsedp.data.context_windows import ContextWindows
    from sparsedp.data.corpus import Corpus, WordVocabulary, read_sentences, split_words
    from sparsedp.data.criteo import Criteo
    from sparsedp.data.generated import GeneratedClicks, generate, write_criteo_days, write_criteo_tsv
    from sparsedp.data.label import Label
    from sparsedp.data.partition_selection import PartitionSelection, PublicValues
    from sparsedp.data.preparation import prepare
    from sparsedp.data.rules import HashRule, VocabularyRule
    from sparsedp.data.schema import Feature, Schema
    from sparsedp.data.table import Columns, Table
    from sparsedp.data.vocabulary import Vocabulary, learn_privately, learn_public

__getattr__ = lazy_names(__name__, _HOME)
