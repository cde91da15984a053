"""Click data: preparing raw files by public rules, reading them back at random, and generating them."""

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
