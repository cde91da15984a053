"""Click data: preparing raw files by public rules, reading them back at random, and generating them; texts.

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
    "Sentences": "sentences",
    "Table": "table",
    "TextData": "text",
    "Vocabulary": "vocabulary",
    "VocabularyRule": "rules",
    "WordVocabulary": "corpus",
    "generate": "generated",
    "learn_privately": "vocabulary",
    "learn_public": "vocabulary",
    "prepare": "preparation",
    "public_token_counts": "token_frequencies",
    "read_lines": "sentences",
    "read_sentences": "corpus",
    "read_tsv": "sentences",
    "split_words": "corpus",
    "tokenize": "text",
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
    "Sentences",
    "Table",
    "TextData",
    "Vocabulary",
    "VocabularyRule",
    "WordVocabulary",
    "generate",
    "learn_privately",
    "learn_public",
    "prepare",
    "public_token_counts",
    "read_lines",
    "read_sentences",
    "read_tsv",
    "split_words",
    "tokenize",
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
    from sparsedp.data.sentences import Sentences, read_lines, read_tsv
    from sparsedp.data.table import Columns, Table
    from sparsedp.data.text import TextData, tokenize
    from sparsedp.data.token_frequencies import public_token_counts
    from sparsedp.data.vocabulary import Vocabulary, learn_privately, learn_public

__getattr__ = lazy_names(__name__, _HOME)
